"""From numbers to one of five verdicts, with the reason and, when there is none, what would
settle it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from traceml.analyze.compare_crowd import contention, crowded_out
from traceml.analyze.compare_like import basis, memory_kind
from traceml.analyze.compare_metrics import mean
from traceml.analyze.compare_stats import CONFIDENCE, ENOUGH_FREE, LEAST_BLOCKS, Spread, spread
from traceml.schema import fmt
from traceml.schema.comparison import (
    BETTER,
    CHANGED,
    IMPROVEMENT,
    INCONCLUSIVE,
    MIXED,
    NO_CHANGE,
    REGRESSION,
    SAME,
    UNCLEAR,
    WORSE,
    Change,
    Interval,
    Shift,
)
from traceml.schema.summary import Finding, Primary, Summary

NOISE_FLOOR: Final = 0.03
"""Smaller changes of one run against one run are not told from noise, however narrow the
interval.
"""
RESOLUTION: Final = 0.05
"""NO CHANGE is said only when a change of this size would have been seen."""
BLIND_FLOOR: Final = 0.20
"""Without block means there is no interval: only a change this large is called one."""
BLIND_FEWEST_STEPS: Final = 20
MEMORY_SHARE: Final = {"device": 0.10, "rss": 0.20}
MEMORY_BYTES: Final = {"device": 128e6, "rss": 256e6}
"""A memory change counts from this share and this size on; resident memory is the noisier one."""
SEVERAL: Final = "`traceml compare --a a1 a2 a3 --b b1 b2 b3`"
SEVERITY: Final = {"info": 0, "warn": 1, "crit": 2}
UNKNOWN_KINDS: Final = frozenset({"NO_DATA", "WARMUP", "INCOMPLETE_DATA", "NO_GPU"})


def judge_step_time(a: Sequence[Summary], b: Sequence[Summary]) -> Interval:
    """Did the typical step get slower, faster, neither, or can that not be told."""
    per, work = basis(a, b)
    blocks_a, blocks_b = [_blocks(run) for run in a], [_blocks(run) for run in b]
    found = spread(blocks_a, [[v / work for v in run] for run in blocks_b])
    crowded = max((contention(run) for run in (*a, *b)), default=0.0)
    if found is None:
        return _judge_blind(a, b, per, work, crowded)
    floor = NOISE_FLOOR * math.sqrt((1 / len(a) + 1 / len(b)) / 2)
    low, high = _widened(found, a, b)
    return Interval(
        basis=per,
        a_ms=found.a_value,
        b_ms=found.b_value,
        delta_share=found.delta_share,
        low_share=low,
        high_share=high,
        confidence=CONFIDENCE,
        noise_floor_share=floor,
        run_noise_share=found.run_noise_share,
        a_blocks=found.a_blocks,
        b_blocks=found.b_blocks,
        contention_share=crowded,
        change=decide(found.delta_share, low, high, floor),
    )


def decide(delta: float, low: float, high: float, floor: float) -> str:
    """The rule: sure of the sign and above the floor, or below it and sharp enough to say so."""
    if abs(delta) >= floor and (low > 0 or high < 0):
        return WORSE if delta > 0 else BETTER
    if abs(delta) < floor and (high - low) / 2 <= RESOLUTION:
        return SAME
    return UNCLEAR


def _widened(found: Spread, a: Sequence[Summary], b: Sequence[Summary]) -> tuple[float, float]:
    """The interval, with what a crowded machine may have added to either side taken back at its
    ends.
    """
    alone_a, alone_b = crowded_out(a, b), crowded_out(b, a)
    if len(a) + len(b) - 2 >= ENOUGH_FREE:  # what both sides had shows in how their runs differ
        alone_a, alone_b = min(alone_a / alone_b, 1.0), min(alone_b / alone_a, 1.0)
    return (1 + found.low_share) * alone_b - 1, (1 + found.high_share) / alone_a - 1


def _blocks(run: Summary) -> list[float]:
    metrics = run.blocks.get("metrics") or {}
    return [v for v in metrics.get("step_ms", []) if v is not None and v > 0]


def _judge_blind(
    a: Sequence[Summary], b: Sequence[Summary], per: str, work: float, crowded: float
) -> Interval:
    one, other = mean([_average(run) for run in a]), mean([_average(run) for run in b])
    if not one or not other:
        return Interval(basis=per, a_ms=one or None, b_ms=other or None, contention_share=crowded)
    delta = other / work / one - 1
    floor = max(BLIND_FLOOR, crowded)
    enough = all((steps_of(run) or 0) >= BLIND_FEWEST_STEPS for run in (*a, *b))
    change = UNCLEAR
    if enough and abs(math.log1p(delta)) >= math.log1p(floor):
        change = WORSE if delta > 0 else BETTER
    return Interval(
        basis=per,
        a_ms=one,
        b_ms=other / work,
        delta_share=delta,
        noise_floor_share=floor,
        a_blocks=sum(len(_blocks(run)) for run in a),
        b_blocks=sum(len(_blocks(run)) for run in b),
        contention_share=crowded,
        change=change,
    )


def _average(run: Summary) -> float | None:
    stat = run.step_time.metrics.get("step_ms")
    return stat.average if stat is not None else None


def steps_of(run: Summary) -> int | None:
    """Steps that the numbers are over."""
    found = run.step_time.window.get("num_steps") or run.run.steps.get("analyzed")
    return found if isinstance(found, int) else None


# ---- memory and diagnoses -----------------------------------------------------------------------


def judge_memory(a: Sequence[Summary], b: Sequence[Summary], metrics: dict[str, Change], shift: Shift) -> str:
    """Did memory get better or worse: by its peak, and by what its diagnosis says."""
    kinds = {memory_kind(run) for run in (*a, *b)}
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind not in MEMORY_SHARE:
        return UNCLEAR
    peak = metrics.get("step_memory.peak_allocated_bytes" if kind == "device" else "step_memory.rss_bytes")
    if peak is None or peak.delta is None or peak.delta_share is None:
        return UNCLEAR
    large = abs(peak.delta_share) >= MEMORY_SHARE[kind] and abs(peak.delta) >= MEMORY_BYTES[kind]
    by_peak = (WORSE if peak.delta > 0 else BETTER) if large else SAME
    by_diagnosis = shift.change if shift.change in (BETTER, WORSE) else SAME
    if SAME in (by_peak, by_diagnosis):
        return by_diagnosis if by_peak == SAME else by_peak
    return by_peak if by_peak == by_diagnosis else CHANGED


def shift_of(a: Sequence[Finding | Primary], b: Sequence[Finding | Primary]) -> Shift:
    """A diagnosis before and after. Several runs of a side that disagree are shown as they are."""
    known = [[f for f in side if f.kind not in UNKNOWN_KINDS] for side in (a, b)]
    label_a, label_b = _label(a), _label(b)
    if not known[0] or not known[1]:
        return Shift(label_a, label_b, UNCLEAR)
    before, after = (max(SEVERITY.get(f.severity, 0) for f in side) for side in known)
    if label_a == label_b and before == after:
        return Shift(label_a, label_b, SAME)
    change = BETTER if after < before else WORSE if after > before else CHANGED
    return Shift(label_a, label_b, change)


def _label(side: Sequence[Finding | Primary]) -> str | None:
    labels = list(dict.fromkeys(f.status for f in side))
    return " / ".join(labels) if labels else None


# ---- the verdict --------------------------------------------------------------------------------


def verdict(step_time: str, memory: str) -> str:
    """One word for both. Memory that got worse is a regression even when the step did not move."""
    if step_time == UNCLEAR:
        return INCONCLUSIVE
    ways = {step_time, memory}
    if memory == CHANGED or (BETTER in ways and WORSE in ways):
        return MIXED
    if WORSE in ways:
        return REGRESSION
    return IMPROVEMENT if BETTER in ways else NO_CHANGE


def settle(a: Sequence[Summary], b: Sequence[Summary], interval: Interval) -> str:
    """What would make an inconclusive comparison conclusive."""
    for side, runs in (("A", a), ("B", b)):
        if any(not _average(run) for run in runs):
            return f"{side} has no step times. Run it again until some steps complete."
    if interval.low_share is None or interval.high_share is None:
        return _settle_blind(a, b)
    several = min(len(a), len(b)) >= 3
    more = "more runs a side" if several else f"three or more alternating runs a side: {SEVERAL}"
    if interval.contention_share:
        return f"Repeat both on a machine that does nothing else, or give {more}."
    width = (interval.high_share - interval.low_share) / 2
    wanted = max(RESOLUTION, abs(interval.delta_share or 0.0)) * 0.8
    factor = (width / wanted) ** 2
    longer = f"about {math.ceil(factor)} times as many steps, or " if 1 < factor <= 8 else ""
    return (
        f"Changes below {fmt.share(width)} do not show in runs as noisy as these. "
        f"Give {'' if several else longer}{more}."
    )


def _settle_blind(a: Sequence[Summary], b: Sequence[Summary]) -> str:
    for side, runs in (("A", a), ("B", b)):
        fewest = min(steps_of(run) or 0 for run in runs)
        if fewest < LEAST_BLOCKS or (fewest < BLIND_FEWEST_STEPS and not any(map(_blocks, runs))):
            return f"{side} has {fewest} steps to compare. Run both for 100 steps or more."
    without = [s for s, runs in (("A", a), ("B", b)) if not all(map(_blocks, runs))]
    return (
        f"No block means in {' and '.join(without) or 'the files'}, so there is no interval, and "
        f"averages are believed only from {fmt.share(BLIND_FLOOR)} on. Record both again with this "
        "version."
    )
