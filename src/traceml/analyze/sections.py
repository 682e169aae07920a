"""The sections of the summary: findings, window, metrics, and the numbers of each rank or node."""

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from traceml.analyze import metrics as m
from traceml.analyze.cores import CoreUse, trains_on_cpu
from traceml.analyze.diagnose import diagnose_gauges, diagnose_memory, diagnose_time
from traceml.analyze.rules.memory import MemoryView
from traceml.analyze.rules.system import GaugeView
from traceml.analyze.window import Floats, Window
from traceml.schema import catalog as c
from traceml.schema import fmt
from traceml.schema.recorded import RankRecording, RunFacts, RunRecording
from traceml.schema.summary import Finding, Identity, Member, MetricStat, Section, SectionWindow

ALL_BUSY_PERCENT: Final = 90.0
MORE_THAN_PIDS: Final = 1 << 40

Ranks: TypeAlias = dict[int, RankRecording]
Rows: TypeAlias = NDArray[np.void]
Times: TypeAlias = dict[int, tuple[int, int] | None]


# ---- gauge samples of many nodes or ranks --------------------------------------------------------


class Samples:
    """The samples of some members: `rows` sorted by member, `counts` of them each, possibly 0."""

    def __init__(self, members: tuple[int, ...], rows: Rows | None, counts: NDArray[np.int64]) -> None:
        self.members = members
        self.total = 0 if rows is None else len(rows)
        self._rows = rows
        self._shape = (len(members), max(counts.tolist(), default=0) or 1)
        self._member = np.repeat(np.arange(len(members)), counts)
        self._place = np.arange(self.total) - np.repeat(np.cumsum(counts) - counts, counts)

    def table(self, key: str) -> Floats:
        """One gauge; members with fewer samples are padded with NaN."""
        table = np.full(self._shape, np.nan)
        if self._rows is not None:
            table[self._member, self._place] = self._rows[key]
        return table


def system_samples(recording: RunRecording, ranks: Ranks, when: Times) -> Samples:
    """The samples of one node per machine while it trained: under Slurm each task is a node to us, and
    several tasks share a machine."""
    of_node = {r.node: (r.identity.host, r.identity.node_rank) for r in ranks.values()}
    first: dict[object, int] = {}
    for node in recording.nodes:
        first.setdefault(of_node.get(node, node), node)
    found = _in_training({node: recording.gauges(node).system_rows for node in first.values()}, when)
    counts = np.array([len(rows) for rows in found.values()], dtype=np.int64)
    return Samples(tuple(found), _concatenated(list(found.values())), counts)


def process_samples(recording: RunRecording, ranks: Ranks, when: Times) -> Samples:
    """The samples of each rank while its node trained, from the monitor of its node."""
    by_node = _in_training({node: recording.gauges(node).process_rows for node in when}, when)
    every = _concatenated(list(by_node.values()))
    if every is None:
        return Samples(tuple(ranks), None, np.zeros(len(ranks), dtype=np.int64))
    nodes = np.repeat(np.array(list(by_node), dtype=np.int64), [len(rows) for rows in by_node.values()])
    keys = nodes * MORE_THAN_PIDS + every["pid"].astype(np.int64)
    wanted = np.array([r.node * MORE_THAN_PIDS + r.pid for r in ranks.values()], dtype=np.int64)
    order = np.argsort(wanted, kind="stable")
    at = order[np.minimum(np.searchsorted(wanted[order], keys), len(order) - 1)]
    owner = np.where(wanted[at] == keys, at, -1)
    by_owner = np.argsort(owner, kind="stable")[int(np.sum(owner < 0)) :]
    counts = np.bincount(owner[by_owner], minlength=len(ranks))
    return Samples(tuple(ranks), every[by_owner], counts)


def _concatenated(pieces: Sequence[Rows]) -> Rows | None:
    """All rows in one array; copied as bytes, because column by column is slow for many small pieces."""
    if not pieces:
        return None
    first = pieces[0].dtype
    if any(p.dtype != first or not p.flags.c_contiguous for p in pieces):
        return np.concatenate(pieces)
    return np.concatenate([p.view(np.uint8) for p in pieces]).view(first)


def training_times(ranks: Ranks) -> Times:
    """For each node with ranks: when its first step began and its last one ended; None without a step."""
    found: Times = {}
    for recorded in ranks.values():
        begin, end, known = recorded.begin_ns, recorded.end_ns, found.get(recorded.node)
        if not len(recorded.rows) or begin is None or end is None:
            found.setdefault(recorded.node, None)
        else:
            found[recorded.node] = (min(begin, known[0]), max(end, known[1])) if known else (begin, end)
    return found


def _in_training(by_node: dict[int, Rows | None], when: Times) -> dict[int, Rows]:
    """The samples of each node between these times; all of its samples if there are none in between."""
    found = {}
    for node, rows in by_node.items():
        if rows is not None and len(rows):
            times = when.get(node)
            begin, end = np.searchsorted(rows["time_ns"], [times[0], times[1] + 1]) if times else (0, 0)
            found[node] = rows[begin:end] if end > begin else rows
    return found


# ---- step time -----------------------------------------------------------------------------------


def time_section(window: Window, ranks: Ranks, most: int | None = None) -> Section:
    """The step-time findings of this window and their numbers; lists at most about `most` ranks."""
    table = m.step_time_table(window)
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
    return _section(diagnose_time(window), looked_at, m.step_time_metrics(table), table, ranks, most)


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
    fullest = view.peak[int(np.argmax(view.peak.max(axis=1)))]
    window = SectionWindow(
        start_step=int(view.steps[0]),
        end_step=int(view.steps[-1]),
        num_steps=len(view.steps),
        memory=view.memory,
        capacity_bytes=float(view.capacities.min()) if view.capacities is not None else None,
        head_tail_delta_bytes=float(fullest[-1] - fullest[0]),
    )
    return _section(findings, window, metrics, table, ranks, most)


# ---- system and process -------------------------------------------------------------------------


def system_section(
    recording: RunRecording, facts: RunFacts, ranks: Ranks, when: Times, use: CoreUse
) -> Section:
    """The system findings of the machines while they trained, and their numbers."""
    samples = system_samples(recording, ranks, when)
    table = m.Table(samples.members, {k.key: (samples.table(k.key), 1.0) for k in c.SYSTEM_METRICS})
    mean, peak = _worst(table.means), _worst(table.peaks())
    on_cpu = trains_on_cpu(ranks.values())
    view = GaugeView(mean, peak, cores=facts.cores, on_cpu=on_cpu, samples=samples.total, core_use=use)
    calm = "CPU, memory and GPU of the machine show no pressure."
    if (busy := mean["cpu_percent"]) is not None and busy >= ALL_BUSY_PERCENT:
        calm = f"All cores are busy ({fmt.percent(busy)}). Training on the CPU can cause that."
    elif peak["gpu_util_percent"] is None:
        calm = "CPU and memory of the machine show no pressure (no GPU seen)."
    findings = diagnose_gauges(view, "system", calm)
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
    recorded = list(ranks.values())
    on_cpu = trains_on_cpu(recorded)
    values = {k.key: (samples.table(k.key), 1.0) for k in sampled}
    held = [np.nan if on_cpu else _reserved(r) for r in recorded]
    table = m.Table(tuple(ranks), {**values, reserved.key: (np.array(held).reshape(-1, 1), 1.0)})
    peaks = table.peaks()
    peak = _worst(peaks)
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
    return _section(findings, SectionWindow(samples=samples.total), table.stats(), table, ranks, most)


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
