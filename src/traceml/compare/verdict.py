"""From numbers to one of five verdicts, and what to do when the runs cannot settle it."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from traceml.compare.like import basis
from traceml.compare.side import Runs, average, contention, means, memory_kind, share_alone, steps_of
from traceml.compare.stats import CONFIDENCE, ENOUGH_DEGREES, MIN_BLOCKS, Spread, spread
from traceml.schema import comparison as c
from traceml.schema import fmt
from traceml.schema.comparison import Change, Interval, Shift
from traceml.schema.summary import Finding, Primary, Summary

NOISE_FLOOR: Final = 0.03
"""Between two single runs, a smaller change counts as noise, however narrow the interval is."""
MEAN_FLOOR: Final = 0.10
"""The mean step decides only about a larger change: two runs always differ in their few slowest steps."""
RESOLUTION: Final = 0.05
"""NO CHANGE is reported only if a change of this size would have been seen."""
NO_INTERVAL_FLOOR: Final = 0.20
NO_INTERVAL_STEPS: Final = 20
"""Without block means there is no interval. Then only a change this large, over this many steps, counts."""
MEMORY_SHARE: Final = {"device": 0.10, "rss": 0.20}
MEMORY_BYTES: Final = {"device": 128e6, "rss": 256e6}
"""A memory change counts if it reaches both this share and this size. Resident memory is noisier."""
PEAK: Final = {"device": "step_memory.peak_allocated_bytes", "rss": "step_memory.rss_bytes"}
SEVERAL: Final = "`traceml compare --a a1 a2 a3 --b b1 b2 b3`"
SEVERITY: Final = {"info": 0, "warn": 1, "crit": 2}
UNKNOWN_KINDS: Final = frozenset({"NO_DATA", "WARMUP", "INCOMPLETE_DATA", "NO_GPU"})


def judge_step_time(a: Runs, b: Runs) -> Interval:
    """Whether the typical step got slower, faster, neither, or whether that is unclear. Where it did not
    clearly change, the mean step decides if it did: slow steps came or went."""
    per, work = basis(a, b)
    blocks_a, blocks_b = ([_blocks(run) for run in side] for side in (a, b))
    frame = Interval(
        basis=per,
        a_blocks=sum(map(len, blocks_a)),
        b_blocks=sum(map(len, blocks_b)),
        contention_share=max(contention(run) for run in (*a, *b)),
    )
    scaled_b = [[v / work for v in run] for run in blocks_b]
    found = spread(blocks_a, scaled_b)
    if found is None:
        return _judge_averages(a, b, work, frame)
    floor = NOISE_FLOOR * math.sqrt((1 / len(a) + 1 / len(b)) / 2)
    typical = _judged(found, a, b, floor, frame)
    if typical.change in (c.BETTER, c.WORSE):
        return typical
    found = spread(blocks_a, scaled_b, np.mean)
    mean = None if found is None else _judged(found, a, b, MEAN_FLOOR, replace(frame, statistic=c.MEAN))
    return mean if mean is not None and mean.change in (c.BETTER, c.WORSE) else typical


def _judged(found: Spread, a: Runs, b: Runs, floor: float, frame: Interval) -> Interval:
    low, high = _widened(found, a, b)
    return replace(
        frame,
        a_ms=found.a_value,
        b_ms=found.b_value,
        delta_share=found.delta_share,
        low_share=low,
        high_share=high,
        confidence=CONFIDENCE,
        noise_floor_share=floor,
        run_noise_share=found.run_noise_share,
        change=decide(found.delta_share, low, high, floor),
    )


def _judge_averages(a: Runs, b: Runs, work: float, frame: Interval) -> Interval:
    one, other = means(a, b, lambda run: average(run, "step_ms"))
    if not one or not other:
        return replace(frame, a_ms=one or None, b_ms=other or None)
    delta = other / work / one - 1
    floor = max(NO_INTERVAL_FLOOR, frame.contention_share)
    enough = all(steps_of(run) >= NO_INTERVAL_STEPS for run in (*a, *b))
    counts = enough and abs(math.log1p(delta)) >= math.log1p(floor)
    change = _direction(delta) if counts else c.UNCLEAR
    return replace(
        frame, a_ms=one, b_ms=other / work, delta_share=delta, noise_floor_share=floor, change=change
    )


def decide(delta: float, low: float, high: float, floor: float) -> str:
    """The rule: a change has a certain sign and reaches the floor; "same" means one would have been seen."""
    if abs(delta) >= floor and (low > 0 or high < 0):
        return _direction(delta)
    if abs(delta) < floor and (high - low) / 2 <= RESOLUTION:
        return c.SAME
    return c.UNCLEAR


def _direction(delta: float) -> str:
    """More time, or more memory, is worse."""
    return c.WORSE if delta > 0 else c.BETTER


def _widened(found: Spread, a: Runs, b: Runs) -> tuple[float, float]:
    """The interval, widened by what other work on the machine may have added to either side."""
    alone_a, alone_b = share_alone(a, b), share_alone(b, a)
    if len(a) + len(b) - 2 >= ENOUGH_DEGREES:  # what slowed both sides already shows between their runs
        alone_a, alone_b = min(alone_a / alone_b, 1.0), min(alone_b / alone_a, 1.0)
    return (1 + found.low_share) * alone_b - 1, (1 + found.high_share) / alone_a - 1


def _blocks(run: Summary) -> list[float]:
    return [v for v in run.blocks.metrics.get("step_ms", []) if v is not None and v > 0]


# ---- memory and diagnoses ------------------------------------------------------------------------


def judge_memory(a: Runs, b: Runs, metrics: dict[str, Change], shift: Shift) -> str:
    """Whether memory got better or worse, by its peak and by its diagnosis."""
    kinds = {memory_kind(run) for run in (*a, *b)}
    kind = kinds.pop() if len(kinds) == 1 else None
    peak = metrics.get(PEAK.get(kind or "", ""))
    if kind is None or peak is None or peak.delta is None or peak.delta_share is None:
        return c.UNCLEAR
    is_large = abs(peak.delta_share) >= MEMORY_SHARE[kind] and abs(peak.delta) >= MEMORY_BYTES[kind]
    by_peak = _direction(peak.delta) if is_large else c.SAME
    by_diagnosis = shift.change if shift.change in (c.BETTER, c.WORSE) else c.SAME
    if c.SAME in (by_peak, by_diagnosis):
        return by_diagnosis if by_peak == c.SAME else by_peak
    return by_peak if by_peak == by_diagnosis else c.CHANGED


def shift_of(a: Sequence[Finding | Primary], b: Sequence[Finding | Primary]) -> Shift:
    """A diagnosis before and after. If the runs of a side disagree, all their diagnoses are shown."""
    label_a, label_b = (" / ".join(dict.fromkeys(f.status for f in side)) or None for side in (a, b))
    levels = [[SEVERITY.get(f.severity, 0) for f in side if f.kind not in UNKNOWN_KINDS] for side in (a, b)]
    if not all(levels):
        return Shift(label_a, label_b, c.UNCLEAR)
    before, after = map(max, levels)
    if before != after:
        return Shift(label_a, label_b, c.BETTER if after < before else c.WORSE)
    return Shift(label_a, label_b, c.SAME if label_a == label_b else c.CHANGED)


# ---- the verdict ---------------------------------------------------------------------------------


def verdict(step_time: str, memory: str) -> str:
    """One word for both. More memory is a regression even if the step time did not change."""
    if step_time == c.UNCLEAR:
        return c.INCONCLUSIVE
    ways = {step_time, memory}
    if memory == c.CHANGED or ways >= {c.BETTER, c.WORSE}:
        return c.MIXED
    if c.WORSE in ways:
        return c.REGRESSION
    return c.IMPROVEMENT if c.BETTER in ways else c.NO_CHANGE


def how_to_settle(a: Runs, b: Runs, interval: Interval) -> str:
    """What would make an inconclusive comparison conclusive."""
    for side, runs in (("A", a), ("B", b)):
        if not all(average(run, "step_ms") for run in runs):
            return f"{side} has no step times. Run it again and let some steps complete."
    if interval.low_share is None or interval.high_share is None:
        return _how_to_get_an_interval(a, b)
    several = min(len(a), len(b)) >= 3
    more = "more runs per side" if several else f"three or more alternating runs per side: {SEVERAL}"
    if interval.contention_share:
        return f"Repeat both on an otherwise idle machine, or compare {more}."
    width = (interval.high_share - interval.low_share) / 2
    wanted = max(RESOLUTION, abs(interval.delta_share or 0.0)) * 0.8
    factor, do = (width / wanted) ** 2, "Compare"
    if 1 < factor <= 8 and not several:
        do = f"Run about {math.ceil(factor)} times as many steps, or compare"
    return f"Runs this noisy cannot show a change below {fmt.share(width)}. {do} {more}."


def _how_to_get_an_interval(a: Runs, b: Runs) -> str:
    sides = {"A": a, "B": b}
    for side, runs in sides.items():
        fewest = min(map(steps_of, runs))
        if fewest < MIN_BLOCKS or (fewest < NO_INTERVAL_STEPS and not any(map(_blocks, runs))):
            return f"{side} has only {fewest} steps to compare. Run both for 100 steps or more."
    without = [side for side, runs in sides.items() if not all(map(_blocks, runs))]
    return (
        f"There are no block means in {' and '.join(without) or 'the files'}, so there is no interval, "
        f"and only a change of {fmt.share(NO_INTERVAL_FLOOR)} or more counts. Record both runs again."
    )
