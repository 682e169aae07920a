"""The sections of the summary: findings, window, metrics, and the numbers of each rank or node."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from traceml.analyze import metrics as m
from traceml.analyze.diagnose import diagnose_gauges, diagnose_memory, diagnose_time
from traceml.analyze.resource_views import GaugeView, MemoryView
from traceml.analyze.samples import Rows, Samples, Times, machines, system_samples
from traceml.analyze.window import Floats, Window
from traceml.schema import catalog as c
from traceml.schema import fmt
from traceml.schema.recorded import RankRecording, RunFacts, RunRecording
from traceml.schema.summary import Column, Finding, Identity, Member, MetricStat, Section, SectionWindow

ALL_BUSY_PERCENT: Final = 90.0
MOST_POINTS: Final = 300
"""Of a series for a chart."""

Ranks = dict[int, RankRecording]


def time_section(window: Window, ranks: Ranks, most: int | None = None) -> Section:
    """The step-time findings of this window and their numbers; lists at most about `most` ranks."""
    findings = diagnose_time(window)
    table = m.step_time_table(window)
    metrics = m.step_time_metrics(table)
    looked_at = SectionWindow(
        start_step=int(window.steps[0]) if window.count else None,
        end_step=int(window.steps[-1]) if window.count else None,
        num_steps=window.count,
        earlier_steps=window.earlier_steps,
        clock=window.clock,
        ranks=list(window.ranks),
        warmup_steps=len(window.warmup),
        first_step_ms=window.warmup[0] if window.warmup else None,
        input_inferred=window.input_inferred,
        loader_workers=window.workers,
    )
    return _section(findings, looked_at, metrics, table, ranks, most)


def _section(
    findings: list[Finding],
    window: SectionWindow,
    metrics: dict[str, MetricStat],
    table: m.Table,
    ranks: Ranks,
    most: int | None,
) -> Section:
    listed = table.of_members(m.members_to_list(table.members, metrics, findings, most))
    members = {str(r): Member(ranks[r].identity, values) for r, values in listed.items()}
    return Section(findings[0], findings, window, metrics, ranks=members)


# ---- step memory --------------------------------------------------------------------------------


def memory_view(ranks: Ranks, window: Window, recording: RunRecording, samples: Samples) -> MemoryView | None:
    """Device memory if every rank has it, otherwise the resident memory of the processes."""
    used = [ranks[r] for r in window.ranks]
    if not used or not window.count:
        return None
    on_device = not np.isnan(window.memory["peak_allocated_bytes"]).any()
    key = "peak_allocated_bytes" if on_device else "rss_bytes"
    read = ~np.isnan(window.memory[key]).any(axis=0)
    if not read.any():
        return None
    capacities = device_capacities(used) if on_device else ram_totals(used, recording)
    known = np.array([capacity for capacity in capacities if capacity])
    return MemoryView(
        ranks=window.ranks,
        steps=window.steps[read],
        memory="device" if on_device else "rss",
        # Steps whose memory was not read are left out: their 0 is not a measurement.
        values=window.memory if read.all() else {k: v[:, read] for k, v in window.memory.items()},
        capacities=known if len(known) == len(used) else None,
        workers={
            rank: held[~np.isnan(held)]
            for rank, held in zip(samples.members, samples.table("workers_bytes"), strict=True)
        },
    )


def device_capacities(ranks: Sequence[RankRecording]) -> list[float | None]:
    """The memory of each rank's device; None if unknown."""
    given = (r.header.get("device", {}).get("capacity_bytes") for r in ranks)
    return [float(v) if v else None for v in given]


def ram_totals(ranks: Sequence[RankRecording], recording: RunRecording) -> list[float | None]:
    """The memory of each rank's machine or container, from the bytes in use and their share, if known."""
    totals: dict[int, float | None] = {}
    for node in {r.node for r in ranks}:
        rows = recording.gauges(node).system_rows
        if rows is None or not len(rows) or not rows["ram_percent"][-1] > 0:
            totals[node] = None
        else:
            totals[node] = float(100 * rows["ram_bytes"][-1] / rows["ram_percent"][-1])
    return [totals[r.node] for r in ranks]


def memory_section(view: MemoryView | None, ranks: Ranks, most: int | None = None) -> Section:
    """The memory findings of this view and their numbers; lists at most about `most` ranks."""
    findings = diagnose_memory(view)
    if view is None:
        return Section(findings[0], findings, metrics={k.key: MetricStat() for k in c.STEP_MEMORY_METRICS})
    table = m.Table(view.ranks, {k: (v, 1.0) for k, v in view.values.items()})
    peaks = table.peaks()  # by which memory is judged
    metrics = {k: m.stat(view.ranks, v, peaks[k]) for k, v in view.values.items()}
    rises = view.peak[:, -1] - view.peak[:, 0]
    window = SectionWindow(
        start_step=int(view.steps[0]),
        end_step=int(view.steps[-1]),
        num_steps=len(view.steps),
        memory=view.memory,
        capacity_bytes=float(view.capacities.min()) if view.capacities is not None else None,
        head_tail_delta_bytes=float(rises[int(np.argmax(view.peak.max(axis=1)))]),
    )
    return _section(findings, window, metrics, table, ranks, most)


def memory_series(view: MemoryView | None) -> dict[str, Column]:
    """Peak memory for charts, at evenly spread steps."""
    if view is None:
        return {"steps": []}
    at = _evenly_spread(len(view.steps))
    return {
        "steps": view.steps[at].tolist(),
        "worst_bytes": view.peak.max(axis=0)[at].tolist(),
        "median_bytes": view.typical_peak[at].tolist(),
    }


def _evenly_spread(count: int) -> NDArray[np.int64]:
    return np.unique(np.linspace(0, count - 1, min(MOST_POINTS, count)).astype(int))


# ---- system and process -------------------------------------------------------------------------


def _on_cpu(ranks: Ranks) -> bool:
    return all(r.header.get("device", {}).get("type", "cpu") == "cpu" for r in ranks.values())


def system_section(recording: RunRecording, facts: RunFacts, ranks: Ranks, when: Times) -> Section:
    """The system findings of the machines while they trained, and their numbers."""
    samples = system_samples(recording, machines(recording, ranks), when)
    table = m.Table(samples.members, {k.key: (samples.table(k.key), 1.0) for k in c.SYSTEM_METRICS})
    mean, peak = _worst(table.means), _worst(table.peaks())
    view = GaugeView(mean, peak, cores=facts.cores, on_cpu=_on_cpu(ranks), samples=samples.total)
    findings = diagnose_gauges(view, "system", _calm(mean["cpu_percent"], peak["gpu_util_percent"]))
    means = {k: m.numbers(values) for k, values in table.means.items()}
    hosts = {recorded.node: recorded.identity.host for recorded in ranks.values()}
    hosts[0] = facts.environment.host
    return Section(
        findings[0],
        findings,
        window=SectionWindow(samples=samples.total),
        metrics=table.stats(),
        nodes={
            str(n): Member(Identity(host=hosts.get(n)), {k: values[i] for k, values in means.items()})
            for i, n in enumerate(samples.members)
        },
    )


def _calm(cpu_percent: float | None, gpu_percent: float | None) -> str:
    """The sentence about machines that show no pressure."""
    if cpu_percent is not None and cpu_percent >= ALL_BUSY_PERCENT:
        return f"All cores are busy ({fmt.percent(cpu_percent)}), as expected when training on the CPU."
    if gpu_percent is None:
        return "CPU and memory of the machine show no pressure (no GPU seen)."
    return "CPU, memory and GPU of the machine show no pressure."


def _worst(gauges: dict[str, Floats]) -> dict[str, float | None]:
    """Over members: the highest value of each gauge, but the mean of how busy the GPUs are."""
    found: dict[str, float | None] = {}
    for key, values in gauges.items():
        known = values[~np.isnan(values)]
        worst = known.mean() if key == "gpu_util_percent" and len(known) else known.max(initial=-np.inf)
        found[key] = m.number(float(worst))
    return found


def process_section(
    recording: RunRecording,
    facts: RunFacts,
    ranks: Ranks,
    memory: MemoryView | None,
    samples: Samples,
    most: int | None = None,
) -> Section:
    """The process findings of the ranks while they trained; lists at most about `most` ranks."""
    *sampled, reserved = c.PROCESS_METRICS
    on_cpu = _on_cpu(ranks)
    values = {k.key: (samples.table(k.key), 1.0) for k in sampled}
    held = [np.nan if on_cpu else _reserved(r) for r in ranks.values()]
    table = m.Table(tuple(ranks), {**values, reserved.key: (np.array(held).reshape(-1, 1), 1.0)})
    peaks = table.peaks()
    peak = _worst(peaks)
    recorded = list(ranks.values())
    peak["rss_bytes"], ram = _fullest(peaks["rss_bytes"], ram_totals(recorded, recording))
    peak["gpu_mem_used_bytes"], capacity = _fullest(peaks["gpu_mem_used_bytes"], device_capacities(recorded))
    device = memory if memory is not None and memory.memory == "device" else None
    peak["gpu_mem_reserved_bytes"] = float(device.reserved.max()) if device is not None else None
    peak["gpu_mem_allocated_bytes"] = float(device.peak.max()) if device is not None else None
    used = zip(ranks, m.numbers(table.means["gpu_mem_used_bytes"]), strict=True)
    view = GaugeView(
        _worst(table.means),
        peak,
        gpu_used_by_rank={r: v for r, v in used if v is not None},
        cores=facts.cores,
        ram_total=ram,
        gpu_capacity=capacity if device is not None else None,
        on_cpu=on_cpu,
        samples=samples.total,
    )
    findings = diagnose_gauges(view, "process", "The training processes show no pressure.")
    window = SectionWindow(samples=samples.total)
    return _section(findings, window, table.stats(), table, ranks, most)


def _fullest(used: Floats, capacities: Sequence[float | None]) -> tuple[float | None, float | None]:
    """(used, capacity) of the fullest rank; the largest use if no capacity is known."""
    whole = np.array([capacity or np.nan for capacity in capacities])
    shares = used / whole
    if not np.isnan(shares).all():
        at = int(np.nanargmax(shares))
        return float(used[at]), float(whole[at])
    return m.number(float(np.fmax.reduce(used, initial=-np.inf))), None


def _reserved(recorded: RankRecording) -> float:
    """The most device memory that the rank's allocator held; NaN if it was not read."""
    rows = recorded.rows
    if not len(rows) or not (rows["flags"][-1] & c.FLAG_DEVICE_MEMORY):
        return np.nan
    before = int(recorded.earlier["peak_reserved_bytes"]) if recorded.earlier is not None else 0
    return float(max(before, int(rows["peak_reserved_bytes"].max())))


def gauge_series(rows: Rows | None, begin_ns: int | None, metrics: tuple[c.Metric, ...]) -> dict[str, Column]:
    """Gauges for charts, at evenly spread times, in seconds since the run began. Of several processes at the
    same time, the highest value."""
    if rows is None or not len(rows):
        return {"seconds": []}
    rows = rows[np.argsort(rows["time_ns"], kind="stable")]
    times, first = np.unique(rows["time_ns"], return_index=True)
    at = _evenly_spread(len(times))
    origin = begin_ns if begin_ns is not None else int(times[0])
    series: dict[str, Column] = {"seconds": [round((int(t) - origin) / 1e9, 2) for t in times[at]]}
    for metric in metrics:
        if not np.isnan(rows[metric.key]).all():
            highest = np.fmax.reduceat(rows[metric.key], first)
            series[metric.key] = [m.number(float(v)) for v in highest[at]]
    return series
