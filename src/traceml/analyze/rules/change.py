"""Step-time diagnoses of change: time that rose and stayed up, slow steps now and then, single steps that
stalled, and work that no step came of."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from traceml.analyze import window as w
from traceml.analyze.patterns import Shift, dominant_slow_steps, find_period, find_stretch, slow_steps
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
SAME_MOMENT: Final = 3
"""So many steps apart, a shift and its cause are one event."""
LEAST_END_S: Final = 10.0
BUSY_MACHINE: Final = 0.3
"""If threads waited for a core longer than this, a long end says nothing."""
FIRST_STEPS: Final = 3
"""In them DDP exchanges its order of gradients in the forward pass."""


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
        who = f" on {_named(self.ranks)}" if self.ranks else ""
        if not self.parts:
            return {"where": f"the extra time is spread over several phases{who}", "place": "all phases"}
        parts = [
            (w.LABELS.get(name, name.removeprefix("user.")), fmt.share(part)) for name, part in self.parts
        ]
        (name, share), *others = parts
        end = who + (f", {self.place}" if self.place else "")
        where = f"{share} of the extra time is in {name}" + "".join(f" and {s} in {n}" for n, s in others)
        return {"where": where + end, "place": " and ".join(name for name, _ in parts) + end}


def _named(ranks: tuple[int, ...]) -> str:
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
    grows = _WHAT_GROWS.get(cause.phase, _GROWS)
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
    """Steps take longer than before because they do more: longer episodes or sequences, larger batches; or
    from where another optimizer takes over, as when more layers are trained."""
    if view.shift is None:
        return None
    longer = view.shift.after / view.shift.before
    if (began := _new_optimizer(view, view.shift)) and longer > 1:
        words = {"longer": f"{longer:.1f}"}
        found = Measured(level=longer - 1, words=words, summary=_OTHER_OPTIMIZER)
        found.evidence.update(since_step=began, what="new optimizer")
        return found
    what, times = _more_work(view, view.shift)
    if times < 1 + EXPLAINED_SHARE * (longer - 1):
        return None
    since = int(view.window.steps[view.shift.at])
    words = {"times": f"{times:.1f}", "longer": f"{longer:.1f}"}
    return Measured(level=longer - 1, words=words, evidence={"since_step": since, "what": what})


_OTHER_OPTIMIZER: Final = (
    "Steps take {longer} times as long since step {since_step}, where another optimizer takes over: a new "
    "stage, or more layers that are trained."
)


def _new_optimizer(view: TimeView, shift: Shift) -> int:
    """The step from which on another optimizer ends the steps, if the shift is there; else 0."""
    at = int(view.window.steps[shift.at])
    near = [step for step in view.window.new_optimizers if abs(step - at) <= SAME_MOMENT]
    return near[0] if near else 0


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
    more, batches = _more_batches(view.window, slow, others)
    words["where"] += f"; they take {batches}" if more > 1 else ""  # no riddle
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


def _more_batches(window: w.Window, slow: Any, others: Any) -> tuple[float, str]:
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
    """The phase that explains why the slow steps take longer than the others. `level` is what a phase takes
    in slow steps: the median after a shift of the typical step, the mean if each is slow in its own way."""
    window = view.window
    typical = {k: window.series(k).medians for k in (*w.MODEL, w.INPUT, w.H2D, w.SYNC)}
    typical[w.WAIT] = w.median_over_ranks(view.net_wait)
    typical[GARBAGE_COLLECTION] = w.median_over_ranks(window.gc_ns)
    more = {k: float(level(v[slow]) - np.median(v[others])) / 1e6 for k, v in typical.items()}
    usual = window.wait_places[:, others].mean(axis=(0, 1))
    cause = _explaining(more, extra_ms, window.wait_places[:, slow].mean(axis=(0, 1)) - usual)
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
    late_cause = _explaining(late, extra_ms, places, named)
    return late_cause if late_cause.name else cause


def _explaining(
    more_ms: dict[str, float], extra_ms: float, places: w.Floats, ranks: tuple[int, ...] = ()
) -> Cause:
    """The largest of these if it explains enough, otherwise the two largest. Garbage collection comes first:
    it runs inside phases. If it is wait, the largest of `places` says where."""
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
    main, works, clauses = stops[longest], {}, []
    everyone = "the training" if len(window.ranks) < 2 else "all ranks"
    stopped: dict[str, list[str]] = {}
    for i, stop in stops.items():
        more, batches = _more_batches(window, i, slice(None))
        longer = float(view.slowest_steps[i] / typical)
        # A step that ran the model more often by about as much as it took longer was not stopped.
        works[i] = f", with {batches}" if more > 1 and more >= longer / 2 else ""
        took = fmt.seconds(float(view.slowest_steps[i]) / 1e9)
        clauses.append(f"Step {window.steps[i]} took {took}, {stop.words['where']}{works[i]}")
        who = _named(stop.ranks) if stop.ranks else everyone
        stopped.setdefault(who, []).append(f"step {window.steps[i]}")
    what = " and ".join(f"{who} in {' and '.join(steps)}" for who, steps in stopped.items())
    return Measured(
        level=beyond_delay(share, window.cpu_delay_share),
        score=share,
        words={"steps": ". ".join(clauses), "what": what},
        action=_DOES_MORE if works[longest] else None,
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


_DOES_MORE: Final = (
    "Check that step {step} should do so much more than the others (L-BFGS, accumulation). If it should, "
    "nothing stopped it."
)


def _find_stop(view: TimeView, at: int, extra_ns: float) -> Cause:
    """Where one step spent its extra time: on the ranks whose own work took longer, or, if that is none of
    them, on all ranks, which then waited for each other. In the first steps and without sync times a rank
    waits in its passes, so one that spent the time elsewhere is the one that the others waited for."""
    window = view.window

    def beyond_usual(values: w.Floats) -> w.Floats:
        found: w.Floats = values[:, at] - np.median(values, axis=1)
        return found

    more = {k: beyond_usual(window.of(k)) for k in window.keys}
    mine = beyond_usual(window.own_work.values) >= 0.5 * extra_ns
    passes = (w.BACKWARD, w.SYNC, *((w.FORWARD,) if window.steps[at] <= FIRST_STEPS else ()))
    elsewhere = np.max([more[k] for k in more if k not in passes], axis=0) >= 0.5 * extra_ns
    mine = mine & elsewhere if (mine & elsewhere).any() else mine
    some = mine.any() and not mine.all()
    rows = np.flatnonzero(mine) if some else np.arange(len(mine))
    more[GARBAGE_COLLECTION] = beyond_usual(window.gc_ns)
    more_ms = {k: float(values[rows].mean()) / 1e6 for k, values in more.items()}
    named = tuple(window.ranks[row] for row in rows) if some else ()
    return _explaining(more_ms, extra_ns / 1e6, window.wait_places[rows, at].sum(axis=0), named)


def long_end(view: TimeView) -> Measured | None:
    """The command went on for a large part of the run after its last step, without validation or
    checkpoints."""
    window = view.window
    end_s, share = window.end
    if end_s < LEAST_END_S or window.cpu_delay_share >= BUSY_MACHINE:
        return None
    found = Measured(level=share, score=share, words={"after": fmt.seconds(end_s)})
    found.evidence.update(step=int(window.steps[-1]), after_ms=1e3 * end_s)
    return found


def dropped_steps(view: TimeView) -> Measured | None:
    """Steps that began but never completed took long: the script caught an exception or skipped a batch."""
    window = view.window
    if not window.dropped_ns.any() and not len(view.skipping):
        return None
    skipped_ns = view.skipped_ns
    each_ns = skipped_ns + window.dropped_ns if window.dropped_ns.size else skipped_ns
    lost = each_ns.sum(axis=1)
    row = int(np.argmax(lost))
    longest = int(np.argmax(each_ns[row]))
    whole = window.net_step_ns[row].sum() + (lost - skipped_ns.sum(axis=1))[row]
    share = float(lost[row] / whole)
    return Measured(
        level=share,
        score=share,
        ranks=(window.ranks[row],) if len(window.ranks) > 1 else (),
        evidence={
            "lost_ms": float(lost[row]) / 1e6,
            "times": int(np.count_nonzero(each_ns[row])),
            "step": int(window.steps[longest]),
            "longest_ms": float(each_ns[row, longest]) / 1e6,
        },
    )


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
SINGLE_RULES: Final[tuple[Rule[TimeView], ...]] = (
    Rule(
        "STALL",
        stall,
        "{steps}. A typical step takes {typical_ms}. That cost {score} of the training time.",
        "Find out what stopped {what}: storage, network, a lock, other jobs on the machine.",
        Thresholds(of="{} of the training time lost in one or two steps"),
    ),
    Rule(
        "DROPPED_STEPS",
        dropped_steps,
        "{lost_ms} of the training time ({score}) went into steps that were not completed ({times}); the "
        "longest took {longest_ms}, before step {step} was completed.",
        "Look at the exception that the script catches there, or its reason to skip a batch (lack of memory, "
        "bad data).",
        Thresholds(of="{} of the training time"),
    ),
    Rule(
        "LONG_END",
        long_end,
        "After the last step ({step}) the command went on for {after}, {score} of the run, without "
        "validation or checkpoints.",
        "Look at what runs after the training loop: tests, plots, uploads, processes that are waited for.",
        Thresholds(CRIT_SHARE, None, of="{} of the run"),
    ),
)
