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
    """What the system rules say about the machines while they trained."""
    keys = [k.key for k in c.SYSTEM_METRICS]
    tables: dict[int, NDArray[np.void]] = {}
    for node in (0, *recording.other_nodes):
        here = {r: x for r, x in ranks.items() if x.node == node}
        rows = in_training(recording.gauges(node).system_rows, here)
        if rows is not None and len(rows):
            tables[node] = rows
    own = {node: _mean_and_peak(rows, keys) for node, rows in tables.items()}
    mean = {k: _worst([means[k] for means, _ in own.values()], k) for k in keys}
    peak = {k: _worst([peaks[k] for _, peaks in own.values()], k) for k in keys}
    samples = sum(len(rows) for rows in tables.values())
    view = ContextView(mean, peak, cores=facts.cores, on_cpu=_on_cpu(ranks), samples=samples)
    calm = "CPU, memory and GPU of the machine show no pressure."
    if peak.get("gpu_util_percent") is None:
        calm = "CPU and memory of the machine show no pressure (no GPU seen)."
    findings = diagnose_context(view, SYSTEM_RULES, calm)
    return Section(
        findings[0],
        findings,
        window={"samples": samples},
        metrics={k: _padded_stat({n: rows[k] for n, rows in tables.items()}) for k in keys},
        nodes={
            str(n): Member(identity={"host": _host(n, facts, ranks)}, metrics=means)
            for n, (means, _) in own.items()
        },
    )


def _worst(values: list[float | None], key: str) -> float | None:
    """Over nodes: the highest, but the mean for how busy the GPUs are."""
    known = [v for v in values if v is not None]
    if not known:
        return None
    return sum(known) / len(known) if key == "gpu_util_percent" else max(known)


def _host(node: int, facts: RunFacts, ranks: dict[int, RankRecording]) -> str | None:
    if node == 0:
        return facts.environment.get("host")
    return next((str(r.identity.get("host")) for r in ranks.values() if r.node == node), None)


def _padded_stat(columns: dict[int, NDArray[Any]]) -> MetricStat:
    """A gauge over (node or rank, sample); those with fewer samples are padded with NaN."""
    if not columns:
        return MetricStat()
    table = np.full((len(columns), max(len(v) for v in columns.values()) or 1), np.nan)
    for line, values in zip(table, columns.values(), strict=True):
        line[: len(values)] = values
    return m.stat(tuple(columns), table)


def process_section(
    recording: RunRecording,
    facts: RunFacts,
    ranks: dict[int, RankRecording],
    memory: MemoryView | None,
) -> Section:
    """What the process rules say about the ranks while they trained."""
    keys = [k.key for k in c.PROCESS_METRICS]
    sampled = keys[:-1]
    samples_of = process_samples(recording, ranks)
    own: dict[int, dict[str, float | None]] = {}
    peaks: list[dict[str, float | None]] = []
    for rank, recorded in ranks.items():
        own[rank], highest = _mean_and_peak(samples_of.get(rank), sampled)
        own[rank][keys[-1]] = _reserved(recorded)
        peaks.append(highest)
    mean = {k: _worst([own[r][k] for r in own], k) for k in sampled}
    peak = {k: _worst([p[k] for p in peaks], k) for k in sampled}
    device = memory is not None and memory.memory == "device"
    peak[keys[-1]] = float(memory.reserved.max()) if device and memory is not None else None
    peak["gpu_mem_allocated_bytes"] = float(memory.peak.max()) if device and memory is not None else None
    samples = sum(len(rows) for rows in samples_of.values())
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
    stats = {k: _padded_stat({r: rows[k] for r, rows in samples_of.items()}) for k in sampled}
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


def process_samples(recording: RunRecording, ranks: dict[int, RankRecording]) -> dict[int, NDArray[np.void]]:
    """Each rank's own samples during training, from the monitor of its node."""
    found = {}
    for rank, recorded in ranks.items():
        rows = in_training(recording.gauges(recorded.node).process_rows, {rank: recorded})
        mine = rows[rows["pid"] == recorded.pid] if rows is not None else None
        if mine is not None and len(mine):
            found[rank] = mine
    return found


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
