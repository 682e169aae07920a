"""The table of a comparison as cells of text, shared by the text and the markdown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from traceml.schema import fmt_change
from traceml.schema.comparison import SAME, Change, Comparison

ALWAYS: Final = (
    "step_ms",
    "input_ms",
    "compute_ms",
    "wait_ms",
    "wait_share",
    "system.gpu_util_percent",
)
GROUPS: Final = (
    ("Phases", ("h2d_ms", "forward_ms", "backward_ms", "sync_ms", "optimizer_ms", "validation_ms")),
    ("Throughput", ("samples_per_s", "tokens_per_s", "samples_per_step", "tokens_per_step")),
    ("Memory", ("step_memory.",)),
    ("System", ("system.",)),
    ("Process", ("process.",)),
    ("Run", ("duration_s",)),
)
ALSO_PHASES: Final = ("checkpoint_ms", "gc_ms", "user.")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    label: str
    a: str
    b: str
    change: str


def lead_rows(found: Comparison) -> list[Row]:
    """The rows that every comparison begins with."""
    primary, memory = found.diagnosis["primary"], found.diagnosis["step_memory"]
    rows = [Row("Primary diagnosis", primary.a or "n/a", primary.b or "n/a", primary.change)]
    rows += [_row(found.metrics[key]) for key in ALWAYS if key in found.metrics]
    rows.append(Row("Step memory", memory.a or "n/a", memory.b or "n/a", memory.change))
    return rows


def more_rows(found: Comparison) -> list[tuple[str, list[Row]]]:
    """Phase splits, throughput, memory, system, process: where they say something."""
    groups = []
    for title, keys in GROUPS:
        wanted = (*keys, *ALSO_PHASES) if title == "Phases" else keys
        rows = [
            _row(change)
            for key, change in found.metrics.items()
            if key not in ALWAYS and key.startswith(wanted) and change.notable
        ]
        section = {"System": "system", "Process": "process"}.get(title)
        shift = found.diagnosis.get(section) if section else None
        if shift is not None and shift.change != SAME and shift.a != shift.b:
            rows.insert(0, Row("Diagnosis", shift.a or "n/a", shift.b or "n/a", shift.change))
        if rows:
            groups.append((title, rows))
    return groups


def _row(change: Change) -> Row:
    return Row(
        change.label,
        fmt_change.value(change.unit, change.a),
        fmt_change.value(change.unit, change.b),
        fmt_change.change(change.unit, change.delta, change.delta_share),
    )
