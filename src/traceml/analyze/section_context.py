"""The system and process sections of the summary: what the gauges say about the time of training."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceml.analyze import metrics as m
from traceml.analyze.rules_context import PROCESS_RULES, SYSTEM_RULES, ContextView, diagnose_context
from traceml.analyze.rules_memory import MemoryView
from traceml.analyze.section_memory import ram_total
from traceml.schema import catalog as c
from traceml.schema.facts import RunFacts
from traceml.schema.recorded import RankRecording, RunRecording
from traceml.schema.summary import Member, MetricStat, Section


def in_training(rows: NDArray[np.void] | None, ranks: dict[int, RankRecording]) -> NDArray[np.void] | None:
    """Samples from the first step's begin to the last step's end, if there are any; else all of them."""
    lit = [r.rows for r in ranks.values() if len(r.rows)]
    if rows is None or not lit:
        return rows
    begin = min(int(r["begin_ns"][0]) for r in lit)
    end = max(int(r["end_ns"][-1]) for r in lit)
    inside = rows[(rows["time_ns"] >= begin) & (rows["time_ns"] <= end)]
    return inside if len(inside) else rows


def _mean_and_peak(
    rows: NDArray[np.void] | None, keys: list[str]
) -> tuple[dict[str, float | None], dict[str, float | None]]:
    mean: dict[str, float | None] = {}
    peak: dict[str, float | None] = {}
    for key in keys:
        known = rows[key][~np.isnan(rows[key])] if rows is not None else np.zeros(0)
        mean[key] = float(known.mean()) if len(known) else None
        peak[key] = float(known.max()) if len(known) else None
    return mean, peak


def _on_cpu(ranks: dict[int, RankRecording]) -> bool:
    return all(r.header.get("device", {}).get("type", "cpu") == "cpu" for r in ranks.values())


def system_section(recording: RunRecording, facts: RunFacts, ranks: dict[int, RankRecording]) -> Section:
    """What the system rules say about the machine while it trained."""
    rows = in_training(recording.system_rows, ranks)
    keys = [k.key for k in c.SYSTEM_METRICS]
    mean, peak = _mean_and_peak(rows, keys)
    samples = 0 if rows is None else len(rows)
    view = ContextView(mean, peak, cores=facts.cores, on_cpu=_on_cpu(ranks), samples=samples)
    calm = "CPU, memory and GPU of the machine show no pressure."
    if peak.get("gpu_util_percent") is None:
        calm = "CPU and memory of the machine show no pressure (no GPU seen)."
    findings = diagnose_context(view, SYSTEM_RULES, calm)
    return Section(
        findings[0],
        findings,
        window={"samples": samples},
        metrics={k: _gauge_stat(rows, k) for k in keys},
        nodes={"0": Member(identity={"host": facts.environment.get("host")}, metrics=mean)},
    )


def _gauge_stat(rows: NDArray[np.void] | None, key: str) -> MetricStat:
    if rows is None or not len(rows):
        return MetricStat()
    return m.stat((0,), rows[key].astype(float)[None, :])


def process_section(
    recording: RunRecording,
    facts: RunFacts,
    ranks: dict[int, RankRecording],
    memory: MemoryView | None,
) -> Section:
    """What the process rules say about the ranks while they trained."""
    rows = in_training(recording.process_rows, ranks)
    keys = [k.key for k in c.PROCESS_METRICS]
    sampled = keys[:-1]
    own: dict[int, dict[str, float | None]] = {}
    for rank, recorded in ranks.items():
        mine = rows[rows["pid"] == recorded.pid] if rows is not None else None
        own[rank] = _mean_and_peak(mine, sampled)[0]
        own[rank][keys[-1]] = _reserved(recorded)
    mean, peak = _mean_and_peak(rows, sampled)
    device = memory is not None and memory.memory == "device"
    peak[keys[-1]] = float(memory.reserved.max()) if device and memory is not None else None
    peak["gpu_mem_allocated_bytes"] = float(memory.peak.max()) if device and memory is not None else None
    samples = 0 if rows is None else len(rows)
    view = ContextView(
        mean,
        peak,
        members={k: {r: v for r, v in ((r, own[r][k]) for r in own) if v is not None} for k in keys},
        cores=facts.cores,
        ram_total=ram_total(recording.system_rows),
        gpu_capacity=memory.capacity if device and memory is not None else None,
        on_cpu=_on_cpu(ranks),
        samples=samples,
    )
    stats = {k: _sampled_stat(rows, ranks, k) for k in sampled}
    held = np.array([[v if (v := own[r][keys[-1]]) is not None else np.nan] for r in own], dtype=float)
    stats[keys[-1]] = m.stat(tuple(own), held) if own else MetricStat()
    findings = diagnose_context(view, PROCESS_RULES, "The training processes show no pressure.")
    return Section(
        findings[0],
        findings,
        window={"samples": samples},
        metrics=stats,
        ranks={str(r): Member(dict(ranks[r].identity), own[r]) for r in own},
    )


def _sampled_stat(rows: NDArray[np.void] | None, ranks: dict[int, RankRecording], key: str) -> MetricStat:
    """A process gauge over (rank, sample); ranks with fewer samples are padded with NaN."""
    if rows is None or not len(rows) or not ranks:
        return MetricStat()
    own = [rows[key][rows["pid"] == r.pid] for r in ranks.values()]
    table = np.full((len(own), max(len(v) for v in own) or 1), np.nan)
    for line, values in zip(table, own, strict=True):
        line[: len(values)] = values
    return m.stat(tuple(ranks), table)


def _reserved(recorded: RankRecording) -> float | None:
    rows = recorded.rows
    if not len(rows) or not (rows["flags"][-1] & c.FLAG_DEVICE_MEMORY):
        return None
    return float(rows["peak_reserved_bytes"].max())


def gauge_series(
    rows: NDArray[np.void] | None,
    begin_ns: int | None,
    metrics: tuple[c.Metric, ...],
    most: int = 300,
) -> dict[str, Any]:
    """Gauges for charts, at evenly spread samples, in seconds since the run began."""
    if rows is None or not len(rows):
        return {"seconds": []}
    at = np.unique(np.linspace(0, len(rows) - 1, min(most, len(rows))).astype(int))
    origin = begin_ns if begin_ns is not None else int(rows["time_ns"][0])
    series: dict[str, Any] = {"seconds": [round((int(t) - origin) / 1e9, 2) for t in rows["time_ns"][at]]}
    for metric in metrics:
        if not np.isnan(rows[metric.key]).all():
            series[metric.key] = [m.number(float(v)) for v in rows[metric.key][at]]
    return series
