"""Diagnoses that compare ranks: who holds the others up, in which phase, and what it costs everyone."""

from __future__ import annotations

from typing import Final

import numpy as np

from traceml.analyze.rank_view import MOST_NAMED, RankView, Turns
from traceml.analyze.rule import EXPLAINED, Measured, Rule, typical_level
from traceml.analyze.window import (
    CHECKPOINT,
    COMPUTE,
    H2D,
    INPUT,
    LABELS,
    SYNC,
    VALIDATION,
    WAIT,
    Across,
    often,
)
from traceml.schema import catalog as c
from traceml.schema import fmt

NEARLY_EVERY: Final = 0.9


def _straggler(view: RankView, values: Across, phase: str, what: str) -> Measured | None:
    if view.turns is not None:
        return _taking_turns(view, view.turns, values, phase, what)
    found = view.excess(values)
    if view.coupled and found.at != view.culprit:
        return None  # another rank is later still
    if view.coupled and view.most_are_late:
        return None  # it is like most of them
    level = found.ns / view.step_ns
    whole = view.excess_of(view.own, found.at)
    if view.coupled and found.ns < EXPLAINED * whole:
        return None  # it does not explain why the others wait for this rank
    if view.coupled and whole < 0.5 * found.ns:
        return None  # the rank makes up for it elsewhere: nobody waits
    mine, typical = found.rank_ns / 1e6, found.others_ns / 1e6
    how_often = (
        "nearly every step" if found.share >= NEARLY_EVERY else f"{fmt.share(found.share)} of the steps"
    )
    cost_ms = view.replay_ms(found.at)
    return Measured(
        level=level,
        score=level,
        words={
            "rank": view.name(found.at),
            "said": f"{view.name(found.at)} spends {fmt.ms(mine)} on {what}, the median rank "
            f"{fmt.ms(typical)}: {fmt.ms(found.ns / 1e6)} more ({fmt.share(level)} of a step), "
            f"in {how_often}; "
            + ("the others wait for it" if view.coupled else "the ranks do not keep pace with each other"),
        },
        phase=phase,
        ranks=(view.window.ranks[found.at],),
        evidence={
            "excess_ms": found.ns / 1e6,
            "rank_ms": mine,
            "median_ms": typical,
            "share": level,
            "coupled": view.coupled,
            "rotates": False,
            "slowest_step_ms": view.slowest_step_ms,
        },
        cost_ms=cost_ms,
    )


def _taking_turns(view: RankView, turns: Turns, values: Across, phase: str, what: str) -> Measured | None:
    """The same when no rank is always the last one."""
    each_ns, whole_ns = view.lateness_ns(turns, values), view.lateness_ns(turns, view.own)
    if (each_ns < EXPLAINED * whole_ns).any() or (whole_ns <= 0).any():
        return None
    late_ns = float(each_ns.mean())
    who = _names(view, turns.named)
    late, share = fmt.ms(late_ns / 1e6), fmt.share(turns.share)
    if turns.rotates:
        said = f"{who} take turns at being last: in each step one of them is {late} behind the others, "
        said += "which wait for it"
    else:
        said = f"{who} are slow in nearly every step: {late} behind the others, which wait for them"
    return Measured(
        level=turns.level,
        score=turns.share,
        words={
            "rank": who,
            "said": f"{said} ({share} of all time), because of {what}",
            "advice": "inspect their input path, their own work and their machine",
        },
        phase=phase,
        ranks=tuple(view.window.ranks[at] for at in turns.named),
        evidence={
            "excess_ms": late_ns / 1e6,
            "share": turns.share,
            "coupled": True,
            "rotates": turns.rotates,
            "slowest_step_ms": view.slowest_step_ms,
        },
        cost_ms=turns.cost_ms,
        action=_EVEN_OUT if turns.rotates else None,
    )


def _names(view: RankView, at: tuple[int, ...]) -> str:
    """Some ranks in a sentence."""
    if not at:
        return "The ranks"
    names = [view.name(a) for a in at[:MOST_NAMED]]
    names += [f"{len(at) - MOST_NAMED} more"] if len(at) > MOST_NAMED else []
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


_EVEN_OUT: Final = (
    "Give every rank the same work in each step: batches of equal size and length, even shards. "
    "Then look for what stops single ranks now and then: storage, garbage collection, other jobs."
)


def input_straggler(view: RankView) -> Measured | None:
    """One rank, or another in each step, waits longer for its batches than the others, which wait for it."""
    if view.uneven_in_both:
        return None  # both: STRAGGLER
    return _straggler(view, view.window.across(INPUT), INPUT, "input")


def compute_straggler(view: RankView) -> Measured | None:
    """One rank, or another in each step, spends longer on its own forward, local backward or optimizer."""
    if view.uneven_in_both:
        return None  # both: STRAGGLER
    phase = view.most_uneven(view.compute_phases, view.compute)
    return _straggler(view, view.compute, phase, f"compute, most of it in {LABELS[phase]}")


def h2d_straggler(view: RankView) -> Measured | None:
    """One rank spends longer on copies to its device than the others."""
    if not view.window.measured(H2D):
        return None
    return _straggler(view, view.window.across(H2D), H2D, "copies to the device")


def straggler(view: RankView) -> Measured | None:
    """One rank holds the others up in input and compute alike, or in something that no phase explains."""
    if view.turns is not None:
        if any(rule(view) is not None for rule in (input_straggler, compute_straggler, h2d_straggler)):
            return None
        phase = view.most_uneven((INPUT, *COMPUTE, CHECKPOINT, VALIDATION, WAIT), view.own)
        return _straggler(view, view.own, phase, f"their own work, most of it in {LABELS.get(phase, phase)}")
    together = view.window.of(INPUT) + view.compute.values
    if view.uneven_in_both:
        found = _straggler(view, Across(together), INPUT, "input and compute together")
        if found is not None:
            found.words["advice"] = "inspect its input path, its own work and its machine"
        return found
    rest = Across(view.own.values - together - view.window.of(H2D))
    at = view.excess(rest).at
    parts = (CHECKPOINT, VALIDATION, *view.window.user_keys, WAIT)
    phase = view.most_uneven(parts, rest)
    found = _straggler(view, rest, phase, _outside_words(view, phase, at))
    if found is not None:
        found.words["advice"] = _OUTSIDE_ADVICE.get(phase, _OUTSIDE_ADVICE[WAIT])
    return found


def _outside_words(view: RankView, phase: str, at: int) -> str:
    """What a rank does outside input and model work."""
    if phase != WAIT:
        name = LABELS.get(phase, f"phase {phase[5:]!r}")
        return f"work outside the step itself, most of it in {name}"
    places = view.window.wait_places
    others = np.delete(places, at, axis=0).mean(axis=0)
    place = int(np.argmax((places[at] - others).sum(axis=0)))
    return f"time in no phase, most of it {c.WAIT_PLACES[place].where}"


_OUTSIDE_ADVICE: Final = {
    CHECKPOINT: "save less often, or asynchronously, or share the writing between ranks",
    VALIDATION: "validate less often, or share the batches between ranks",
    WAIT: "look at what only this rank does there: logging, metrics, saving, its machine",
}


def comm_bound(view: RankView) -> Measured | None:
    """Exchanging gradients costs even the rank that arrives last: communication itself, not waiting."""
    window = view.window
    paid = window.of(SYNC).min(axis=0)
    step_ms = float(np.median(window.judged_ns.mean(axis=1))) / 1e6
    cost_ms = float(paid.mean()) / 1e6
    share = cost_ms / step_ms
    typical = float(often(np.sort(paid / window.judged_ns.mean(axis=0))))
    return Measured(
        level=typical_level(share, typical) - window.cpu_delay_share,  # starved of cores, not of bandwidth
        score=share,
        words={"cost": fmt.ms(cost_ms), "share": fmt.share(share), "step": fmt.ms(step_ms)},
        phase=SYNC,
        evidence={"share": share, "typical_share": typical, "sync_ms": cost_ms, "step_ms": step_ms},
        cost_ms=cost_ms,
    )


_SENTENCE: Final = "{said}."
RULES: Final[tuple[Rule[RankView], ...]] = (
    Rule(
        "INPUT_STRAGGLER",
        "INPUT STRAGGLER",
        input_straggler,
        _SENTENCE,
        "Inspect the input path of {rank}: its shard, its storage, its loader workers.",
        needs=(INPUT,),
    ),
    Rule(
        "COMPUTE_STRAGGLER",
        "COMPUTE STRAGGLER",
        compute_straggler,
        _SENTENCE,
        "Compare batch shapes, rank-local work and clocks of {rank} with the others.",
        needs=COMPUTE,
    ),
    Rule(
        "H2D_STRAGGLER",
        "H2D STRAGGLER",
        h2d_straggler,
        _SENTENCE,
        "Check pinned memory, the PCIe link and the NUMA placement of {rank}.",
    ),
    Rule(
        "STRAGGLER",
        "STRAGGLER",
        straggler,
        _SENTENCE,
        "{rank}: {advice}.",
        needs=(INPUT, *COMPUTE),
    ),
    Rule(
        "COMM_BOUND",
        "COMM-BOUND",
        comm_bound,
        "Exchanging data between ranks takes {cost} of a {step} step ({share}), even for the last to arrive.",
        "Exchange less or overlap it: larger batches, accumulation with no_sync, compression, bucket size.",
        needs=(SYNC,),
    ),
)
