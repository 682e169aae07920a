"""The numbers of both sides beside each other, which phases explain the change, and which rank
moved.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from traceml.analyze.compare_like import (
    SAME_WORK,
    SAMPLE,
    TOKEN,
    memory_kind,
    same_clock,
    work_per_step,
)
from traceml.schema import catalog
from traceml.schema.comparison import Cause, Change, Mover
from traceml.schema.summary import Member, MetricStat, Summary

WORTH_NAMING: Final = 0.10
"""A phase is named when it accounts for at least this share of the change, either way."""
APART: Final = 0.25
"""A rank moved by itself when its own work moved this share of the change further than the
median rank's.
"""

GROUPED: Final = tuple(p for p in catalog.PHASES if p.group == "compute")
PARTS: Final = (*((f"{p.key}_ms", p.label) for p in catalog.PHASES), ("wait_ms", "Wait"))
OWN_WORK_GROUPS: Final = ("input", "transfer", "compute", "other")
LABELS: Final = {"step_ms": "Total step", "wait_ms": "Wait", "gpu_util_percent": "GPU utilization"}
SMALL_PHASE: Final = 0.01
SMALL_POINTS: Final = 2.0
SMALL_CONTEXT: Final = 0.05
"""A phase below this share of a step, a gauge that moved less than this: no news."""
PEAKS: Final = ("step_memory",)
"""Sections whose metric is judged by the worst rank, not by the average."""


def changes(a: Sequence[Summary], b: Sequence[Summary]) -> dict[str, Change]:
    """`metrics`: the rows of the guide first, then the rest. A metric that neither side has is
    left out.
    """
    found: dict[str, Change] = {}
    phases = same_clock(a, b)
    for key in ("step_ms", "input_ms", "compute_ms", "wait_ms"):
        if phases or key == "step_ms":
            found[key] = _metric(a, b, "step_time", key, "ms")
    if phases:
        found["wait_share"] = _change("Wait share", "step_time", "share", _shares(a), _shares(b))
    for row in catalog.METRICS:
        name = row.key if row.section == "step_time" else f"{row.section}.{row.key}"
        if name in found or (row.section == "step_time" and row.unit == "ms" and not phases):
            continue
        if row.section == "step_memory" and _kinds(a) != _kinds(b):
            continue
        found[name] = _metric(a, b, row.section, row.key, row.unit)
    for key in _user_keys(a, b) if phases else ():
        label = key.removeprefix("user.").removesuffix("_ms")
        found[key] = _metric(a, b, "step_time", key, "ms", label)
    for name, key in ((SAMPLE, "samples_per_s"), (TOKEN, "tokens_per_s")):
        found[f"{name}s_per_step"] = _work(a, b, f"{name.title()}s a step", key)
    found["duration_s"] = _change("Duration", "run", "s", _durations(a), _durations(b))
    return {
        key: replace(change, notable=_is_notable(key, change, found["step_ms"]))
        for key, change in found.items()
        if change.a is not None or change.b is not None or key == "step_ms"
    }


def _is_notable(key: str, change: Change, step: Change) -> bool:
    """Whether a short report should show this row."""
    largest = max(change.a or 0.0, change.b or 0.0)
    if key == "step_ms":
        return True
    if largest == 0:
        return False
    if key.endswith("_per_step"):
        return change.delta_share is not None and abs(change.delta_share) > SAME_WORK
    if change.section == "step_time" and change.unit == "ms":
        return largest >= SMALL_PHASE * max(step.a or 0.0, step.b or 0.0)
    if change.delta is None or change.section not in ("system", "process"):
        return True
    if change.unit == "percent":
        return abs(change.delta) >= SMALL_POINTS
    return change.delta_share is None or abs(change.delta_share) >= SMALL_CONTEXT


def mean(values: Sequence[float | None]) -> float | None:
    """The mean over the runs of a side; one run without it leaves the side without it."""
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _metric(
    a: Sequence[Summary], b: Sequence[Summary], section: str, key: str, unit: str, label: str = ""
) -> Change:
    row = next((m for m in catalog.METRICS if m.key == key and m.section == section), None)
    return _change(
        label or LABELS.get(key) or (row.label if row else key),
        section,
        unit,
        [_value(run, section, key) for run in a],
        [_value(run, section, key) for run in b],
    )


def _value(run: Summary, section: str, key: str) -> float | None:
    stat: MetricStat | None = getattr(run, section).metrics.get(key)
    if stat is None:
        return None
    return stat.worst.value if section in PEAKS else stat.average


def _change(
    label: str, section: str, unit: str, a: Sequence[float | None], b: Sequence[float | None]
) -> Change:
    one, other = mean(a), mean(b)
    delta = other - one if one is not None and other is not None else None
    ratio = delta / one if delta is not None and one and unit not in ("share", "percent", "c") else None
    return Change(label, section, unit, one, other, delta, ratio)


def _shares(runs: Sequence[Summary]) -> list[float | None]:
    return [run.step_time.metrics.get("wait_ms", MetricStat()).share for run in runs]


def _kinds(runs: Sequence[Summary]) -> set[str | None]:
    return {memory_kind(run) for run in runs}


def _durations(runs: Sequence[Summary]) -> list[float | None]:
    return [run.run.duration_s for run in runs]


def _work(a: Sequence[Summary], b: Sequence[Summary], label: str, key: str) -> Change:
    return _change(
        label,
        "step_time",
        "count",
        [work_per_step(r, key) for r in a],
        [work_per_step(r, key) for r in b],
    )


def _user_keys(a: Sequence[Summary], b: Sequence[Summary]) -> list[str]:
    keys = {k for run in (*a, *b) for k in run.step_time.metrics if k.startswith("user.")}
    return sorted(keys)


# ---- what explains the change -------------------------------------------------------------------


def causes(
    a: Sequence[Summary],
    b: Sequence[Summary],
    found: dict[str, Change],
    rank: int | None,
    work: float = 1.0,
) -> list[Cause]:
    """Phases by how much of the step's change they account for; of one rank when that rank
    moved by itself.
    """
    if not same_clock(a, b):
        return []
    if rank is not None:
        one, other = _rank_metrics(a, rank), _rank_metrics(b, rank)
    else:
        one = {key: c.a for key, c in found.items()}
        other = {key: c.b for key, c in found.items()}
    other = {key: None if value is None else value / work for key, value in other.items()}
    whole = _delta(one, other, "step_ms")
    if not whole:
        return []
    named = [*PARTS, *((k, _user_label(k)) for k in _user_keys(a, b))]
    parts = [
        Cause(key.removesuffix("_ms"), label, delta, delta / whole, rank)
        for key, label in named
        if (delta := _delta(one, other, key)) is not None
    ]
    parts = _compute_as_one(parts)
    return sorted((p for p in parts if abs(p.share) >= WORTH_NAMING), key=lambda p: -p.share)


def _user_label(key: str) -> str:
    return key.removeprefix("user.").removesuffix("_ms")


def _compute_as_one(parts: list[Cause]) -> list[Cause]:
    """Forward, backward and optimizer that move together are one cause; one of them alone is
    named itself.
    """
    compute = {p.key for p in GROUPED}
    inner = [p for p in parts if p.phase in compute]
    total = sum(p.delta_ms for p in inner)
    alike = [p for p in inner if p.delta_ms * total > 0 and abs(p.share) >= WORTH_NAMING / 2]
    if len(alike) < 2:
        return parts
    whole = Cause("compute", "Compute", total, sum(p.share for p in inner), inner[0].rank)
    return [p for p in parts if p.phase not in compute] + [whole]


def _delta(one: dict[str, float | None], other: dict[str, float | None], key: str) -> float | None:
    before, after = one.get(key), other.get(key)
    return after - before if before is not None and after is not None else None


def _rank_metrics(runs: Sequence[Summary], rank: int) -> dict[str, float | None]:
    members = [run.step_time.ranks.get(str(rank), Member()).metrics for run in runs]
    keys = {key for metrics in members for key in metrics}
    return {key: mean([metrics.get(key) for metrics in members]) for key in keys}


# ---- who moved ----------------------------------------------------------------------------------


def movers(a: Sequence[Summary], b: Sequence[Summary], found: dict[str, Change]) -> list[Mover]:
    """The rank (or the node) whose own work moved apart from the others', in distributed runs.

    Waiting for others is not own work. A file that does not tell it from backward has its
    backward left out.
    """
    ranks = _common_ranks(a, b)
    step = found.get("step_ms")
    if len(ranks) < 2 or not same_clock(a, b) or step is None or not step.delta:
        return []
    before = {rank: _rank_metrics(a, rank) for rank in ranks}
    after = {rank: _rank_metrics(b, rank) for rank in ranks}
    keys = _own_keys([*before.values(), *after.values()])
    moved = {rank: sum(_delta(before[rank], after[rank], key) or 0.0 for key in keys) for rank in ranks}
    typical = statistics.median_low(moved.values())
    apart = [r for r in ranks if abs(moved[r] - typical) >= APART * abs(step.delta)]
    if not apart or len(apart) > len(ranks) / 2:
        return []
    node = _node_of(apart, ranks, b)
    groups = [apart] if node is not None else [[r] for r in apart]
    rows = [_mover(group, node, keys, before, after, ranks) for group in groups]
    return sorted(rows, key=lambda m: -abs(m.delta_ms))[:4]


def _mover(
    group: list[int],
    node: int | None,
    keys: list[str],
    before: dict[int, dict[str, float | None]],
    after: dict[int, dict[str, float | None]],
    ranks: list[int],
) -> Mover:
    def moved(rank: int, key: str) -> float:
        return _delta(before[rank], after[rank], key) or 0.0

    others = [r for r in ranks if r not in group]
    key = max(keys, key=lambda k: abs(sum(moved(r, k) for r in group)))
    one = statistics.fmean(before[r].get(key) or 0.0 for r in group)
    other = statistics.fmean(after[r].get(key) or 0.0 for r in group)
    label = dict(PARTS)[key]
    rest = statistics.median(moved(r, key) for r in others)
    return Mover(group, node, key.removesuffix("_ms"), label, one, other, other - one, rest)


def _own_keys(metrics: list[dict[str, float | None]]) -> list[str]:
    keys = [f"{p.key}_ms" for p in catalog.PHASES if p.group in OWN_WORK_GROUPS]
    sync, backward = (f"{catalog.PHASES[i].key}_ms" for i in (catalog.SYNC, catalog.BACKWARD))
    if any(m.get(sync) is None for m in metrics):
        keys.remove(backward)
    return [*keys, "wait_ms"]


def _common_ranks(a: Sequence[Summary], b: Sequence[Summary]) -> list[int]:
    sets = [{int(k) for k in run.step_time.ranks} for run in (*a, *b)]
    return sorted(sets[0]) if sets and all(s == sets[0] for s in sets) else []


def _node_of(apart: list[int], ranks: list[int], runs: Sequence[Summary]) -> int | None:
    """The node whose ranks these all are, when it has more than one and there are others."""
    members = runs[0].step_time.ranks
    nodes = {r: members[str(r)].identity.get("node_rank") for r in ranks}
    own = {nodes[r] for r in apart}
    if len(apart) < 2 or len(own) != 1:
        return None
    node = own.pop()
    whole = [r for r in ranks if nodes[r] == node]
    return node if isinstance(node, int) and whole == apart else None
