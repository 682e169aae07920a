"""The headline and the table rows of a comparison, shared by the text, the markdown and the page."""

from typing import Final

from traceml.schema import fmt
from traceml.schema.comparison import INCONCLUSIVE, NO_CHANGE, SAME, UNCLEAR, Change, Comparison, Shift

ALWAYS: Final = ("step_ms", "input_ms", "compute_ms", "wait_ms", "wait_share", "system.gpu_util_percent")
THROUGHPUT: Final = ("samples_per_s", "tokens_per_s", "samples_per_step", "tokens_per_step")

Row = tuple[str, str, str, str]
"""One line of the table: label, A, B, change."""


def headline(found: Comparison) -> str:
    """The verdict, and both diagnoses if the diagnosis changed."""
    return f"{found.verdict}  {shifted(found)}".rstrip()


def shifted(found: Comparison) -> str:
    """Both diagnoses, if the diagnosis changed; else nothing."""
    shift = found.diagnosis["primary"]
    if found.verdict in (NO_CHANGE, INCONCLUSIVE) or shift.change == UNCLEAR or shift.a == shift.b:
        return ""
    return f"from {shift.a} to {shift.b}"


def lead_rows(found: Comparison) -> list[Row]:
    """The rows that every comparison begins with."""
    rows = [_row(found.metrics[key]) for key in ALWAYS if key in found.metrics]
    primary, memory = found.diagnosis["primary"], found.diagnosis["step_memory"]
    return [_shift("Primary diagnosis", primary), *rows, _shift("Step memory", memory)]


def more_rows(found: Comparison) -> list[tuple[str, list[Row]]]:
    """The other rows that are worth showing, in groups with a title."""
    groups: dict[str, list[Row]] = {}
    for name in ("system", "process"):
        shift = found.diagnosis.get(name)
        if shift is not None and shift.change != SAME and shift.a != shift.b:
            groups[name.title()] = [_shift("Diagnosis", shift)]
    for key, change in found.metrics.items():
        if key not in ALWAYS and change.notable:
            groups.setdefault(_group(key, change), []).append(_row(change))
    order = ("Phases", "Throughput", "Memory", "System", "Process", "Run")
    return [(title, groups[title]) for title in order if title in groups]


def _group(key: str, change: Change) -> str:
    if change.section == "step_time":
        return "Throughput" if key in THROUGHPUT else "Phases"
    return {"step_memory": "Memory"}.get(change.section, change.section.title())


def _shift(label: str, shift: Shift) -> Row:
    return label, shift.a or fmt.MISSING, shift.b or fmt.MISSING, shift.change


def _row(change: Change) -> Row:
    a, b = fmt.in_unit(change.unit, change.a), fmt.in_unit(change.unit, change.b)
    return change.label, a, b, fmt.change(change.unit, change.delta, change.delta_share)
