"""Step-time diagnoses of single events: steps that stalled, and work that no step came of."""

from dataclasses import replace
from typing import Final

import numpy as np

from traceml.analyze import window as w
from traceml.analyze.rules.change import GARBAGE_COLLECTION, Cause, explaining, more_batches, named
from traceml.analyze.rules.rule import Measured, Rule, Thresholds, beyond_delay
from traceml.analyze.views import TimeView
from traceml.schema import catalog as c
from traceml.schema import fmt

FIRST_STEPS: Final = 3
"""In them DDP exchanges its order of gradients in the forward pass."""
MORE_WORK: Final = (
    "Check that step {step} should do so much more than the others (L-BFGS, accumulation). If it should, "
    "nothing stopped it."
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
    works = {i: _does_more(view, i) for i in stops}
    clauses = [
        f"Step {window.steps[i]} took {_took(view, i)}, {stop.words['where']}{works[i]}"
        for i, stop in stops.items()
    ]
    main = stops[longest]
    everyone = "the training" if len(window.ranks) < 2 else "all ranks"
    stopped: dict[str, list[str]] = {}
    for i, stop in stops.items():
        stopped.setdefault(named(stop.ranks) if stop.ranks else everyone, []).append(
            f"step {window.steps[i]}"
        )
    what = " and ".join(f"{who} in {' and '.join(steps)}" for who, steps in stopped.items())
    return Measured(
        level=beyond_delay(share, window.cpu_delay_share),
        score=share,
        words={"steps": ". ".join(clauses), "what": what},
        action=MORE_WORK if works[longest] else None,
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


def _does_more(view: TimeView, at: int) -> str:
    """A step that ran the model more often by about as much as it took longer was not stopped."""
    longer = float(view.slowest_steps[at] / np.median(view.slowest_steps))
    more, words = more_batches(view.window, at, slice(None))
    return f", with {words}" if more > 1 and more >= longer / 2 else ""


def _took(view: TimeView, at: int) -> str:
    return fmt.seconds(float(view.slowest_steps[at]) / 1e9)


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
    cause = explaining(more_ms, extra_ns / 1e6, tuple(window.ranks[row] for row in rows) if some else ())
    if cause.name != w.WAIT:
        return cause
    place = int(np.argmax(window.wait_places[rows, at].sum(axis=0)))
    return replace(cause, place=c.WAIT_PLACES[place].where)


def _beyond_usual(values: w.Floats, at: int) -> w.Floats:
    """How much more each rank spends on this in one step than in its usual step."""
    found: w.Floats = values[:, at] - np.median(values, axis=1)
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
)
