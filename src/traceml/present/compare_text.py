"""The text of a comparison: verdict, reason, next step, then the table, in at most 100 columns."""

from typing import Final

from traceml.present.columns import RULE, page, table, wrap
from traceml.present.compare_rows import headline, lead_rows, more_rows
from traceml.schema import fmt
from traceml.schema.comparison import Comparison, RunRef, Side

MOST_RUNS: Final = 8


def render(found: Comparison) -> str:
    """The whole text, ending in a newline."""
    lines = [RULE, "TraceML compare", RULE]
    lines += [*_side("A", found.a), *_side("B", found.b), "- Format: A -> B | delta = B - A", ""]
    lines += [f"Verdict  {headline(found)}", *wrap("Why      ", found.why), *wrap("Next     ", found.next)]
    lines += ["", *_tables(found)]
    if found.differences:
        rows = [[d.what, f"{d.a} -> {d.b}{'' if d.matters else '  (context)'}"] for d in found.differences]
        lines += ["", "Not the same in A and B", *table(rows, "<<")]
    if found.warnings:
        lines += ["", "Warnings"]
        for warning in found.warnings:
            lines += wrap("  - ", warning)
    return page([*lines, RULE])


def _side(letter: str, side: Side) -> list[str]:
    if len(side.runs) == 1:
        return [f"- {letter}: {side.name}  ({_about(side.runs[0])})"]
    lines = [f"     {run.name}  ({_about(run)})" for run in side.runs[:MOST_RUNS]]
    more = [f"     ... {len(side.runs)} runs in all"] if len(side.runs) > MOST_RUNS else []
    return [f"- {letter}: {side.name}", *lines, *more]


def _about(run: RunRef) -> str:
    steps = f"{fmt.count(run.steps)} steps" if run.steps is not None else ""
    when = run.started_at.partition(".")[0].replace("T", " ") if run.started_at else ""
    return ", ".join(word for word in (steps, when, run.path) if word)


def _tables(found: Comparison) -> list[str]:
    """One table, so that all groups are aligned, with the titles of the groups between its rows."""
    groups = [("", lead_rows(found)), *more_rows(found)]
    cells = [[label, a, "->", b, "|", change] for _, rows in groups for label, a, b, change in rows]
    head, *lines = table([["", "A", "", "B", "", "delta"], *cells], "<><><<", least=(20, 8, 2, 8))
    placed = [head]
    for title, rows in groups:
        placed += [title] if title else []
        placed += lines[: len(rows)]
        lines = lines[len(rows) :]
    return placed
