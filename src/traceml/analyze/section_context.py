"""The system and process sections of the summary: what the gauges say about the time of training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

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

Rows: TypeAlias = NDArray[np.void]
Floats: TypeAlias = NDArray[np.float64]


def in_training(rows: Rows | None, ranks: Iterable[RankRecording]) -> Rows | None:
    """Samples from the first step's begin to the last step's end, if there are any; else all of them."""
    lit = [(r.begin_ns, r.end_ns) for r in ranks if len(r.rows)]
    if rows is None or not lit:
        return rows
    return _between(rows, min(b for b, _ in lit if b is not None), max(e for _, e in lit if e is not None))


def _between(rows: Rows, begin_ns: int, end_ns: int) -> Rows:
    """Samples are in the order of time."""
    begin, end = np.searchsorted(rows["time_ns"], [begin_ns, end_ns + 1])
    return rows[begin:end] if end > begin else rows


def padded(columns: Sequence[Rows], key: str) -> Floats:
    """A gauge over (node or rank, sample); those with fewer samples are padded with NaN."""
    table = np.full((len(columns), max((len(rows) for rows in columns), default=0) or 1), np.nan)
    for line, rows in zip(table, columns, strict=True):
        line[: len(rows)] = rows[key]
    return table


def _on_cpu(ranks: dict[int, RankRecording]) -> bool:
    return all(r.header.get("device", {}).get("type", "cpu") == "cpu" for r in ranks.values())


def system_section(recording: RunRecording, facts: RunFacts, ranks: dict[int, RankRecording]) -> Section:
    """What the system rules say about the machines while they trained."""
    keys = [k.key for k in c.SYSTEM_METRICS]
    tables: dict[int, Rows] = {}
    here = by_node(ranks)
    for node in (0, *recording.other_nodes):
        rows = in_training(recording.gauges(node).system_rows, here.get(node, ()))
        if rows is not None and len(rows):
            tables[node] = rows
    gauges = {k: padded(list(tables.values()), k) for k in keys}
    means = {k: m.numbers(m.row_means(table)) for k, table in gauges.items()}
    mean = {k: _worst(means[k], k) for k in keys}
    peak = {k: _worst(m.numbers(m.row_peaks(table)), k) for k, table in gauges.items()}
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
        metrics={k: m.stat(tuple(tables), table) for k, table in gauges.items()},
        nodes={
            str(n): Member({"host": _host(n, facts, here.get(n, []))}, {k: means[k][i] for k in keys})
            for i, n in enumerate(tables)
        },
    )


def _worst(values: list[float | None], key: str) -> float | None:
    """Over nodes: the highest, but the mean for how busy the GPUs are."""
    known = [v for v in values if v is not None]
    if not known:
        return None
    return sum(known) / len(known) if key == "gpu_util_percent" else max(known)


def _host(node: int, facts: RunFacts, here: list[RankRecording]) -> str | None:
    if node == 0:
        return facts.environment.get("host")
    return str(here[0].identity.get("host")) if here else None


def process_section(
    recording: RunRecording,
    facts: RunFacts,
    ranks: dict[int, RankRecording],
    memory: MemoryView | None,
    samples: dict[int, Rows] | None = None,
) -> Section:
    """What the process rules say about the ranks while they trained."""
    samples_of = process_samples(recording, ranks) if samples is None else samples
    keys = [k.key for k in c.PROCESS_METRICS]
    sampled = keys[:-1]
    sampled_ranks = tuple(samples_of)
    gauges = {k: padded(list(samples_of.values()), k) for k in sampled}
    means = m.rank_means(sampled_ranks, {k: (table, 1.0) for k, table in gauges.items()})
    nothing = dict.fromkeys(sampled)
    own = {r: {**means.get(r, nothing), keys[-1]: _reserved(x)} for r, x in ranks.items()}
    mean = {k: _worst([own[r][k] for r in own], k) for k in sampled}
    peak = {k: _worst(m.numbers(m.row_peaks(table)), k) for k, table in gauges.items()}
    device = memory is not None and memory.memory == "device"
    peak[keys[-1]] = float(memory.reserved.max()) if device and memory is not None else None
    peak["gpu_mem_allocated_bytes"] = float(memory.peak.max()) if device and memory is not None else None
    count = sum(len(rows) for rows in samples_of.values())
    view = ContextView(
        mean,
        peak,
        members={k: {r: v for r, v in ((r, own[r][k]) for r in own) if v is not None} for k in keys},
        cores=facts.cores,
        ram_total=ram_total(recording.system_rows),
        gpu_capacity=memory.capacity if device and memory is not None else None,
        on_cpu=_on_cpu(ranks),
        samples=count,
    )
    stats = {k: m.stat(sampled_ranks, table) for k, table in gauges.items()}
    held = np.array([[v if (v := own[r][keys[-1]]) is not None else np.nan] for r in own], dtype=float)
    stats[keys[-1]] = m.stat(tuple(own), held) if own else MetricStat()
    findings = diagnose_context(view, PROCESS_RULES, "The training processes show no pressure.")
    return Section(
        findings[0],
        findings,
        window={"samples": count},
        metrics=stats,
        ranks={str(r): Member(dict(ranks[r].identity), own[r]) for r in own},
    )


def process_samples(recording: RunRecording, ranks: dict[int, RankRecording]) -> dict[int, Rows]:
    """Each rank's own samples while its node trained, from the monitor of its node."""
    by_pid = {
        node: _split(in_training(recording.gauges(node).process_rows, here))
        for node, here in by_node(ranks).items()
    }
    found = {rank: by_pid[recorded.node].get(recorded.pid) for rank, recorded in ranks.items()}
    return {rank: rows for rank, rows in found.items() if rows is not None}


def by_node(ranks: dict[int, RankRecording]) -> dict[int, list[RankRecording]]:
    """The ranks of each node."""
    found: dict[int, list[RankRecording]] = {}
    for recorded in ranks.values():
        found.setdefault(recorded.node, []).append(recorded)
    return found


def _split(rows: Rows | None) -> dict[int, Rows]:
    """The samples of each process, in the order of time."""
    if rows is None or not len(rows):
        return {}
    order = np.argsort(rows["pid"], kind="stable")
    pids, begins = np.unique(rows["pid"][order], return_index=True)
    pieces = np.split(rows[order], begins[1:])
    return {int(pid): piece for pid, piece in zip(pids, pieces, strict=True)}


def _reserved(recorded: RankRecording) -> float | None:
    rows = recorded.rows
    if not len(rows) or not (rows["flags"][-1] & c.FLAG_DEVICE_MEMORY):
        return None
    before = int(recorded.earlier["peak_reserved_bytes"]) if recorded.earlier is not None else 0
    return float(max(before, int(rows["peak_reserved_bytes"].max())))


def gauge_series(
    rows: Rows | None,
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
