"""Two sides in, one Comparison out. Pure: no file, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from traceml.analyze import compare_like as like
from traceml.analyze import compare_metrics as numbers
from traceml.analyze import compare_verdict as verdicts
from traceml.schema import comparison as c
from traceml.schema import fmt, fmt_change
from traceml.schema.comparison import Cause, Comparison, Interval, Mover, RunRef, Shift, Side
from traceml.schema.summary import Primary, Summary

SECTIONS: Final = ("step_time", "step_memory", "system", "process")
NEXT: Final = {
    c.IMPROVEMENT: "Keep B.",
    c.NO_CHANGE: "Nothing to do.",
    c.MIXED: "Decide which of the two matters more here.",
}


def compare(
    a: Sequence[Summary], b: Sequence[Summary], a_refs: Sequence[RunRef], b_refs: Sequence[RunRef]
) -> Comparison:
    """A is what was, B is what is; every delta is B - A."""
    metrics = numbers.changes(a, b)
    moved = numbers.movers(a, b, metrics)
    alone = moved[0].ranks[0] if len(moved) == 1 and len(moved[0].ranks) == 1 else None
    causes = numbers.causes(a, b, metrics, alone, like.basis(a, b)[1])
    diagnosis = {"primary": verdicts.shift_of(*_primaries(a, b))}
    for name in SECTIONS:
        diagnosis[name] = verdicts.shift_of(
            [getattr(run, name).diagnosis for run in a], [getattr(run, name).diagnosis for run in b]
        )
    shift = diagnosis["primary"]
    interval = verdicts.judge_step_time(a, b)
    memory = verdicts.judge_memory(a, b, metrics, diagnosis["step_memory"])
    verdict = verdicts.verdict(interval.change, memory)
    against = _against_the_average(interval, metrics)
    explained = [] if against or interval.change == c.SAME else causes
    return Comparison(
        a=Side(_side_name(a_refs), list(a_refs)),
        b=Side(_side_name(b_refs), list(b_refs)),
        verdict=verdict,
        why=_why(verdict, interval, memory, metrics, explained, moved, diagnosis["step_memory"]),
        next=verdicts.settle(a, b, interval)
        if verdict == c.INCONCLUSIVE
        else _next(verdict, b, causes, shift),
        interval=interval,
        diagnosis=diagnosis,
        metrics=metrics,
        memory_change=memory,
        explained_by=explained,
        moved=moved if explained else [],
        differences=like.differences(a, b),
        warnings=like.warnings(a, b) + _blind_warning(interval) + against,
    )


def _primaries(a: Sequence[Summary], b: Sequence[Summary]) -> tuple[list[Primary], list[Primary]]:
    return [run.primary_diagnosis for run in a], [run.primary_diagnosis for run in b]


def _next(verdict: str, b: Sequence[Summary], causes: list[Cause], shift: Shift) -> str:
    if verdict != c.REGRESSION:
        return NEXT[verdict]
    with_it = [x for x in causes if x.share > 0]
    look = f"Look first at {_who(with_it[0]).lower()}." if with_it else "Look first at memory."
    action = b[0].primary_diagnosis.action if shift.change in (c.WORSE, c.CHANGED) else ""
    return f"{look} {action}".strip()


def _side_name(refs: Sequence[RunRef]) -> str:
    first = refs[0].name
    return first if len(refs) == 1 else f"{first} and {len(refs) - 1} more"


def _blind_warning(interval: Interval) -> list[str]:
    if interval.delta_share is None or interval.low_share is not None:
        return []
    return ["There are no block means on both sides: averages are compared, without an interval."]


def _against_the_average(interval: Interval, metrics: dict[str, c.Change]) -> list[str]:
    """A burst moves a run's average and not its typical step: phases explain neither then."""
    whole = metrics["step_ms"].delta_share
    typical = interval.delta_share
    if interval.basis != "step" or not whole or not typical or whole * typical > 0:
        return []
    if max(abs(whole), abs(typical)) < verdicts.NOISE_FLOOR:
        return []
    return [
        f"The average step moved by {fmt_change.share(whole)}, the typical step by "
        f"{fmt_change.share(typical)}: slow stretches in one of the runs, see its own summary."
    ]


def _why(
    verdict: str,
    interval: Interval,
    memory: str,
    metrics: dict[str, c.Change],
    causes: list[Cause],
    moved: list[Mover],
    memory_shift: Shift,
) -> str:
    parts = [_step_sentence(interval)]
    if interval.change in (c.BETTER, c.WORSE):
        parts += _cause_sentences(causes)
        if causes and interval.basis != "step":
            parts.append("(Phases for the work of a step of A.)")
    if interval.change != c.SAME:
        parts += [_moved_sentence(m) for m in moved]
    if memory in (c.BETTER, c.WORSE, c.CHANGED):
        parts.append(_memory_sentence(metrics, memory_shift))
    return " ".join(p for p in parts if p)


def _step_sentence(interval: Interval) -> str:
    if interval.a_ms is None or interval.b_ms is None or interval.delta_share is None:
        return "There are no step times to compare."
    what = "The typical step" if interval.basis == "step" else f"The time per {interval.basis}"
    said = {c.WORSE: "is slower", c.BETTER: "is faster", c.SAME: "is the same within the noise"}
    lead = f"{what} {said.get(interval.change, 'cannot be told apart from noise')}: "
    if interval.basis == "step":
        lead += f"{fmt.ms(interval.a_ms)} -> {fmt.ms(interval.b_ms)}, "
    sure = "no interval"
    if interval.low_share is not None and interval.high_share is not None:
        sure = (
            f"{fmt_change.whole_percent(interval.confidence or 0.0)} interval "
            f"{fmt_change.share(interval.low_share)} to {fmt_change.share(interval.high_share)}"
        )
    return f"{lead}{fmt_change.share(interval.delta_share)} ({sure})."


def _cause_sentences(causes: list[Cause]) -> list[str]:
    with_it = [x for x in causes if x.share > 0][:3]
    against = [x for x in causes if x.share < 0][-2:]
    found = []
    if with_it:
        named = [
            f"{_who(x)} {fmt_change.ms(x.delta_ms)} explains {fmt_change.whole_percent(x.share)}"
            for x in with_it
        ]
        found.append("; ".join(named) + " of the change.")
    if against:
        found.append(
            "Against it: " + ", ".join(f"{_who(x)} {fmt_change.ms(x.delta_ms)}" for x in against) + "."
        )
    return found


def _who(cause: Cause) -> str:
    return cause.label if cause.rank is None else f"{cause.label} on r{cause.rank}"


def _moved_sentence(mover: Mover) -> str:
    ranks = ", ".join(f"r{r}" for r in mover.ranks)
    who = f"Node {mover.node} ({ranks})" if mover.node is not None else ranks
    others = fmt_change.ms(mover.others_delta_ms)
    return (
        f"{who} moved by itself: {mover.label} {fmt.ms(mover.a_ms)} -> {fmt.ms(mover.b_ms)} "
        f"({fmt_change.ms(mover.delta_ms)}; the other ranks {others})."
    )


def _memory_sentence(metrics: dict[str, c.Change], shift: Shift) -> str:
    change = metrics.get("step_memory.peak_allocated_bytes") or metrics.get("step_memory.rss_bytes")
    said = "Memory"
    if change is not None and change.delta is not None:
        grown = fmt_change.signed(fmt.size(change.delta))
        said += f" {fmt.size(change.a)} -> {fmt.size(change.b)} ({grown})"
    if shift.a != shift.b and shift.change != c.UNCLEAR:
        said += f", from {shift.a} to {shift.b}"
    return f"{said}."
