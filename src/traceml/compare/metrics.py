"""The numbers of A and B next to each other, the phases that explain the change, the ranks that changed."""

import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from traceml.compare.like import SAME_WORK, SAMPLE, TOKEN, same_clock
from traceml.compare.side import Runs, average, mean, means, memory_kind, work_per_step
from traceml.schema import catalog
from traceml.schema.comparison import Cause, Change, Mover
from traceml.schema.summary import Member, MetricStat, Summary

WORTH_NAMING: Final = 0.10
"""A phase is named if it accounts for at least this share of the change, in either direction."""
APART: Final = 0.25
"""A rank changed on its own if it differs from the median rank by this share of the step's change."""
MOST_MOVERS: Final = 4

COMPUTE: Final = frozenset(p.key for p in catalog.PHASES if p.group == "compute")
PARTS: Final = {**{f"{p.key}_ms": p.label for p in catalog.PHASES}, "wait_ms": "Wait"}
"""What a step is made of, apart from user phases."""
LABELS: Final = {"step_ms": "Total step", "wait_ms": "Wait", "gpu_util_percent": "GPU utilization"}
NO_RATIO: Final = ("share", "percent", "c")
SMALL_PHASE: Final = 0.01
SMALL_POINTS: Final = 2.0
SMALL_CONTEXT: Final = 0.05
"""A phase below this share of a step, or a gauge that changed by less than this, is left out of the text."""

Values = dict[str, float | None]


def changes(a: Runs, b: Runs) -> dict[str, Change]:
    """The `metrics` of a comparison. A metric that neither side has is left out."""
    found: dict[str, Change] = {}

    def add(name: str, label: str, section: str, unit: str, of: Callable[[Summary], float | None]) -> None:
        one, other = means(a, b, of)
        delta = other - one if one is not None and other is not None else None
        ratio = delta / one if delta is not None and one and unit not in NO_RATIO else None
        if one is not None or other is not None or name == "step_ms":
            found[name] = Change(label, section, unit, one, other, delta, ratio)

    for row in catalog.METRICS:
        if _is_comparable(row, a, b):
            name = row.key if row.section == "step_time" else f"{row.section}.{row.key}"
            read = _peak if row.section == "step_memory" else partial(average, section=row.section)
            add(name, LABELS.get(row.key, row.label), row.section, row.unit, partial(read, key=row.key))
    if same_clock(a, b):
        parts = ("wait_share", "Wait share", "step_time", "share")
        add(*parts, lambda run: run.step_time.metrics.get("wait_ms", MetricStat()).share)
        for key, label in _user_phases(a, b).items():
            add(key, label, "step_time", "ms", partial(average, key=key))
    for noun in (SAMPLE, TOKEN):
        work = partial(work_per_step, rate=f"{noun}s_per_s")
        add(f"{noun}s_per_step", f"{noun.title()}s per step", "step_time", "count", work)
    add("duration_s", "Duration", "run", "s", lambda run: run.run.duration_s)
    return {k: replace(v, notable=_is_notable(k, v, found["step_ms"])) for k, v in found.items()}


def _is_comparable(row: catalog.Metric, a: Runs, b: Runs) -> bool:
    """Not so: phases on different clocks, and device memory against resident memory."""
    if row.section == "step_memory":
        return {memory_kind(run) for run in a} == {memory_kind(run) for run in b}
    is_phase = row.section == "step_time" and row.unit == "ms" and row.key != "step_ms"
    return not is_phase or same_clock(a, b)


def _is_notable(key: str, change: Change, step: Change) -> bool:
    """Whether a short report should show this row."""
    largest = max(change.a or 0.0, change.b or 0.0)
    if key == "step_ms" or largest == 0:
        return key == "step_ms"
    if key.endswith("_per_step"):
        return change.delta_share is not None and abs(change.delta_share) > SAME_WORK
    if change.section == "step_time" and change.unit == "ms":
        return largest >= SMALL_PHASE * max(step.a or 0.0, step.b or 0.0)
    if change.delta is None or change.section not in ("system", "process"):
        return True
    if change.unit == "percent":
        return abs(change.delta) >= SMALL_POINTS
    return change.delta_share is None or abs(change.delta_share) >= SMALL_CONTEXT


def _peak(run: Summary, key: str) -> float | None:
    return run.step_memory.metrics.get(key, MetricStat()).worst.value


def _user_phases(a: Runs, b: Runs) -> dict[str, str]:
    """The key and the name of each."""
    keys = sorted({key for run in (*a, *b) for key in run.step_time.metrics if key.startswith("user.")})
    return {key: key.removeprefix("user.").removesuffix("_ms") for key in keys}


# ---- which phases explain the change -------------------------------------------------------------


def causes(a: Runs, b: Runs, found: dict[str, Change], rank: int | None, work: float = 1.0) -> list[Cause]:
    """Phases, by the share of the step's change that they account for.

    If one rank changed on its own, its phases are meant. `work` is (work of B) / (work of A) per step.
    """
    if not same_clock(a, b):
        return []
    if rank is not None:
        one, other = _rank_metrics(a, rank), _rank_metrics(b, rank)
    else:
        one, other = {k: v.a for k, v in found.items()}, {k: v.b for k, v in found.items()}
    other = {key: None if value is None else value / work for key, value in other.items()}
    whole = _delta(one, other, "step_ms")
    if not whole:
        return []
    parts = [
        Cause(key.removesuffix("_ms"), label, delta, delta / whole, rank)
        for key, label in {**PARTS, **_user_phases(a, b)}.items()
        if (delta := _delta(one, other, key)) is not None
    ]
    named = [part for part in _compute_as_one(parts) if abs(part.share) >= WORTH_NAMING]
    return sorted(named, key=lambda part: -part.share)


def _compute_as_one(parts: list[Cause]) -> list[Cause]:
    """Forward, backward and optimizer are one cause if they change together. One alone keeps its name."""
    compute = [part for part in parts if part.phase in COMPUTE]
    total = sum(part.delta_ms for part in compute)
    together = [p for p in compute if p.delta_ms * total > 0 and abs(p.share) >= WORTH_NAMING / 2]
    if len(together) < 2:
        return parts
    whole = Cause("compute", "Compute", total, sum(p.share for p in compute), compute[0].rank)
    return [*(part for part in parts if part.phase not in COMPUTE), whole]


def _delta(one: Values, other: Values, key: str) -> float | None:
    before, after = one.get(key), other.get(key)
    return after - before if before is not None and after is not None else None


def _rank_metrics(runs: Runs, rank: int) -> Values:
    members = [run.step_time.ranks.get(str(rank), Member()).metrics for run in runs]
    keys = {key for metrics in members for key in metrics}
    return {key: mean([metrics.get(key) for metrics in members]) for key in keys}


# ---- which ranks changed -------------------------------------------------------------------------


def movers(a: Runs, b: Runs, found: dict[str, Change]) -> list[Mover]:
    """The ranks of a distributed run whose own work changed differently from the others' work.

    All ranks of one node are named as the node. Waiting for other ranks is not a rank's own work.
    """
    first, *rest = [{int(rank) for rank in run.step_time.ranks} for run in (*a, *b)]
    ranks, step = sorted(first), found["step_ms"]
    if any(others != first for others in rest) or len(ranks) < 2 or not same_clock(a, b) or not step.delta:
        return []
    before, after = ({rank: _rank_metrics(side, rank) for rank in ranks} for side in (a, b))
    keys = _own_work([*before.values(), *after.values()])
    deltas = {rank: {k: _delta(before[rank], after[rank], k) or 0.0 for k in keys} for rank in ranks}
    totals = {rank: sum(deltas[rank].values()) for rank in ranks}
    middle = statistics.median_low(totals.values()), statistics.median_high(totals.values())
    typical = min(middle, key=abs)  # of two ranks, the one that changed less
    apart = [rank for rank in ranks if abs(totals[rank] - typical) >= APART * abs(step.delta)]
    if not apart or len(apart) > len(ranks) / 2:
        return []
    nodes = {int(rank): member.identity.node_rank for rank, member in b[0].step_time.ranks.items()}
    whole = sorted(rank for rank in nodes if nodes[rank] == nodes[apart[0]])
    node = nodes[apart[0]] if len(apart) > 1 and whole == apart else None
    rows = []
    for group in [apart] if node is not None else [[rank] for rank in apart]:
        key = max(keys, key=lambda k: abs(sum(deltas[rank][k] for rank in group)))
        one, other = (statistics.fmean(side[r].get(key) or 0.0 for r in group) for side in (before, after))
        others = statistics.median(deltas[rank][key] for rank in ranks if rank not in group)
        rows.append(Mover(group, node, key.removesuffix("_ms"), PARTS[key], one, other, other - one, others))
    return sorted(rows, key=lambda mover: -abs(mover.delta_ms))[:MOST_MOVERS]


def _own_work(metrics: list[Values]) -> list[str]:
    """A rank's own work. Backward is left out where sync was not measured, because it may be waiting."""
    sync, backward = (f"{catalog.PHASES[i].key}_ms" for i in (catalog.SYNC, catalog.BACKWARD))
    unknown = any(values.get(sync) is None for values in metrics)
    return [key for key in PARTS if key != sync and not (key == backward and unknown)]
