"""Step-time diagnoses of change: time that rose and stayed up, slow steps now and then."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from traceml.analyze import window as w
from traceml.analyze.patterns import (
    FEWEST_SLOW,
    Shift,
    dominant_slow_steps,
    find_period,
    find_stretch,
    slow_steps,
)
from traceml.analyze.rank_view import FIXED_SHARE, MOST_NAMED
from traceml.analyze.rules.rule import (
    CRIT_SHARE,
    EXPLAINED_SHARE,
    WARN_SHARE,
    Measured,
    Rule,
    Thresholds,
    beyond_delay,
)
from traceml.analyze.views import TimeView
from traceml.schema import catalog as c
from traceml.schema import fmt

GARBAGE_COLLECTION: Final = "garbage collection"
WORTH_A_WORD: Final = 0.1
MOST_WITHOUT_CAUSE: Final = (WARN_SHARE + CRIT_SHARE) / 2
"""Irregular slow steps that no phase explains are never more than a warning."""
SAME_MOMENT: Final = 3
"""A shift and its cause may be one event if they are at most this many steps apart."""


@dataclass(frozen=True, slots=True)
class Cause:
    """What explains the extra time of slow steps: a phase, its part, and the rank if it is always one."""

    name: str = ""  # empty: no phase explains enough
    parts: tuple[tuple[str, float], ...] = ()  # its share, or else the two largest phases and theirs
    ranks: tuple[int, ...] = ()
    place: str = ""  # in the step, if it is wait or inferred input

    @property
    def phase(self) -> str | None:
        return self.name if self.name in w.LABELS else None

    @property
    def words(self) -> dict[str, str]:
        who = f" on {named(self.ranks)}" if self.ranks else ""
        if not self.parts:
            return {"where": f"the extra time is spread over several phases{who}", "place": "all phases"}
        parts = [
            (w.LABELS.get(name, name.removeprefix("user.")), fmt.share(part)) for name, part in self.parts
        ]
        (name, share), *others = parts
        end = who + (f", {self.place}" if self.place else "")
        where = f"{share} of the extra time is in {name}" + "".join(f" and {s} in {n}" for n, s in others)
        return {"where": where + end, "place": " and ".join(name for name, _ in parts) + end}


def named(ranks: tuple[int, ...]) -> str:
    """r1, r1 and r2, r1 and 3 more."""
    names = [f"r{rank}" for rank in ranks]
    if len(names) > MOST_NAMED:
        return f"{names[0]} and {len(names) - 1} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def slowdown(view: TimeView) -> Measured | None:
    """Step time rose, at some step or little by little, and did not come back down. What more work per step
    explains does not count."""
    shift, window = view.shift, view.window
    if shift is None:
        return None
    if _new_optimizer(view, shift):
        return None  # reported as MORE WORK
    what, times = _more_work(view, shift)
    after = np.arange(window.count) >= shift.at
    cause = _find_cause(view, after, ~after, np.median, (shift.after - shift.before) / 1e6)
    ramp, work, until = shift.ramp if times == 1 else None, "", {}
    if ramp is not None:
        at, before_ms, after_ms, rise = (
            ramp.first,
            ramp.start / 1e6,
            ramp.end / 1e6,
            ramp.end / ramp.start - 1,
        )
        until = {"until_step": int(window.steps[min(ramp.last, window.count - 1)])}
        cost_ms = (float(shift.levels(window.count).mean()) - ramp.start) / 1e6
    else:
        at, before_ms, after_ms = shift.at, times * shift.before / 1e6, shift.after / 1e6
        rise = after_ms / before_ms - 1
        work = f", for {times:.1f} times as many {what}" if times > 1 else ""
        cost_ms = (after_ms - before_ms) * (1 - shift.at / window.count)
    grows = _GROWS if cause.place and cause.phase == w.INPUT else _WHAT_GROWS.get(cause.phase, _GROWS)
    evidence = {"since_step": int(window.steps[at]), **until, "before_ms": before_ms, "after_ms": after_ms}
    return Measured(
        level=rise - window.cpu_delay_share,
        score=cost_ms / max(view.step_ms, 1e-9),
        words={"rise": fmt.share(rise), "work": work, "what": grows, **cause.words},
        phase=cause.phase,
        ranks=cause.ranks,
        evidence={**evidence, "where": cause.name},
        cost_ms=cost_ms,
        summary=None if ramp is None else _GREW,
        action=None if ramp is None else "Find out what grows with each step: {what}.",
    )


_GREW: Final = (
    "Steps grew steadily from {before_ms} (step {since_step}) to {after_ms} (step {until_step}), +{rise}; "
    "{where}."
)
_GROWS: Final = (
    "a list, a cache, a graph kept by a loss or a hidden state without detach(), or a log that is rewritten "
    "each time"
)
_WHAT_GROWS: Final[dict[str | None, str]] = {
    w.BACKWARD: "a graph that reaches back into earlier steps, because a loss or a hidden state is kept "
    "without detach(), or retain_graph=True",
    w.INPUT: "the data that a batch is made from, or what the dataset keeps and searches",
    w.OPTIMIZER: "the parameters or the state of the optimizer",
    w.WAIT: "a list that is searched, summed or plotted, or a log that is rewritten each time",
}


def more_work(view: TimeView) -> Measured | None:
    """Steps take longer because they do more: longer episodes or sequences, larger batches, or another
    optimizer that takes over, as when more layers are trained. Or one or two steps do much more than the
    others (L-BFGS, sampling)."""
    whole, view = view, view.calm
    if view.shift is None:
        return _busy_steps(whole)
    longer = view.shift.after / view.shift.before
    if (began := _new_optimizer(view, view.shift)) and longer > 1:
        words = {"longer": f"{longer:.1f}"}
        found = Measured(level=longer - 1, words=words, summary=_OTHER_OPTIMIZER)
        found.evidence.update(since_step=began, what="new optimizer")
        return found
    what, times = _more_work(view, view.shift)
    if times < 1 + EXPLAINED_SHARE * (longer - 1):
        return _busy_steps(whole)
    since = int(view.window.steps[view.shift.at])
    words = {"times": f"{times:.1f}", "longer": f"{longer:.1f}"}
    return Measured(level=longer - 1, words=words, evidence={"since_step": since, "what": what})


def _busy_steps(view: TimeView) -> Measured | None:
    """One or two steps that took long because they did more."""
    busy = {i: more for i in view.stalls if (more := busier(view, i))}
    if not busy:
        return None
    steps = [f"{view.window.steps[i]}" for i in busy]
    took_ns = float(view.slowest_steps[list(busy)].sum())
    share = took_ns / float(view.window.net_step_ns.sum(axis=1).max())
    which = f"Step{'s' * (len(busy) > 1)} {' and '.join(steps)}"
    words = {"which": which, "took": fmt.seconds(took_ns / 1e9), "more": next(iter(busy.values()))}
    found = Measured(level=share, score=share, words=words, summary=_BUSY)
    found.evidence.update(since_step=int(steps[0]), what="single steps")
    return found


_BUSY: Final = "{which} took {took}, {score} of the training time, because of more work: {more}."
_OTHER_OPTIMIZER: Final = (
    "Steps take {longer} times as long since step {since_step}, where another optimizer takes over: a new "
    "stage, or more layers to train."
)


def _new_optimizer(view: TimeView, shift: Shift) -> int:
    """The step from which on another optimizer ends the steps, if that is where the shift is; else 0."""
    first, last = (shift.ramp.first, shift.ramp.last) if shift.ramp is not None else (shift.at, shift.at)
    near = max(SAME_MOMENT, view.window.count // 20)  # noise moves the place that is found
    steps = view.window.steps
    begin, end = int(steps[first]) - near, int(steps[min(last, len(steps) - 1)]) + near
    return next((step for step in view.window.new_optimizers if begin <= step <= end), 0)


def _more_work(view: TimeView, shift: Shift) -> tuple[str, float]:
    """What a step does more of since the shift, and how many times as much, at most as much as the shift."""
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
        excess = steps - np.median(steps)
        dominant = dominant_slow_steps(slow, excess[slow])
        period = find_period(numbers[dominant])
        has_pattern = period is not None or find_stretch(numbers[dominant]) is not None
        is_most = excess[dominant].sum() >= EXPLAINED_SHARE * excess[slow].sum()
        slow = dominant if has_pattern or (is_most and len(dominant) >= FEWEST_SLOW) else slow
    others = np.setdiff1d(np.arange(len(steps)), slow)
    typical = float(np.median(steps[others]))
    lost = float((steps[slow] - typical).sum())
    share = lost / float(np.median(view.window.net_step_ns.sum(axis=1)))
    extra_ms = lost / len(slow) / 1e6
    cause = _find_cause(view, slow, others, np.mean, extra_ms)
    words = cause.words
    more, batches = more_batches(view.window, slow, others)
    words["where"] += f"; they take {batches}" if more > 1 else ""
    level = share
    if period is None:  # a busy machine also makes slow steps, but not at regular intervals
        level = beyond_delay(share, view.window.cpu_delay_share)
        level = level if cause.name else min(level, MOST_WITHOUT_CAUSE)
    stretch, at = find_stretch(numbers[slow]), [str(number) for number in numbers[slow]]
    when = f"{len(slow)} of {len(steps)} steps, irregular"
    if period:
        when = f"every {period} steps"
    elif stretch is not None:
        when = f"{len(slow)} of {len(steps)} steps, mostly steps {stretch[0]} to {stretch[1]}"
    elif len(slow) <= MOST_NAMED:
        when = f"{', '.join(at[:-1])} and {at[-1]} of {len(steps)} steps"
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


def busier(view: TimeView, at: int) -> str:
    """What this step does more of, if the model runs more often and that explains how much longer it takes.
    Otherwise something stopped it. Exchanges are counted among the calls, but are not the model's work."""
    longer = float(view.slowest_steps[at] / np.median(view.slowest_steps))
    model = w.median_over_ranks(view.window.of(*w.MODEL))
    by_model = model[at] - np.median(model) >= 0.5 * (view.slowest_steps[at] - np.median(view.slowest_steps))
    calls = view.work.get("model calls", np.ones(view.window.count))
    many, usual = float(calls[at]), max(float(np.median(calls)), 1.0)
    called = (many / usual if by_model else 1.0), f"{many:g} model calls instead of {usual:g}"
    did = (more_batches(view.window, at, slice(None)), called)
    return next((words for more, words in did if more > 1 and more >= longer / 2), "")


def more_batches(window: w.Window, slow: Any, others: Any) -> tuple[float, str]:
    """How many times as many batches these steps take as the others, and that in words."""
    if not window.more_batches.any():
        return 1.0, ""
    # A recording without a count of batches says 0.
    many, usual = (max(1.0, 1 + float(np.median(window.more_batches[:, at]))) for at in (slow, others))
    what = "backward passes" if window.input_inferred else "batches"
    return many / usual, f"{many:g} {what} instead of {usual:g}"


def _find_cause(
    view: TimeView, slow: Any, others: Any, level: Callable[[w.Floats], Any], extra_ms: float
) -> Cause:
    """The phase that explains why the slow steps take longer than the others. `level` sums up a phase over
    the slow steps: the median after a shift of the typical step, the mean if each of them differs."""
    window = view.window
    typical = {k: window.series(k).medians for k in (*w.MODEL, w.INPUT, w.H2D, w.SYNC)}
    typical[w.WAIT] = w.median_over_ranks(view.net_wait)
    typical[GARBAGE_COLLECTION] = w.median_over_ranks(window.gc_ns)
    more = {k: float(level(v[slow]) - np.median(v[others])) / 1e6 for k, v in typical.items()}
    usual = window.wait_places[:, others].mean(axis=(0, 1))
    cause = explaining(more, extra_ms, window.wait_places[:, slow].mean(axis=(0, 1)) - usual)
    cause = with_place(cause, window)
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
    places = window.wait_places[last, steps].mean(axis=0) - usual
    named = (window.ranks[int(at[times.argmax()])],) if fixed else ()
    late_cause = explaining(late, extra_ms, places, named)
    known = sum(share for _, share in late_cause.parts) >= EXPLAINED_SHARE
    return late_cause if known else cause


def with_place(cause: Cause, window: w.Window) -> Cause:
    """Inferred input has a place: it may be a log or a plot there, now and then or more and more."""
    if cause.name != w.INPUT or not window.input_inferred:
        return cause
    return replace(cause, place=f"i.e. what runs {window.input_place}")


def explaining(
    more_ms: dict[str, float], extra_ms: float, places: w.Floats, ranks: tuple[int, ...] = ()
) -> Cause:
    """The largest of these if it explains enough, otherwise the two largest. Garbage collection comes first,
    because it runs inside phases. For wait, the largest of `places` says where."""
    collected = more_ms.pop(GARBAGE_COLLECTION, 0.0)
    if extra_ms <= 0:
        return Cause(ranks=ranks)
    if collected >= EXPLAINED_SHARE * extra_ms:
        return Cause(GARBAGE_COLLECTION, ((GARBAGE_COLLECTION, min(1.0, collected / extra_ms)),), ranks)
    shares = {name: min(1.0, more / extra_ms) for name, more in more_ms.items()}
    largest = sorted(shares, key=lambda k: -more_ms[k])
    if shares[largest[0]] >= EXPLAINED_SHARE:
        place = c.WAIT_PLACES[int(np.argmax(places))].where if largest[0] == w.WAIT else ""
        return Cause(largest[0], ((largest[0], shares[largest[0]]),), ranks, place)
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
        "JITTER",
        jitter,
        "Slow steps ({when}) take {extra_ms} longer than the typical {typical_ms} and cost {score} of all "
        "time; {where}.",
        "Find out what is different in those steps; look at {place}.",
        Thresholds(of="{} of the training time lost in slow steps"),
        unless_same_phase=True,
        of_all_time=True,
    ),
)
