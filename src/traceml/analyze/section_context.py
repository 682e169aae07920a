"""The system and process sections of the summary: what the gauges say about the time of training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from traceml.analyze import metrics as m
from traceml.analyze.rules_context import PROCESS_RULES, SYSTEM_RULES, ContextView, diagnose_context
from traceml.analyze.rules_memory import MemoryView
from traceml.analyze.samples import Rows, Samples, Times, machines, system_samples
from traceml.analyze.section_memory import device_capacities, ram_totals
from traceml.schema import catalog as c
from traceml.schema import fmt
from traceml.schema.facts import RunFacts
from traceml.schema.recorded import RankRecording, RunRecording
from traceml.schema.summary import Member, Section

PER_RANK: Final = ("gpu_mem_used_bytes",)
"""What rules compare between ranks."""
ALL_BUSY_PERCENT: Final = 90.0


def _on_cpu(ranks: dict[int, RankRecording]) -> bool:
    return all(r.header.get("device", {}).get("type", "cpu") == "cpu" for r in ranks.values())


def system_section(
    recording: RunRecording, facts: RunFacts, ranks: dict[int, RankRecording], when: Times
) -> Section:
    """What the system rules say about the machines while they trained."""
    keys = [k.key for k in c.SYSTEM_METRICS]
    found = system_samples(recording, machines(recording, ranks), when)
    gauges = {k: found.table(k) for k in keys}
    means = {k: m.numbers(m.row_means(table)) for k, table in gauges.items()}
    mean = {k: _worst(means[k], k) for k in keys}
    peak = {k: _worst(m.numbers(m.row_peaks(table)), k) for k, table in gauges.items()}
    view = ContextView(mean, peak, cores=facts.cores, on_cpu=_on_cpu(ranks), samples=found.total)
    cpu = mean.get("cpu_percent")
    calm = "CPU, memory and GPU of the machine show no pressure."
    if cpu is not None and cpu >= ALL_BUSY_PERCENT:
        calm = f"All cores are busy ({fmt.percent(cpu)}), as they may be where the CPU trains."
    elif peak.get("gpu_util_percent") is None:
        calm = "CPU and memory of the machine show no pressure (no GPU seen)."
    findings = diagnose_context(view, SYSTEM_RULES, calm)
    hosts = {recorded.node: str(recorded.identity.get("host")) for recorded in ranks.values()}
    return Section(
        findings[0],
        findings,
        window={"samples": found.total},
        metrics={k: m.stat(found.members, table) for k, table in gauges.items()},
        nodes={
            str(n): Member(
                {"host": facts.environment.get("host") if n == 0 else hosts.get(n)},
                {k: means[k][i] for k in keys},
            )
            for i, n in enumerate(found.members)
        },
    )


def _worst(values: list[float | None], key: str) -> float | None:
    """Over nodes: the highest, but the mean for how busy the GPUs are."""
    known = [v for v in values if v is not None]
    if not known:
        return None
    return sum(known) / len(known) if key == "gpu_util_percent" else max(known)


def process_section(
    recording: RunRecording,
    facts: RunFacts,
    ranks: dict[int, RankRecording],
    memory: MemoryView | None,
    samples: Samples,
    most: int | None = None,
) -> Section:
    """What the process rules say about the ranks while they trained; lists `most` of them."""
    keys = [k.key for k in c.PROCESS_METRICS]
    sampled, reserved_key = keys[:-1], keys[-1]
    gauges = {k: samples.table(k) for k in sampled}
    table = m.Table(samples.members, {k: (values, 1.0) for k, values in gauges.items()})
    means = {k: m.numbers(values) for k, values in table.means.items()}
    mean = {k: _worst(means[k], k) for k in sampled}
    peak = {k: _worst(m.numbers(m.row_peaks(values)), k) for k, values in gauges.items()}
    of = [ranks[r] for r in samples.members]
    peaks = {k: m.numbers(m.row_peaks(gauges[k])) for k in ("rss_bytes", "gpu_mem_used_bytes")}
    peak["rss_bytes"], ram = _fullest(peaks["rss_bytes"], ram_totals(of, recording))
    used, on_device = _fullest(peaks["gpu_mem_used_bytes"], device_capacities(of))
    peak["gpu_mem_used_bytes"] = used
    device = memory is not None and memory.memory == "device"
    peak[reserved_key] = float(memory.reserved.max()) if device and memory is not None else None
    peak["gpu_mem_allocated_bytes"] = float(memory.peak.max()) if device and memory is not None else None
    view = ContextView(
        mean,
        peak,
        members={k: _known(samples.members, means[k]) for k in PER_RANK},
        cores=facts.cores,
        ram_total=ram,
        gpu_capacity=on_device if device else None,
        on_cpu=_on_cpu(ranks),
        samples=samples.total,
    )
    findings = diagnose_context(view, PROCESS_RULES, "The training processes show no pressure.")
    held = {} if view.on_cpu else {r: _reserved(recorded) for r, recorded in ranks.items()}
    stats = table.stats()
    known = _known(tuple(held), list(held.values()))
    stats[reserved_key] = m.stat(tuple(known), np.array([[v] for v in known.values()]).reshape(-1, 1))
    chosen = m.listed(list(ranks), stats, findings, most)
    own, nothing = table.of_members(chosen), dict.fromkeys(sampled)
    return Section(
        findings[0],
        findings,
        window={"samples": samples.total},
        metrics=stats,
        ranks={
            str(r): Member(dict(ranks[r].identity), {**own.get(r, nothing), reserved_key: held.get(r)})
            for r in chosen
        },
    )


def _fullest(
    used: Sequence[float | None], there: Sequence[float | None]
) -> tuple[float | None, float | None]:
    """(in use, capacity) of the rank that has least left; the largest use where no capacity is known."""
    known = [(u, t) for u, t in zip(used, there, strict=True) if u is not None and t]
    if known:
        return max(known, key=lambda pair: pair[0] / pair[1])
    return max((u for u in used if u is not None), default=None), None


def _known(members: Sequence[int], values: Sequence[float | None]) -> dict[int, float]:
    return {r: v for r, v in zip(members, values, strict=True) if v is not None}


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
