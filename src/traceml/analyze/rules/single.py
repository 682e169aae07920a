"""Step-time diagnoses of single events: stalled steps, work that completed no step, a long start or end."""

from typing import Final

import numpy as np

from traceml.analyze import window as w
from traceml.analyze.rules.change import (
    GARBAGE_COLLECTION,
    Cause,
    busier,
    explaining,
    more_work,
    named,
    with_place,
)
from traceml.analyze.rules.rule import CRIT_SHARE, MOST_SHARE, Measured, Rule, Thresholds, beyond_delay
from traceml.analyze.views import FIRST_STEPS, TimeView
from traceml.schema import fmt

LEAST_START_S: Final = 20.0
"""Importing large libraries takes nearly as long on a small machine. Trials are short on purpose."""
LEAST_END_S: Final = 10.0
BUSY_MACHINE: Final = 0.3
"""If threads waited for a core longer than this, a long start or end says nothing."""


def stall(view: TimeView) -> Measured | None:
    """One or two single steps cost a large part of all time. More of them are JITTER."""
    window, at = view.window, np.array([i for i in view.stalls if not busier(view, i)], dtype=np.int64)
    if not len(at):
        return None
    typical = float(np.median(view.slowest_steps))
    lost = float((view.slowest_steps[at] - typical).sum())
    share = lost / float(window.net_step_ns.sum(axis=1).max())
    longest = at[np.argmax(view.slowest_steps[at])]
    stops = {i: _find_stop(view, i, float(view.slowest_steps[i]) - typical) for i in (longest, *at)}
    main, clauses = stops[longest], []
    everyone = "the training" if len(window.ranks) < 2 else "all ranks"
    stopped: dict[str, list[str]] = {}
    for i, stop in stops.items():
        took = fmt.seconds(float(view.slowest_steps[i]) / 1e9)
        clauses.append(f"Step {window.steps[i]} took {took}, {stop.words['where']}")
        who = named(stop.ranks) if stop.ranks else everyone
        stopped.setdefault(who, []).append(f"step {window.steps[i]}")
    what = " and ".join(f"{who} in {' and '.join(steps)}" for who, steps in stopped.items())
    return Measured(
        level=beyond_delay(share, window.cpu_delay_share),
        score=share,
        words={"steps": ". ".join(clauses), "what": what},
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
        action=_COLLECTS if main.name == GARBAGE_COLLECTION else None,
    )


_COLLECTS: Final = (
    "Python's garbage collector stopped {what}: collect at a better time, with gc.freeze() after setup, or "
    "with gc.disable() and gc.collect() between epochs."
)


def _find_stop(view: TimeView, at: int, extra_ns: float) -> Cause:
    """Where one step spent its extra time: on the ranks whose own work took longer. If there are none, on all
    ranks, which then waited for each other. In the first steps and without sync times a rank waits inside its
    passes, so the rank that spent the time elsewhere is the one that the others waited for."""
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
    places = window.wait_places[rows, at].sum(axis=0)
    return with_place(explaining(more_ms, extra_ns / 1e6, places, named), window)


def long_start(view: TimeView) -> Measured | None:
    """Most of the run passed before the first step. Validation and checkpoints do not count."""
    return _outside_steps(view.window, view.window.start, LEAST_START_S)


def long_end(view: TimeView) -> Measured | None:
    """A large part of the run came after its last step. Validation and checkpoints do not count."""
    return _outside_steps(view.window, view.window.end, LEAST_END_S)


def _outside_steps(window: w.Window, outside: w.OutsideSteps, least_s: float) -> Measured | None:
    if outside.seconds < least_s or window.cpu_delay_share >= BUSY_MACHINE:
        return None
    words = {"took": fmt.seconds(outside.seconds)}
    found = Measured(level=outside.share, score=outside.share, words=words)
    found.evidence.update(step=int(window.steps[-1]), took_ms=1e3 * outside.seconds)
    return found


def dropped_steps(view: TimeView) -> Measured | None:
    """Steps that began but never completed took much time: the script caught an exception or skipped a
    batch."""
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
        "MORE_WORK",
        more_work,
        "Steps take {longer} times as long since step {since_step}, because each has {times} times as many "
        "{what}.",
        "Nothing to fix if that is intended; compare the time per sample, not per step.",
        thresholds=None,
    ),
    Rule(
        "DROPPED_STEPS",
        dropped_steps,
        "{lost_ms} of the training time ({score}) went into steps that were not completed ({times}); the "
        "longest took {longest_ms}, before step {step} was completed.",
        "Look at the exception that the script catches there, or at why it skips a batch (out of memory, bad "
        "data).",
        Thresholds(of="{} of the training time"),
    ),
    Rule(
        "LONG_START",
        long_start,
        "The first step began after {took}, {score} of the run.",
        "Look at what runs before the training loop: imports, downloads, data that every run prepares again. "
        "In a longer training the share is smaller.",
        Thresholds(MOST_SHARE, None, of="{} of the run, from 20 s on"),
    ),
    Rule(
        "LONG_END",
        long_end,
        "After the last step ({step}) the command went on for {took}, {score} of the run, without "
        "validation or checkpoints.",
        "Look at what runs after the training loop: tests, plots, uploads, waiting for other processes.",
        Thresholds(CRIT_SHARE, None, of="{} of the run, from 10 s on"),
    ),
)
