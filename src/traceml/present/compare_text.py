"""compare/<a>_vs_<b>.txt and the screen: the verdict, why, then the table. At most 100 columns."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import Final

from traceml.present.compare_rows import Row, lead_rows, more_rows
from traceml.schema import fmt
from traceml.schema.comparison import INCONCLUSIVE, Comparison, Side

WIDTH: Final = 100
RULE: Final = "-" * WIDTH
MOST_RUNS: Final = 8
UNIT: Final = re.compile(r"(?<=\d) (?=(?:%|pp|ms|µs|s|min|B|[kMGT]B)(?:\W|$))")
HELD: Final = "\u00a0"


def render(found: Comparison) -> str:
    """The whole text, ending in a newline."""
    lines = [RULE, "TraceML compare", RULE]
    lines += [*_side("A", found.a), *_side("B", found.b), "- Format: A -> B | delta = B - A", ""]
    lines += _verdict(found)
    lines += ["", *_tables(found)]
    if found.differences:
        lines += ["", "Not the same in A and B", *_differences(found)]
    if found.warnings:
        lines += ["", "Warnings"]
        for warning in found.warnings:
            lines += _wrapped("  - ", warning)
    lines.append(RULE)
    return "\n".join(line.rstrip() for line in lines) + "\n"


def headline(found: Comparison) -> str:
    """The verdict, and the diagnosis when it moved."""
    shift = found.diagnosis["primary"]
    return f"{found.verdict}  from {shift.a} to {shift.b}" if found.diagnosis_moved else found.verdict


def _side(letter: str, side: Side) -> list[str]:
    if len(side.runs) == 1:
        return [_clipped(f"- {letter}: {side.name}  ({_about(side, 0)})")]
    lines = [_clipped(f"- {letter}: {side.name}")]
    shown = side.runs[:MOST_RUNS]
    lines += [_clipped(f"     {run.name}  ({_about(side, i)})") for i, run in enumerate(shown)]
    if len(shown) < len(side.runs):
        lines.append(f"     ... {len(side.runs)} runs in all")
    return lines


def _about(side: Side, at: int) -> str:
    run = side.runs[at]
    steps = f"{fmt.count(run.steps)} steps" if run.steps is not None else ""
    when = run.started_at.partition(".")[0].replace("T", " ") if run.started_at else ""
    return ", ".join(word for word in (steps, when, run.path) if word)


def _verdict(found: Comparison) -> list[str]:
    lines = [_clipped(f"Verdict  {headline(found)}"), *_wrapped("Why      ", found.why)]
    label = "Settle   " if found.verdict == INCONCLUSIVE else "Next     "
    return lines + _wrapped(label, found.next)


def _tables(found: Comparison) -> list[str]:
    groups = [("", lead_rows(found)), *more_rows(found)]
    rows = [row for _, group in groups for row in group]
    widths = (
        max(20, *(len(r.label) for r in rows)),
        max(8, *(len(r.a) for r in rows)),
        max(8, *(len(r.b) for r in rows)),
    )
    lines = [_line(Row("", "A", "B", "delta"), widths, " " * 2)]
    for title, group in groups:
        lines += [title] if title else []
        lines += [_line(row, widths) for row in group]
    return lines


def _line(row: Row, widths: Sequence[int], arrow: str = "->") -> str:
    first, second, third = widths
    text = f"  {row.label:<{first}}  {row.a:>{second}} {arrow} {row.b:>{third}}  |  {row.change}"
    return _clipped(text)


def _differences(found: Comparison) -> list[str]:
    widest = max(len(d.what) for d in found.differences)
    return [
        _clipped(f"  {d.what:<{widest}}  {d.a} -> {d.b}{'' if d.matters else '  (context)'}")
        for d in found.differences
    ]


def _clipped(line: str) -> str:
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"


def _wrapped(lead: str, text: str) -> list[str]:
    """Lines of at most 100 columns; a number stays with its unit."""
    held = UNIT.sub(HELD, text)
    lines = textwrap.wrap(held, WIDTH, initial_indent=lead, subsequent_indent=" " * len(lead))
    return [line.replace(HELD, " ") for line in lines] or [lead]
