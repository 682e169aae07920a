"""A comparison as text, as a comment on a pull request, and as rows of tables for all views."""

import re
from typing import Final

from traceml.present.columns import page, rule, table, wrap
from traceml.schema import fmt
from traceml.schema.comparison import (
    INCONCLUSIVE,
    NO_CHANGE,
    SAME,
    UNCLEAR,
    Change,
    Comparison,
    RunRef,
    Shift,
    Side,
)

ALWAYS: Final = ("step_ms", "input_ms", "compute_ms", "wait_ms", "wait_share", "system.gpu_util_percent")
THROUGHPUT: Final = ("samples_per_s", "tokens_per_s", "samples_per_step", "tokens_per_step")
GROUPS: Final = ("Phases", "Throughput", "Memory", "System", "Process", "Run")
MOST_RUNS: Final = 8
MOST_CHARACTERS: Final = 60_000
"""GitHub allows 65,536 in a comment."""

Row = tuple[str, str, str, str]
"""One line of the table: label, A, B, change."""


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
    return [(title, groups[title]) for title in GROUPS if title in groups]


def _group(key: str, change: Change) -> str:
    if change.section == "step_time":
        return "Throughput" if key in THROUGHPUT else "Phases"
    return {"step_memory": "Memory"}.get(change.section, change.section.title())


def _shift(label: str, shift: Shift) -> Row:
    return label, shift.a or fmt.MISSING, shift.b or fmt.MISSING, shift.change


def _row(change: Change) -> Row:
    a, b = fmt.in_unit(change.unit, change.a), fmt.in_unit(change.unit, change.b)
    return change.label, a, b, fmt.change(change.unit, change.delta, change.delta_share)


def text(found: Comparison) -> str:
    """Verdict, reason, next step, then the table, in at most 100 columns."""
    lines = [rule(), "TraceML compare", rule()]
    lines += [*_side("A", found.a), *_side("B", found.b), "- Format: A -> B | delta = B - A", ""]
    lines += [f"Verdict  {found.verdict}  {shifted(found)}"]
    lines += [*wrap("Why      ", found.why), *wrap("Next     ", found.next), "", *_tables(found)]
    if found.differences:
        rows = [[d.what, f"{d.a} -> {d.b}{'' if d.matters else '  (context)'}"] for d in found.differences]
        lines += ["", "Not the same in A and B", *table(rows, "<<")]
    if found.warnings:
        lines += ["", "Warnings"]
        for warning in found.warnings:
            lines += wrap("  - ", warning)
    return page([*lines, rule()])


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
    placed, rest = [head], iter(lines)
    for title, rows in groups:
        placed += [title] if title else []
        placed += [next(rest) for _ in rows]
    return placed


def markdown(found: Comparison) -> str:
    """Headline, reason and main table; the other tables are folded. All text from the files is escaped."""
    lines = [f"### TraceML compare: {escape(f'{found.verdict}  {shifted(found)}'.rstrip())}", ""]
    lines += [escape(found.why), "", f"**Next:** {escape(found.next)}", ""]
    for letter, side in (("A", found.a), ("B", found.b)):
        steps = [f" ({run.steps:,} steps)" for run in side.runs if run.steps is not None]
        names = escape(", ".join(run.name for run in side.runs[:MOST_RUNS]))
        lines.append(f"- {letter}: {names}{steps[0] if len(steps) == 1 else ''}")
    lines += ["- Format: A -> B, delta = B - A", "", *_markdown_table(lead_rows(found)), ""]
    if found.differences:
        lines += ["**Not the same in A and B**", ""]
        lines += [f"- {escape(d.what)}: {escape(d.a)} -> {escape(d.b)}" for d in found.differences]
        lines.append("")
    if found.warnings:
        lines += ["**Warnings**", "", *(f"- {escape(w)}" for w in found.warnings), ""]
    if more := more_rows(found):
        lines += ["<details><summary>Phases, memory, process, system</summary>", ""]
        for title, rows in more:
            lines += [f"**{title}**", "", *_markdown_table(rows), ""]
        lines.append("</details>")
    whole = "\n".join(lines).rstrip() + "\n"
    if len(whole) <= MOST_CHARACTERS:
        return whole
    return whole[:MOST_CHARACTERS].rpartition("\n")[0] + "\n\n(shortened to fit into a comment)\n"


def _markdown_table(rows: list[Row]) -> list[str]:
    lines = ["| Metric | A | B | Delta |", "|---|---:|---:|---:|"]
    return [*lines, *("| " + " | ".join(map(escape, row)) + " |" for row in rows)]


def escape(text: str) -> str:
    """Escape text, so that a name cannot become markup, a link, a mention or a new cell."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"([\\`*_\[\]|~#!])", r"\\\1", text)
    text = re.sub(r"@(?=\w)", "@\u200b", text)
    return re.sub(r"(?i)(https?|ftp|www)(?=[:.])", "\\1\u200b", text).replace("-&gt;", "→")
