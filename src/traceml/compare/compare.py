"""Two sides in, one Comparison out. Pure: no file, no clock."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from traceml.compare import like
from traceml.compare import metrics as numbers
from traceml.compare import verdict as verdicts
from traceml.compare.side import Runs
from traceml.schema import comparison as c
from traceml.schema import fmt
from traceml.schema.comparison import Cause, Comparison, Interval, Mover, RunRef, Shift, Side

DIAGNOSES: Final = {
    "primary": attrgetter("primary_diagnosis"),
    **{name: attrgetter(f"{name}.diagnosis") for name in ("step_time", "step_memory", "system", "process")},
}
NEXT: Final = {
    c.IMPROVEMENT: "Keep B.",
    c.NO_CHANGE: "Nothing to do.",
    c.MIXED: "Decide which of the changes matters more to you.",
}
_NO_INTERVAL: Final = "At least one run has no block means, so averages are compared without an interval."
STEP_RESULT: Final = {
    c.WORSE: "is slower",
    c.BETTER: "is faster",
    c.SAME: "is the same within the noise",
    c.UNCLEAR: "may or may not have changed",
}


def compare(a: Runs, b: Runs, a_refs: Sequence[RunRef], b_refs: Sequence[RunRef]) -> Comparison:
    """A is before, B is after. Every delta is B - A."""
    metrics = numbers.changes(a, b)
    moved = numbers.movers(a, b, metrics)
    alone = moved[0].ranks[0] if len(moved) == 1 and len(moved[0].ranks) == 1 else None
    causes = numbers.causes(a, b, metrics, alone, like.basis(a, b)[1])
    found = {name: ([of(run) for run in a], [of(run) for run in b]) for name, of in DIAGNOSES.items()}
    diagnosis = {name: verdicts.shift_of(*sides) for name, sides in found.items()}
    interval = verdicts.judge_step_time(a, b)
    memory = verdicts.judge_memory(a, b, metrics, diagnosis["step_memory"])
    verdict = verdicts.verdict(interval.change, memory)
    contradiction = _average_against_typical(interval, metrics)
    explained = [] if contradiction or interval.change == c.SAME else causes
    why = [_step_sentence(interval)]
    if interval.change in (c.BETTER, c.WORSE):
        why += _cause_sentences(explained, interval.basis)
    if interval.change != c.SAME:
        why += [_mover_sentence(mover) for mover in moved]
    if memory in (c.BETTER, c.WORSE, c.CHANGED):
        why.append(_memory_sentence(metrics, diagnosis["step_memory"]))
    differences = like.differences(a, b)
    unlike = like.unlike(differences)
    if unlike:
        parts = _and([f"{d.what} ({d.a} -> {d.b})" for d in unlike])
        why.append(f"But A and B are not alike: they differ in {parts}, and the change may come from that.")
    if verdict == c.INCONCLUSIVE:
        what_next = verdicts.how_to_settle(a, b, interval)
    elif verdict == c.REGRESSION:
        what_next = _look_first(b, causes, diagnosis["primary"])
    else:
        what_next = NEXT[verdict] if not unlike else ""
    if unlike:
        alike = f"Compare runs with the same {_and([d.what for d in unlike])} before you decide."
        what_next = f"{alike} {what_next}".strip()
    same = _same_runs(a_refs, b_refs)
    if len(same) == len(a_refs) == len(b_refs):
        verdict, what_next = c.NO_CHANGE, "Name two different runs."
        why = ["A and B are the same run: there is nothing to compare."]
    return Comparison(
        a=_side(a_refs),
        b=_side(b_refs),
        verdict=verdict,
        why=" ".join(why),
        next=what_next,
        interval=interval,
        diagnosis=diagnosis,
        metrics=metrics,
        memory_change=memory,
        explained_by=explained,
        moved=moved if explained else [],
        differences=differences,
        warnings=[
            *(f"{name} is in both A and B." for name in same),
            *like.warnings(a, b),
            *([_NO_INTERVAL] if interval.delta_share is not None and interval.low_share is None else []),
            *contradiction,
        ],
    )


def _look_first(b: Runs, causes: list[Cause], shift: Shift) -> str:
    slower = next((_who(cause).lower() for cause in causes if cause.share > 0), "memory")
    action = b[0].primary_diagnosis.action if shift.change in (c.WORSE, c.CHANGED) else ""
    return f"Look first at {slower}. {action}".strip()


def _same_runs(a_refs: Sequence[RunRef], b_refs: Sequence[RunRef]) -> list[str]:
    """Names of the runs that are on both sides: the same file, or a copy of it."""

    def marks(ref: RunRef) -> set[object]:
        found: set[object] = {ref.path} if ref.path else set()
        return found | ({(ref.name, ref.started_at, ref.steps)} if ref.started_at else set())

    there: set[object] = set().union(*(marks(ref) for ref in b_refs))
    return [ref.name for ref in a_refs if marks(ref) & there]


def _side(refs: Sequence[RunRef]) -> Side:
    more = f" and {len(refs) - 1} more" if len(refs) > 1 else ""
    return Side(refs[0].name + more, list(refs))


def _average_against_typical(interval: Interval, metrics: dict[str, c.Change]) -> list[str]:
    """A burst changes the average of a run but not its typical step. Phases then explain neither."""
    average, typical = metrics["step_ms"].delta_share, interval.delta_share
    if interval.basis != like.STEP or not average or not typical or average * typical > 0:
        return []
    if max(abs(average), abs(typical)) < verdicts.NOISE_FLOOR:
        return []
    return [
        f"The average step changed by {fmt.share_change(average)}, but the typical step by "
        f"{fmt.share_change(typical)}. One of the runs had slow stretches; see its own summary."
    ]


# ---- sentences -----------------------------------------------------------------------------------


def _step_sentence(interval: Interval) -> str:
    if interval.a_ms is None or interval.b_ms is None or interval.delta_share is None:
        return "There are no step times to compare."
    is_mean = interval.statistic == c.MEAN
    what, times = f"The {'mean ' * is_mean}time per {interval.basis}", ""
    if interval.basis == like.STEP:
        what, times = (
            f"The {interval.statistic} step",
            f"{fmt.ms(interval.a_ms)} -> {fmt.ms(interval.b_ms)}, ",
        )
    certainty = "no interval"
    if interval.low_share is not None and interval.high_share is not None:
        low, high = fmt.share_change(interval.low_share), fmt.share_change(interval.high_share)
        certainty = f"{fmt.whole_percent(interval.confidence or 0.0)} interval {low} to {high}"
    change = fmt.share_change(interval.delta_share)
    sentence = f"{what} {STEP_RESULT[interval.change]}: {times}{change} ({certainty})."
    came = "fewer or shorter" if interval.change == c.BETTER else "more or longer"
    return (
        f"{sentence} B has {came} slow steps; the typical step did not clearly change."
        if is_mean
        else sentence
    )


def _and(words: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _cause_sentences(causes: list[Cause], basis: str) -> list[str]:
    found = []
    by = [(cause.share, f"{_who(cause)} {fmt.ms_change(cause.delta_ms)}") for cause in causes]
    if explaining := [f"{who} explains {fmt.whole_percent(share)}" for share, who in by if share > 0][:3]:
        found.append("; ".join(explaining) + " of the change.")
    if opposing := [who for share, who in by if share < 0][-2:]:
        found.append(f"Partly offset by {', '.join(opposing)}.")
    if found and basis != like.STEP:
        found.append("(Phases of B are scaled to the work of one step of A.)")
    return found


def _who(cause: Cause) -> str:
    return cause.label if cause.rank is None else f"{cause.label} on r{cause.rank}"


def _mover_sentence(mover: Mover) -> str:
    ranks = ", ".join(map(fmt.rank, mover.ranks))
    who = f"Node {mover.node} ({ranks})" if mover.node is not None else ranks
    return (
        f"{who} changed on its own: {mover.label} {fmt.ms(mover.a_ms)} -> {fmt.ms(mover.b_ms)} "
        f"({fmt.ms_change(mover.delta_ms)}; other ranks {fmt.ms_change(mover.others_delta_ms)})."
    )


def _memory_sentence(metrics: dict[str, c.Change], shift: Shift) -> str:
    change = next((metrics[key] for key in verdicts.PEAK.values() if key in metrics), None)
    text = "Memory"
    if change is not None and change.delta is not None:
        text += f" {fmt.size(change.a)} -> {fmt.size(change.b)} ({fmt.signed(fmt.size(change.delta))})"
    if shift.a != shift.b and shift.change != c.UNCLEAR:
        text += f", from {shift.a} to {shift.b}"
    return f"{text}."
