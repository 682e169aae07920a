"""Step-time diagnoses of change: step time that rose and stayed up, and slow steps now and then."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from traceml.analyze import window as w
from traceml.analyze.patterns import (
    Ramp,
    Shift,
    dominant_slow_steps,
    find_period,
    find_stretch,
    slow_steps,
)
from traceml.analyze.rules.rule import (
    CRIT_SHARE,
    EXPLAINED_SHARE,
    WARN_SHARE,
    Measured,
    Rule,
    Thresholds,
    beyond_delay,
)
from traceml.analyze.views import FIXED_SHARE, MOST_NAMED, TimeView
from traceml.schema import catalog as c
from traceml.schema import fmt

GARBAGE_COLLECTION: Final = "garbage collection"
WORTH_A_WORD: Final = 0.1
MOST_WITHOUT_CAUSE: Final = (WARN_SHARE + CRIT_SHARE) / 2
"""Irregular slow steps that no phase explains are never more than a warning."""


@dataclass(frozen=True, slots=True)
class Cause:
    """What explains the extra time of slow steps: a phase, its part, and the rank if it is always one."""

    name: str = ""  # empty: no phase explains enough
    parts: tuple[tuple[str, float], ...] = ()  # its share, or else the two largest phases and theirs
    ranks: tuple[int, ...] = ()
    place: str = ""  # in the step, if it is wait

    @property
    def phase(self) -> str | None:
        return self.name if self.name in w.LABELS else None

    @property
    def words(self) -> dict[str, str]:
        who = f" on {named(self.ranks)}" if self.ranks else ""
        if not self.parts:
            return {"where": f"the extra time is spread over several phases{who}", "place": "all phases"}
        names = [w.LABELS.get(name, name.removeprefix("user.")) for name, _ in self.parts]
        first, *others = [fmt.share(part) for _, part in self.parts]
        and_others = "".join(f" and {part} in {name}" for name, part in zip(names[1:], others, strict=True))
        end = who + (f", {self.place}" if self.place else "")
        where = f"{first} of the extra time is in {names[0]}{and_others}{end}"
        return {"where": where, "place": " and ".join(names) + end}


def named(ranks: tuple[int, ...]) -> str:
    """r1, r1 and r2, r1 and 3 more."""
    names = [f"r{rank}" for rank in ranks]
    if len(names) > MOST_NAMED:
        return f"{names[0]} and {len(names) - 1} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def slowdown(view: TimeView) -> Measured | None:
    """Step time rose at some step, or little by little, and never came back down, by more than the steps do
    more work."""
    shift, window = view.shift, view.window
    if shift is None:
        return None
    what, times = _more_work(view, shift)
    after = np.arange(window.count) >= shift.at
    cause = _find_cause(view, after, ~after, np.median, (shift.after - shift.before) / 1e6)
    if shift.ramp is not None and times == 1:
        return _grown(view, shift.ramp, float(shift.levels(window.count).mean()), cause)
    before_ms, after_ms = times * shift.before / 1e6, shift.after / 1e6
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


def _grown(view: TimeView, ramp: Ramp, mean_ns: float, cause: Cause) -> Measured:
    """Step time that rose little by little."""
    window, rise = view.window, ramp.end / ramp.start - 1
    cost_ms = (mean_ns - ramp.start) / 1e6
    first, last = (int(window.steps[at]) for at in (ramp.first, min(ramp.last, window.count - 1)))
    return Measured(
        level=rise - window.cpu_delay_share,
        score=cost_ms / max(view.step_ms, 1e-9),
        words={"rise": fmt.share(rise), "what": _WHAT_GROWS.get(cause.phase, _GROWS), **cause.words},
        phase=cause.phase,
        ranks=cause.ranks,
        evidence={
            "since_step": first,
            "until_step": last,
            "before_ms": ramp.start / 1e6,
            "after_ms": ramp.end / 1e6,
            "where": cause.name,
        },
        cost_ms=cost_ms,
        summary="Steps grew steadily from {before_ms} (step {since_step}) to {after_ms} (step {until_step}), "
        "+{rise}; {where}.",
        action="Find out what grows with each step: {what}.",
    )


_GROWS: Final = (
    "a list, a cache, a graph kept by a loss or a hidden state without detach(), or a log that is written "
    "again each time"
)
_WHAT_GROWS: Final[dict[str | None, str]] = {
    w.BACKWARD: "a graph that reaches back into earlier steps, because a loss or a hidden state is kept "
    "without detach(), or retain_graph=True",
    w.INPUT: "the data that a batch is made from, or what the dataset keeps and searches",
    w.OPTIMIZER: "the parameters or the state of the optimizer",
    w.WAIT: "a list that is searched, summed or plotted, or a log that is written again each time",
}


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
    numbers = view.window.steps
    period = find_period(numbers[slow])
    if period is None and find_stretch(numbers[slow]) is None:
        dominant = dominant_slow_steps(slow, steps[slow] - np.median(steps))
        period = find_period(numbers[dominant])
        has_pattern = period is not None or find_stretch(numbers[dominant]) is not None
        slow = dominant if has_pattern else slow
    others = np.setdiff1d(np.arange(len(steps)), slow)
    typical = float(np.median(steps[others]))
    lost = float((steps[slow] - typical).sum())
    share = lost / float(np.median(view.window.net_step_ns.sum(axis=1)))
    extra_ms = lost / len(slow) / 1e6
    cause = _find_cause(view, slow, others, np.mean, extra_ms)
    words = cause.words
    words["where"] += _more_batches(view.window, slow, others)
    level = share
    if period is None:  # a busy machine also makes slow steps, but not at regular intervals
        level = beyond_delay(share, view.window.cpu_delay_share)
        level = level if cause.name else min(level, MOST_WITHOUT_CAUSE)
    when = f"every {period} steps" if period else _which(numbers[slow], len(steps))
    return Measured(
        level=level,
        score=share,
        words={"when": when, **words},
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


def _which(slow: NDArray[np.int64], count: int) -> str:
    """Slow steps without a period: a stretch, or steps here and there."""
    stretch = find_stretch(slow)
    if stretch is not None:
        return f"{len(slow)} of {count} steps, mostly steps {stretch[0]} to {stretch[1]}"
    if len(slow) <= MOST_NAMED:
        return f"{', '.join(map(str, slow[:-1]))} and {slow[-1]} of {count} steps"
    return f"{len(slow)} of {count} steps, irregular"


def _more_batches(window: w.Window, slow: Any, others: Any) -> str:
    """Slow steps that take more batches than the others are no riddle."""
    more, words = more_batches(window, slow, others)
    return f"; they take {words}" if more > 1 else ""


def more_batches(window: w.Window, slow: Any, others: Any) -> tuple[float, str]:
    """How many times as many batches these steps take as the others, and that in words."""
    if not window.more_batches.any():
        return 1.0, ""
    many, usual = (1 + float(np.median(window.more_batches[:, at])) for at in (slow, others))
    what = "backward passes" if window.input_inferred else "batches"
    return many / usual, f"{many:g} {what} instead of {usual:g}"


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
    cause = explaining(more, extra_ms)
    if cause.name == w.WAIT:
        return replace(cause, place=_place(window.wait_places[:, slow].mean(axis=(0, 1)), window, others))
    if cause.name not in ("", w.SYNC) or len(window.ranks) < 2:
        return cause
    # The typical rank only waits: what it waits for is on the last rank of the step, or of the one before if
    # that rank stopped after the exchange.
    steps = np.arange(window.count)[slow]
    most = window.own_work.values.max(axis=0)
    steps = np.where(most[np.maximum(steps - 1, 0)] > most[steps], np.maximum(steps - 1, 0), steps)
    last = window.last_rank[steps]
    late = {}
    for key in (*w.MODEL, w.INPUT, w.H2D, *w.OUTSIDE, *window.user_keys, w.WAIT):
        mine = window.of(key)[last, steps]
        late[key] = float(level(mine) - np.median(window.series(key).medians[others])) / 1e6
    at, times = np.unique(last, return_counts=True)
    fixed = times.max() >= FIXED_SHARE * len(last)
    late_cause = explaining(late, extra_ms, (window.ranks[int(at[times.argmax()])],) if fixed else ())
    if late_cause.name == w.WAIT:
        mine = window.wait_places[last, steps].mean(axis=0)
        return replace(late_cause, place=_place(mine, window, others))
    return late_cause if late_cause.name else cause


def _place(slow: w.Floats, window: w.Window, others: Any) -> str:
    """Where in the step slow steps, with this much at each place, wait longer than the others."""
    more = slow - window.wait_places[:, others].mean(axis=(0, 1))
    return c.WAIT_PLACES[int(np.argmax(more))].where


def explaining(more_ms: dict[str, float], extra_ms: float, ranks: tuple[int, ...] = ()) -> Cause:
    """The largest of these if it explains enough, otherwise the two largest. Garbage collection comes first:
    it runs inside phases."""
    collected = more_ms.pop(GARBAGE_COLLECTION, 0.0)
    if extra_ms <= 0:
        return Cause(ranks=ranks)
    if collected >= EXPLAINED_SHARE * extra_ms:
        return Cause(GARBAGE_COLLECTION, ((GARBAGE_COLLECTION, min(1.0, collected / extra_ms)),), ranks)
    shares = {name: min(1.0, more / extra_ms) for name, more in more_ms.items()}
    largest = sorted(shares, key=lambda k: -more_ms[k])
    if shares[largest[0]] >= EXPLAINED_SHARE:
        return Cause(largest[0], ((largest[0], shares[largest[0]]),), ranks)
    return Cause("", tuple((k, shares[k]) for k in largest[:2] if shares[k] >= WORTH_A_WORD), ranks)


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
)
