"""Diagnoses that compare ranks: which one holds the others up, in which phase, and what it costs."""

from dataclasses import replace
from typing import Final

import numpy as np

from traceml.analyze import window as w
from traceml.analyze.patterns import find_stretch
from traceml.analyze.rank_view import MOST_NAMED, Excess, LateRanks, RankView
from traceml.analyze.rules import exchange
from traceml.analyze.rules.exchange import phase_name
from traceml.analyze.rules.rule import CRIT_SHARE, EXPLAINED_SHARE, WARN_SHARE, Measured, Rule
from traceml.analyze.window import RankSeries
from traceml.schema import catalog as c
from traceml.schema import fmt

NEARLY_EVERY: Final = 0.9


def _straggler(view: RankView, series: RankSeries, phase: str, what: str) -> Measured | None:
    if view.late_ranks is not None:
        return _several_late(view, view.late_ranks, series, phase, what)
    found = view.excess(series)
    if view.coupled and not _is_waited_for(view, found, phase):
        return None
    share, often, uneven = found.ns / view.typical_step_ns, "nearly every step", _uneven_work(view, found)
    effect = "the others wait for it" if view.coupled else "the ranks do not wait for each other"
    if (late := float(np.mean(found.is_late))) < NEARLY_EVERY:
        stretch = find_stretch(view.window.steps[found.is_late])
        first, last = stretch or (0, view.window.count)  # nearly all steps are no stretch
        where = f", mostly steps {first} to {last}" if last - first < NEARLY_EVERY * view.window.count else ""
        often = f"{fmt.share(late)} of the steps{where}"
    return Measured(
        level=share,
        score=share,
        words={"rank": view.name(found.at), "what": what, "often": often, "effect": effect, "uneven": uneven},
        phase=phase,
        ranks=(view.window.ranks[found.at],),
        evidence={
            "excess_ms": found.ns / 1e6,
            "rank_ms": found.rank_ns / 1e6,
            "median_ms": found.others_ns / 1e6,
            "share": share,
            "coupled": view.coupled,
            "rotates": False,
            "slowest_step_ms": view.slowest_step_ms,
            "uneven_work": bool(uneven),
        },
        cost_ms=view.saving_in_ms(series, found.at),
        summary=f"{_ONE_LATE} {{uneven}}" if uneven else None,
        action=_SAME_WORK if uneven else None,
    )


def _uneven_work(view: RankView, found: Excess) -> str:
    """Says that the late rank has more samples or tokens, if that explains most of its excess."""
    for name, amounts in (("samples", view.window.samples), ("tokens", view.window.tokens)):
        if not amounts.size or np.isnan(amounts).any():
            continue
        each = np.median(amounts, axis=1)
        mine, theirs = float(each[found.at]), w.median_low(np.delete(each, found.at))
        longer = found.rank_ns / max(found.others_ns, 1.0)
        if theirs > 0 and mine / theirs - 1 >= max(WARN_SHARE, 0.5 * (longer - 1)):
            return f"It has {fmt.count(mine)} {name} per step, the median rank {fmt.count(theirs)}."
    return ""


def _is_waited_for(view: RankView, found: Excess, phase: str) -> bool:
    """Whether the other ranks wait for this one, and because of this excess. If another rank is about as late
    for another reason, they wait for both."""
    kin = w.MODEL if phase in w.MODEL else (phase,)
    rivals = [b for b in view.burdens if b.at != found.at and b.phase not in kin and b.ns >= 0.5 * found.ns]
    means = view.window.own_work.rank_means
    border = means.max() - (1 - EXPLAINED_SHARE) * (means.max() - means.min())
    most_are_late = np.sum(means >= border) > len(means) / 2  # a few are early, and none is to blame
    if found.at != view.culprit or most_are_late or rivals:
        return False
    whole_ns = view.excess(view.window.own_work, found.at).ns
    makes_up_elsewhere = whole_ns < 0.5 * found.ns
    return found.ns >= EXPLAINED_SHARE * whole_ns and not makes_up_elsewhere


def _several_late(
    view: RankView, late: LateRanks, series: RankSeries, phase: str, what: str
) -> Measured | None:
    each_ns, whole_ns = view.lateness_ns(late, series), view.lateness_ns(late, view.window.own_work)
    if (each_ns < EXPLAINED_SHARE * whole_ns).any() or (whole_ns <= 0).any():
        return None
    advice = "inspect their input path, their own work and their machines"
    runs = ", ".join(f"r{rank} in steps {first} to {last}" for rank, first, last in late.runs)
    return Measured(
        level=late.level,
        score=late.share,
        words={"rank": _names(view, late.at), "what": what, "advice": advice, "runs": runs},
        phase=phase,
        ranks=tuple(view.window.ranks[at] for at in late.at),
        evidence={
            "excess_ms": float(each_ns.mean()) / 1e6,
            "share": late.share,
            "coupled": True,
            "rotates": late.rotates,
            "slowest_step_ms": view.slowest_step_ms,
        },
        cost_ms=late.cost_ms,
        summary=_AFTER_EACH_OTHER if late.runs else _TAKE_TURNS if late.rotates else _ALWAYS_LATE,
        action=_WHAT_MOVED if late.runs else _EVEN_OUT if late.rotates else None,
    )


_ONE_LATE: Final = (
    "{rank} spends {rank_ms} on {what}, the median rank {median_ms}: {excess_ms} more ({share} of a step), "
    "in {often}; {effect}."
)
_SAME_WORK: Final = (
    "Give every rank the same amount of data: compare the sampler, shards and batch size of {rank}."
)
_NO_LOADER: Final = (
    "Look at what {rank} runs before its forward pass: making the batch, or logging and saving that the "
    "others do not do."
)
_ALWAYS_LATE: Final = (
    "{rank} are slow in nearly every step: {excess_ms} behind the others, which wait for them "
    "({share} of all time), because of {what}."
)
_DIFFERENT_REASONS: Final = (
    "In nearly every step some ranks spend time that the others do not: {parts}. Without it, a step would "
    "take {cost_ms} less ({share})."
)
_NOT_LATE: Final = (
    "In nearly every step {rank} spends time that the others do not: {parts}. It is still not late, because "
    "it spends less on other work."
)
_MEND_ALL: Final = (
    "Fix all of them; fixing one gains little, because the others are about as late. {rank}: {advice}."
)
_MEND_FIRST: Final = (
    "Fix {worst} first: that alone may gain {alone_ms}. The rest of the gain needs all of them fixed. "
    "{rank}: {advice}."
)
_TAKE_TURNS: Final = (
    "{rank} take turns at being last: in each step one of them is {excess_ms} behind the others, which wait "
    "for it ({share} of all time), because of {what}."
)
_AFTER_EACH_OTHER: Final = (
    "One rank after another holds the others up: {runs}. The late rank is {excess_ms} behind the others, "
    "which wait for it ({share} of all time), because of {what}."
)
_WHAT_MOVED: Final = (
    "Find out what moved from one rank to the next at these steps: data, storage, other jobs on its machine."
)
_EVEN_OUT: Final = (
    "Give every rank the same work in each step: batches of equal size and length, even shards. "
    "Then look for what stops single ranks now and then: storage, garbage collection, other jobs."
)


def _names(view: RankView, at: tuple[int, ...]) -> str:
    if not at:
        return "The ranks"
    names = [view.name(a) for a in at[:MOST_NAMED]]
    last = f"{len(at) - MOST_NAMED} more" if len(at) > MOST_NAMED else names.pop()
    return f"{', '.join(names)} and {last}" if names else last


def input_straggler(view: RankView) -> Measured | None:
    """One rank, or a different one in each step, waits longer for its batches, and the others wait for it."""
    if view.uneven_in_both:
        return None  # reported as STRAGGLER
    found = _straggler(view, view.window.series(w.INPUT), w.INPUT, "input")
    if found is None or found.action is not None or not view.window.input_inferred:
        return found
    found.words["what"] = f"input (inferred: everything that runs {view.window.input_place})"
    return replace(found, action=_NO_LOADER)


def compute_straggler(view: RankView) -> Measured | None:
    """One rank, or a different one in each step, spends longer on forward, local backward or optimizer."""
    if view.uneven_in_both:
        return None  # reported as STRAGGLER
    return _straggler(view, view.compute, *_compute_words(view))


def _compute_words(view: RankView) -> tuple[str, str]:
    """The most uneven phase of compute, and its name in a sentence."""
    phase = view.most_uneven(view.compute_phases, view.compute)
    return phase, f"compute (mostly {w.LABELS[phase]})"


def h2d_straggler(view: RankView) -> Measured | None:
    """One rank spends longer on copies to its device than the others."""
    if not view.window.measured(w.H2D):
        return None
    return _straggler(view, view.window.series(w.H2D), w.H2D, "copies to the device")


def straggler(view: RankView) -> Measured | None:
    """One rank holds the others up in both input and compute, or in something that no phase explains; or
    several ranks are late for different reasons."""
    named = [rule(view) for rule in (input_straggler, compute_straggler, h2d_straggler)]
    if any(found is not None and found.level >= WARN_SHARE for found in named):
        return None if view.late_ranks is not None else _generic_straggler(view)
    found = _generic_straggler(view)
    one_alone = found is not None and found.level >= WARN_SHARE and len(found.ranks) == 1
    return found if one_alone else _for_different_reasons(view) or found


def _generic_straggler(view: RankView) -> Measured | None:
    own = view.window.own_work
    if (late := view.late_ranks) is not None:
        keys = (w.INPUT, *w.MODEL, *w.OUTSIDE, w.WAIT)
        parts_ns = {key: float(view.lateness_ns(late, view.window.series(key)).mean()) for key in keys}
        first, second, *_ = sorted(keys, key=lambda key: -parts_ns[key])
        names = ["unattributed" if key == w.WAIT else w.LABELS[key] for key in (first, second)]
        is_one = parts_ns[first] >= EXPLAINED_SHARE * float(view.lateness_ns(late, own).mean())
        what = f"mostly {names[0]}" if is_one else " and ".join(names)
        found = _straggler(view, own, first, f"their own work ({what})")
        return found if found is None or is_one else replace(found, phase=None)
    both = view.window.of(w.INPUT) + view.compute.values
    if view.uneven_in_both:
        advice = "inspect its input path, its own work and its machine"
        parts = {w.LABELS[w.INPUT]: view.window.series(w.INPUT), _compute_words(view)[1]: view.compute}
        more = (
            f"{fmt.ms(view.excess(each, view.culprit).ns / 1e6)} of {name}" for name, each in parts.items()
        )
        what = f"input and compute together ({' and '.join(more)} more than the others)"
        found = _straggler(view, RankSeries(both), w.INPUT, what)
        found = found and replace(found, phase=None)  # no single one
    else:
        rest = RankSeries(own.values - both - view.window.of(w.H2D))
        phase = view.most_uneven((*w.OUTSIDE, *view.window.user_keys, w.WAIT), rest)
        advice = _OUTSIDE_ADVICE.get(phase, _OUTSIDE_ADVICE[w.WAIT])
        what = f"work outside the training step (mostly {phase_name(phase)})"
        if phase == w.WAIT:
            what = f"unattributed work (mostly {_wait_place(view, int(np.argmax(rest.rank_means)))})"
        found = _straggler(view, rest, phase, what)
    if found is not None:
        found.words["advice"] = advice
    return found


def _for_different_reasons(view: RankView) -> Measured | None:
    """Ranks that are about equally late, each in another phase, so that no single one is waited for."""
    if not view.burdens or (view.late_ranks is not None and view.late_ranks.rotates):
        return None
    own = view.window.own_work
    relief = np.bincount([b.at for b in view.burdens], [b.ns for b in view.burdens], len(own.values))
    pace_ns = float((own.values - relief[:, None]).max(axis=0).mean())
    cost_ns = float(own.values.max(axis=0).mean()) - pace_ns
    share, heaviest = cost_ns / view.typical_step_ns, float(relief.max()) / view.typical_step_ns
    is_late = share >= WARN_SHARE
    is_in_the_way = own.rank_means > pace_ns if is_late else relief >= relief.max()
    burdens = [b for b in view.burdens if is_in_the_way[b.at]]
    at = tuple(dict.fromkeys(b.at for b in burdens))
    parts = [
        f"{view.name(b.at)} {fmt.ms(b.ns / 1e6)} on "
        + (f"unattributed work ({_wait_place(view, b.at)})" if b.phase == w.WAIT else phase_name(b.phase))
        for b in burdens
    ]
    more = f" and {len(parts) - MOST_NAMED} more" if len(parts) > MOST_NAMED else ""
    worst = int(np.argmax(own.rank_means))
    alone_ms = view.saving_ms(worst)
    level = share if heaviest < CRIT_SHARE else max(share, WARN_SHARE)
    return Measured(
        level=level - view.window.cpu_delay_share,
        score=share,
        words={
            "rank": _names(view, at),
            "parts": ", ".join(parts[:MOST_NAMED]) + more,
            "advice": "compare data, work and machine with those of the other ranks",
            "worst": view.name(worst),
            "alone_ms": fmt.ms(alone_ms),
        },
        phase=burdens[0].phase if len({b.phase for b in burdens}) == 1 else None,
        ranks=tuple(view.window.ranks[a] for a in at),
        evidence={
            "excess_ms": float(relief[list(at)].mean()) / 1e6,
            "share": share,
            "coupled": view.coupled,
            "rotates": False,
            "slowest_step_ms": view.slowest_step_ms,
        },
        cost_ms=cost_ns / 1e6 if is_late else None,
        summary=_DIFFERENT_REASONS if is_late else _NOT_LATE,
        action=None if len(at) < 2 else _MEND_ALL if 1e6 * alone_ms < 0.25 * cost_ns else _MEND_FIRST,
    )


def _wait_place(view: RankView, at: int) -> str:
    """Where in the step this rank spends more unattributed time than the others."""
    places = view.window.wait_places
    others = np.delete(places, at, axis=0).mean(axis=0)
    return c.WAIT_PLACES[int(np.argmax((places[at] - others).sum(axis=0)))].where


_OUTSIDE_ADVICE: Final = {
    w.CHECKPOINT: "save less often, save asynchronously, or share the writing between ranks",
    w.VALIDATION: "validate less often, or share the batches between ranks",
    w.WAIT: "look at what only this rank does there: logging, metrics, saving, its machine",
}


RULES: Final[tuple[Rule[RankView], ...]] = (
    Rule(
        "INPUT_STRAGGLER",
        input_straggler,
        _ONE_LATE,
        "Inspect the input path of {rank}: shard, storage, loader workers.",
        needs=(w.INPUT,),
    ),
    Rule(
        "COMPUTE_STRAGGLER",
        compute_straggler,
        _ONE_LATE,
        "Compare batch shapes, rank-local work and clocks of {rank} with the others.",
        needs=w.COMPUTE,
    ),
    Rule(
        "H2D_STRAGGLER",
        h2d_straggler,
        _ONE_LATE,
        "Check pinned memory, the PCIe link and the NUMA placement of {rank}.",
    ),
    Rule("STRAGGLER", straggler, _ONE_LATE, "{rank}: {advice}.", needs=(w.INPUT, *w.COMPUTE)),
    *exchange.RULES,
)
