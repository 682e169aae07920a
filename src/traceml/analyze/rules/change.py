"""Step-time diagnoses of change: step time that rose and stayed up, and slow steps now and then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from traceml.analyze import window as w
from traceml.analyze.patterns import dominant_slow_steps, find_period, slow_steps
from traceml.analyze.rules.rule import CRIT_SHARE, EXPLAINED_SHARE, WARN_SHARE, Measured, Rule, Thresholds
from traceml.analyze.views import FIXED_SHARE, TimeView
from traceml.schema import fmt

GARBAGE_COLLECTION: Final = "garbage collection"
MOST_WITHOUT_CAUSE: Final = (WARN_SHARE + CRIT_SHARE) / 2
"""Irregular slow steps that no phase explains are never more than a warning."""


@dataclass(frozen=True, slots=True)
class Cause:
    """What explains the extra time of slow steps: a phase, its part, and the rank if it is always one."""

    name: str = ""  # empty: no phase explains enough
    part: float = 0.0
    ranks: tuple[int, ...] = ()

    @property
    def phase(self) -> str | None:
        return self.name if self.name in w.LABELS else None

    @property
    def words(self) -> dict[str, str]:
        if not self.name:
            return {"where": "the extra time is spread over several phases", "place": "all phases"}
        place = w.LABELS.get(self.name, self.name) + "".join(f" on r{rank}" for rank in self.ranks)
        return {"where": f"{fmt.share(self.part)} of the extra time is in {place}", "place": place}


def slowdown(view: TimeView) -> Measured | None:
    """Step time rose at some step and never came back down."""
    shift, window = view.shift, view.window
    if shift is None:
        return None
    before_ms, after_ms = shift.before / 1e6, shift.after / 1e6
    after = np.arange(window.count) >= shift.at
    cause = _find_cause(view, after, ~after, np.median, after_ms - before_ms)
    cost_ms = (after_ms - before_ms) * (1 - shift.at / window.count)
    rise, step = shift.after / shift.before - 1, int(window.steps[shift.at])
    return Measured(
        level=rise - window.cpu_delay_share,
        score=cost_ms / max(view.step_ms, 1e-9),
        words={"rise": fmt.share(rise), **cause.words},
        phase=cause.phase,
        ranks=cause.ranks,
        evidence={"since_step": step, "before_ms": before_ms, "after_ms": after_ms, "where": cause.name},
        cost_ms=cost_ms,
    )


def jitter(view: TimeView) -> Measured | None:
    """The typical step is healthy, but slow steps now and then cost a large part of all time."""
    steps = view.steps_without_shift
    slow = slow_steps(steps)
    if not len(slow):
        return None
    period = find_period(slow)
    if period is None:
        dominant = dominant_slow_steps(slow, steps[slow] - np.median(steps))
        period = find_period(dominant)
        slow = slow if period is None else dominant
    others = np.setdiff1d(np.arange(len(steps)), slow)
    typical = float(np.median(steps[others]))
    lost = float((steps[slow] - typical).sum())
    share = lost / float(np.median(view.window.net_step_ns.sum(axis=1)))
    extra_ms = lost / len(slow) / 1e6
    cause = _find_cause(view, slow, others, np.mean, extra_ms)
    level = share
    if period is None:  # a busy machine also makes slow steps, but not at regular intervals
        level -= view.window.cpu_delay_share
        level = level if cause.name else min(level, MOST_WITHOUT_CAUSE)
    when = f"every {period} steps" if period else f"{len(slow)} of {len(steps)} steps, irregular"
    return Measured(
        level=level,
        score=share,
        words={"when": when, **cause.words},
        phase=cause.phase,
        ranks=cause.ranks,
        evidence={
            "slow_steps": len(slow),
            "period": period,
            "cpu_delay_share": view.window.cpu_delay_share,
            "extra_ms": extra_ms,
            "typical_ms": typical / 1e6,
            "where": cause.name,
        },
        cost_ms=lost / len(steps) / 1e6,
    )


def _find_cause(
    view: TimeView, slow: Any, others: Any, level: Callable[[w.Floats], Any], extra_ms: float
) -> Cause:
    """The phase that explains why the slow steps take longer than the others. `level` is what a phase takes
    in slow steps: the median after a shift of the typical step, the mean if each is slow in its own way."""
    window = view.window
    typical = {k: window.series(k).medians for k in (*w.COMPUTE, w.INPUT, w.H2D, w.SYNC)}
    typical[w.WAIT] = w.median_over_ranks(view.net_wait)
    typical[GARBAGE_COLLECTION] = w.median_over_ranks(window.gc_ns)
    more = {k: float(level(v[slow]) - np.median(v[others])) / 1e6 for k, v in typical.items()}
    cause = _explaining(more, extra_ms)
    if cause.name not in ("", w.SYNC) or len(window.ranks) < 2:
        return cause
    # The typical rank only waits: what it waits for is on the last rank of each step.
    last = window.last_rank[slow]
    late = {}
    for key in (*w.COMPUTE, w.INPUT, w.H2D, *w.OUTSIDE, w.WAIT):
        mine = window.of(key)[:, slow][last, np.arange(len(last))]
        late[key] = float(level(mine) - np.median(window.series(key).medians[others])) / 1e6
    at, times = np.unique(last, return_counts=True)
    fixed = times.max() >= FIXED_SHARE * len(last)
    late_cause = _explaining(late, extra_ms, (window.ranks[int(at[times.argmax()])],) if fixed else ())
    return late_cause if late_cause.name else cause


def _explaining(more_ms: dict[str, float], extra_ms: float, ranks: tuple[int, ...] = ()) -> Cause:
    """The largest of these if it explains enough. Garbage collection comes first: it runs inside phases."""
    collected = more_ms.pop(GARBAGE_COLLECTION, 0.0)
    if extra_ms > 0 and collected >= EXPLAINED_SHARE * extra_ms:
        return Cause(GARBAGE_COLLECTION, collected / extra_ms)
    name = max(more_ms, key=lambda k: more_ms[k])
    if extra_ms <= 0 or more_ms[name] < EXPLAINED_SHARE * extra_ms:
        return Cause()
    return Cause(name, min(1.0, more_ms[name] / extra_ms), ranks)


RULES: Final[tuple[Rule[TimeView], ...]] = (
    Rule(
        "SLOWDOWN",
        slowdown,
        "Since step {since_step}, steps take {after_ms} instead of {before_ms} (+{rise}); {where}.",
        "Find out what changed at step {since_step}: data, sequence length, growing structures, other jobs.",
        Thresholds(0.15, 0.30, "{} longer steps"),
    ),
    Rule(
        "JITTER",
        jitter,
        "Slow steps ({when}) take {extra_ms} longer than the typical {typical_ms} and cost {score} of all "
        "time; {where}.",
        "Find out what is different in those steps; look at {place}.",
        Thresholds(of="{} of the training time lost in slow steps"),
        unless_same_phase=True,
    ),
)
