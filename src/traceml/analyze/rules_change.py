"""Step-time diagnoses of change: a step time that rose for good, and slow steps in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from traceml.analyze.rank_view import FIXED_SHARE
from traceml.analyze.rule import CRIT_SHARE, EXPLAINED, WARN_SHARE, Measured, Rule
from traceml.analyze.rules_time import TimeView
from traceml.analyze.shape import find_period, main_ones, slow_steps
from traceml.analyze.window import (
    CHECKPOINT,
    COMPUTE,
    H2D,
    INPUT,
    LABELS,
    SYNC,
    VALIDATION,
    WAIT,
    Floats,
    median_of_ranks,
)
from traceml.schema import fmt


def slowdown(view: TimeView) -> Measured | None:
    """Step time rose at some step and never came back."""
    shift = view.shift
    if shift is None:
        return None
    window = view.window
    index = np.arange(window.count)
    extra_ms = (shift.after - shift.before) / 1e6
    after = index >= shift.at
    name, part, ranks = _blame(view, after, ~after, np.median, extra_ms)
    where, _ = _words_of(name, part, ranks)
    late = 1 - shift.at / window.count
    share = extra_ms * late / max(window.mean_ms(window.judged_ns), 1e-9)
    step = int(window.steps[shift.at])
    return Measured(
        level=shift.after / shift.before - 1 - window.cpu_delay_share,
        score=share,
        words={
            "step": f"{step}",
            "before": fmt.ms(shift.before / 1e6),
            "after": fmt.ms(shift.after / 1e6),
            "rise": fmt.share(shift.after / shift.before - 1),
            "where": where,
        },
        phase=name if name in LABELS else None,
        ranks=ranks,
        evidence={
            "since_step": step,
            "before_ms": shift.before / 1e6,
            "after_ms": shift.after / 1e6,
            "where": name,
        },
        cost_ms=extra_ms * late,
    )


def jitter(view: TimeView) -> Measured | None:
    """The typical step is healthy, but slow steps in between cost a good part of all time."""
    pace = view.level_pace
    slow = slow_steps(pace)
    if not len(slow):
        return None
    period = find_period(slow)
    if period is None:
        main = main_ones(slow, pace[slow] - np.median(pace))
        period = find_period(main)
        slow = slow if period is None else main
    others = np.setdiff1d(np.arange(len(pace)), slow)
    typical = float(np.median(pace[others]))
    lost = float((pace[slow] - typical).sum())
    share = lost / float(np.median(view.window.judged_ns.sum(axis=1)))
    per_slow_ms = lost / len(slow) / 1e6
    name, part, ranks = _blame(view, slow, others, np.mean, per_slow_ms)
    where, place = _words_of(name, part, ranks)
    rhythm = f"every {period} steps" if period else f"{len(slow)} of {len(pace)} steps, no rhythm"
    return Measured(
        level=share if period else _irregular_level(share - view.window.cpu_delay_share, bool(name)),
        score=share,
        words={
            "rhythm": rhythm,
            "share": fmt.share(share),
            "extra": fmt.ms(per_slow_ms),
            "typical": fmt.ms(typical / 1e6),
            "where": where,
            "place": place,
        },
        phase=name if name in LABELS else None,
        ranks=ranks,
        evidence={
            "slow_steps": len(slow),
            "period": period,
            "cpu_delay_share": view.window.cpu_delay_share,
            "extra_ms": per_slow_ms,
            "typical_ms": typical / 1e6,
            "where": name,
        },
        cost_ms=lost / len(pace) / 1e6,
    )


def _irregular_level(share: float, has_phase: bool) -> float:
    """What other processes took from us has been taken out: that is the machine's unrest, which has no
    rhythm. Slow steps without a rhythm or a phase of their own are never more than a warning."""
    return share if has_phase else min(share, WARN_SHARE + 0.5 * (CRIT_SHARE - WARN_SHARE))


def _blame(
    view: TimeView, chosen: Any, others: Any, level: Callable[[Floats], Any], whole_ms: float
) -> tuple[str, float, tuple[int, ...]]:
    """The phase that explains the excess, its part of it, and the rank if it is one rank's doing."""
    name, part = _explains(_excess(view, chosen, others, level), whole_ms)
    if name not in ("", SYNC) or len(view.window.ranks) < 2:
        return name, part, ()
    # The others wait: what they wait for is in the rank that comes last.
    late, ranks = _late_excess(view, chosen, others, level)
    cause, share = _explains(late, whole_ms)
    return (cause, share, ranks) if cause else (name, part, ())


def _excess(view: TimeView, chosen: Any, others: Any, level: Callable[[Floats], Any]) -> dict[str, float]:
    """How much more each phase takes in the chosen steps than in the others (medians over ranks), ms.

    `level` is what a phase takes in the chosen steps: the mean of slow steps, which are slow each in its
    own way; the median after a shift, which is a shift of the typical step.
    """
    window = view.window
    typical = {k: window.across(k).median for k in (*COMPUTE, INPUT, H2D, SYNC)}
    typical[WAIT] = median_of_ranks(view.wait)
    typical["garbage collection"] = median_of_ranks(window.gc_ns)
    return {k: float(level(v[chosen]) - np.median(v[others])) / 1e6 for k, v in typical.items()}


def _late_excess(
    view: TimeView, chosen: Any, others: Any, level: Callable[[Floats], Any]
) -> tuple[dict[str, float], tuple[int, ...]]:
    """The same of the rank that the others wait for in each of the chosen steps, and which one it is."""
    window = view.window
    last = window.last[chosen]
    found = {}
    for key in (*COMPUTE, INPUT, H2D, VALIDATION, CHECKPOINT, WAIT):
        mine = window.of(key)[:, chosen][last, np.arange(len(last))]
        found[key] = float(level(mine) - np.median(window.across(key).median[others])) / 1e6
    at, times = np.unique(last, return_counts=True)
    fixed = times.max() >= FIXED_SHARE * len(last)
    return found, (window.ranks[int(at[times.argmax()])],) if fixed else ()


def _explains(excess: dict[str, float], whole_ms: float) -> tuple[str, float]:
    """The phase that explains the excess, and its part; an empty name when none reaches 80 %."""
    gc = excess.pop("garbage collection", 0.0)
    if whole_ms > 0 and gc >= EXPLAINED * whole_ms:
        return "garbage collection", gc / whole_ms
    name = max(excess, key=lambda k: excess[k])
    if whole_ms <= 0 or excess[name] < EXPLAINED * whole_ms:
        return "", 0.0
    return name, min(1.0, excess[name] / whole_ms)


def _words_of(name: str, part: float, ranks: tuple[int, ...]) -> tuple[str, str]:
    """(where the excess is, the place to look at)."""
    if not name:
        return "spread over phases", "several phases"
    place = LABELS.get(name, name) + "".join(f" on r{rank}" for rank in ranks)
    return f"{fmt.share(part)} of it in {place}", place


RULES: Final[tuple[Rule[TimeView], ...]] = (
    Rule(
        "SLOWDOWN",
        "SLOWDOWN",
        slowdown,
        "Since step {step} a step takes {after} instead of {before} (+{rise}), {where}.",
        "Look at what changed at step {step}: data, sequence length, a growing structure, a noisy neighbour.",
        warn=0.15,
        crit=0.30,
    ),
    Rule(
        "JITTER",
        "JITTER",
        jitter,
        "Slow steps ({rhythm}) take {extra} more than the typical {typical} and cost {share} of all "
        "time, {where}.",
        "Find what happens in those steps, in {place}.",
    ),
)
