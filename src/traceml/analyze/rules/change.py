"""Step-time diagnoses of change: step time that rose and stayed up, and slow steps now and then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from traceml.analyze import window as w
from traceml.analyze.patterns import Shift, dominant_slow_steps, find_period, slow_steps
from traceml.analyze.rules.rule import CRIT_SHARE, EXPLAINED_SHARE, WARN_SHARE, Measured, Rule, Thresholds
from traceml.analyze.views import FIXED_SHARE, MOST_NAMED, TimeView
from traceml.schema import catalog as c
from traceml.schema import fmt

GARBAGE_COLLECTION: Final = "garbage collection"
FIRST_STEPS: Final = 3
"""In them DDP exchanges its order of gradients in the forward pass."""
MOST_WITHOUT_CAUSE: Final = (WARN_SHARE + CRIT_SHARE) / 2
"""Irregular slow steps that no phase explains are never more than a warning."""


@dataclass(frozen=True, slots=True)
class Cause:
    """What explains the extra time of slow steps: a phase, its part, and the rank if it is always one."""

    name: str = ""  # empty: no phase explains enough
    part: float = 0.0
    ranks: tuple[int, ...] = ()
    place: str = ""  # in the step, if it is wait

    @property
    def phase(self) -> str | None:
        return self.name if self.name in w.LABELS else None

    @property
    def words(self) -> dict[str, str]:
        if not self.name:
            where = f" on {_named(self.ranks)}" if self.ranks else ""
            return {"where": f"the extra time is spread over several phases{where}", "place": "all phases"}
        place = w.LABELS.get(self.name, self.name.removeprefix("user."))
        place += f" on {_named(self.ranks)}" if self.ranks else ""
        place += f", {self.place}" if self.place else ""
        return {"where": f"{fmt.share(self.part)} of the extra time is in {place}", "place": place}


def _named(ranks: tuple[int, ...]) -> str:
    """r1, r1 and r2, r1 and 3 more."""
    names = [f"r{rank}" for rank in ranks]
    if len(names) > MOST_NAMED:
        return f"{names[0]} and {len(names) - 1} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def slowdown(view: TimeView) -> Measured | None:
    """Step time rose at some step and never came back down, by more than the steps do more work."""
    shift, window = view.shift, view.window
    if shift is None:
        return None
    what, times = _more_work(view, shift)
    before_ms, after_ms = times * shift.before / 1e6, shift.after / 1e6
    after = np.arange(window.count) >= shift.at
    cause = _find_cause(view, after, ~after, np.median, after_ms - shift.before / 1e6)
    cost_ms = (after_ms - before_ms) * (1 - shift.at / window.count)
    rise, step = after_ms / before_ms - 1, int(window.steps[shift.at])
    work = f", for {times:.1f} times as many {what}" if times > 1 else ""
    return Measured(
        level=rise - window.cpu_delay_share,
        score=cost_ms / max(view.step_ms, 1e-9),
        words={"rise": fmt.share(rise), "work": work, **cause.words},
        phase=cause.phase,
        ranks=cause.ranks,
        evidence={"since_step": step, "before_ms": before_ms, "after_ms": after_ms, "where": cause.name},
        cost_ms=cost_ms,
    )


def more_work(view: TimeView) -> Measured | None:
    """Steps take longer than before because they do more: longer episodes or sequences, larger batches."""
    if view.shift is None:
        return None
    longer = view.shift.after / view.shift.before
    what, times = _more_work(view, view.shift)
    if times < 1 + EXPLAINED_SHARE * (longer - 1):
        return None
    since = int(view.window.steps[view.shift.at])
    words = {"times": f"{times:.1f}", "longer": f"{longer:.1f}"}
    return Measured(level=longer - 1, words=words, evidence={"since_step": since, "what": what})


def _more_work(view: TimeView, shift: Shift) -> tuple[str, float]:
    """What a step does more of since the shift, and how many times as much, as far as that explains it."""
    what, times = "", 1.0
    for name, each in view.work.items():
        before, after = float(np.median(each[: shift.at])), float(np.median(each[shift.at :]))
        if after > times * before > 0:
            what, times = name, after / before
    return what, min(times, shift.after / shift.before)


def jitter(view: TimeView) -> Measured | None:
    """The typical step is healthy, but slow steps now and then cost a large part of all time."""
    steps = view.regular_steps
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


def stall(view: TimeView) -> Measured | None:
    """One or two single steps cost a large part of all time. More of them are JITTER."""
    window, at = view.window, view.stalls
    if not len(at):
        return None
    typical = float(np.median(view.slowest_steps))
    lost = float((view.slowest_steps[at] - typical).sum())
    share = lost / float(window.net_step_ns.sum(axis=1).max())
    longest = at[np.argmax(view.slowest_steps[at])]
    stops = {i: _find_stop(view, i, float(view.slowest_steps[i]) - typical) for i in (longest, *at)}
    clauses = [f"Step {window.steps[i]} took {_took(view, i)}, {stops[i].words['where']}" for i in stops]
    main = stops[longest]
    who = _named(main.ranks) if main.ranks else "the training" if len(window.ranks) < 2 else "all ranks"
    return Measured(
        level=share - window.cpu_delay_share,
        score=share,
        words={"steps": ". ".join(clauses), "who": who, "when": f"step {window.steps[longest]}"},
        phase=main.phase,
        ranks=tuple(sorted({rank for stop in stops.values() for rank in stop.ranks})),
        evidence={
            "step": int(window.steps[longest]),
            "stalled_steps": len(at),
            "extra_ms": (float(view.slowest_steps[longest]) - typical) / 1e6,
            "typical_ms": typical / 1e6,
            "where": main.name,
            "place": main.place,
            "slowest_step_ms": float(window.net_step_ns.mean(axis=1).max()) / 1e6,
        },
        cost_ms=lost / window.count / 1e6,
    )


def _took(view: TimeView, at: int) -> str:
    return fmt.ms(float(view.slowest_steps[at]) / 1e6)


def _find_stop(view: TimeView, at: int, extra_ns: float) -> Cause:
    """Where one step spent its extra time: on the ranks whose own work took longer, or, if that is none of
    them, on all ranks, which then waited for each other. In the first steps and without sync times a rank
    waits in its passes, so one that spent the time elsewhere is the one that the others waited for."""
    window = view.window
    more = {k: _beyond_usual(window.of(k), at) for k in window.keys}
    mine = _beyond_usual(window.own_work.values, at) >= 0.5 * extra_ns
    passes = (w.BACKWARD, w.SYNC, *((w.FORWARD,) if window.steps[at] <= FIRST_STEPS else ()))
    elsewhere = np.max([more[k] for k in more if k not in passes], axis=0) >= 0.5 * extra_ns
    mine = mine & elsewhere if (mine & elsewhere).any() else mine
    some = mine.any() and not mine.all()
    rows = np.flatnonzero(mine) if some else np.arange(len(mine))
    more[GARBAGE_COLLECTION] = _beyond_usual(window.gc_ns, at)
    more_ms = {k: float(values[rows].mean()) / 1e6 for k, values in more.items()}
    cause = _explaining(more_ms, extra_ns / 1e6, tuple(window.ranks[row] for row in rows) if some else ())
    if cause.name != w.WAIT:
        return cause
    place = int(np.argmax(window.wait_places[rows, at].sum(axis=0)))
    return replace(cause, place=c.WAIT_PLACES[place].where)


def _beyond_usual(values: w.Floats, at: int) -> w.Floats:
    """How much more each rank spends on this in one step than in its usual step."""
    found: w.Floats = values[:, at] - np.median(values, axis=1)
    return found


def dropped_steps(view: TimeView) -> Measured | None:
    """Steps that began but never completed, because of an exception that the script caught, took long."""
    window = view.window
    if not window.dropped_ns.any():
        return None
    lost = window.dropped_ns.sum(axis=1)
    row = int(np.argmax(lost))
    longest = int(np.argmax(window.dropped_ns[row]))
    share = float(lost[row] / (lost[row] + window.net_step_ns[row].sum()))
    return Measured(
        level=share,
        score=share,
        ranks=(window.ranks[row],) if len(window.ranks) > 1 else (),
        evidence={
            "lost_ms": float(lost[row]) / 1e6,
            "times": int(np.count_nonzero(window.dropped_ns[row])),
            "step": int(window.steps[longest]),
            "longest_ms": float(window.dropped_ns[row, longest]) / 1e6,
        },
    )


def _find_cause(
    view: TimeView, slow: Any, others: Any, level: Callable[[w.Floats], Any], extra_ms: float
) -> Cause:
    """The phase that explains why the slow steps take longer than the others. `level` is what a phase takes
    in slow steps: the median after a shift of the typical step, the mean if each is slow in its own way."""
    window = view.window
    typical = {k: window.series(k).medians for k in (*w.MODEL, w.INPUT, w.H2D, w.SYNC)}
    typical[w.WAIT] = w.median_over_ranks(view.net_wait)
    typical[GARBAGE_COLLECTION] = w.median_over_ranks(window.gc_ns)
    more = {k: float(level(v[slow]) - np.median(v[others])) / 1e6 for k, v in typical.items()}
    cause = _explaining(more, extra_ms)
    if cause.name not in ("", w.SYNC) or len(window.ranks) < 2:
        return cause
    # The typical rank only waits: what it waits for is on the last rank of each step.
    last = window.last_rank[slow]
    late = {}
    for key in (*w.MODEL, w.INPUT, w.H2D, *w.OUTSIDE, w.WAIT):
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
        return Cause(GARBAGE_COLLECTION, min(1.0, collected / extra_ms), ranks)
    name = max(more_ms, key=lambda k: more_ms[k])
    if extra_ms <= 0 or more_ms[name] < EXPLAINED_SHARE * extra_ms:
        return Cause(ranks=ranks)
    return Cause(name, min(1.0, more_ms[name] / extra_ms), ranks)


RULES: Final[tuple[Rule[TimeView], ...]] = (
    Rule(
        "SLOWDOWN",
        slowdown,
        "Since step {since_step}, steps take {after_ms} instead of {before_ms} (+{rise}){work}; {where}.",
        "Find out what changed at step {since_step}: data, sequence length, growing structures, other jobs.",
        Thresholds(0.15, 0.30, "{} longer steps"),
    ),
    Rule(
        "MORE_WORK",
        more_work,
        "Steps take {longer} times as long since step {since_step}, because each has {times} times as many "
        "{what}.",
        "Nothing to mend if that is meant; compare the time per sample, not per step.",
        thresholds=None,
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
    Rule(
        "STALL",
        stall,
        "{steps}. A typical step takes {typical_ms}. That cost {score} of the training time.",
        "Find out what stopped {who} in {when}: storage, network, a lock, other jobs on the machine.",
        Thresholds(of="{} of the training time lost in one or two steps"),
    ),
    Rule(
        "DROPPED_STEPS",
        dropped_steps,
        "{lost_ms} of the training time ({score}) went into {times} step(s) that were not completed; the "
        "longest took {longest_ms}, before step {step} was completed.",
        "Look at the exception that the script catches there (lack of memory, bad data).",
        Thresholds(of="{} of the training time"),
    ),
)
