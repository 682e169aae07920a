"""A comparison as a comment on a pull request: everything from the files is escaped."""

from __future__ import annotations

import re
from typing import Final

from traceml.present.compare_rows import Row, lead_rows, more_rows
from traceml.schema.comparison import INCONCLUSIVE, Comparison, Side

MOST_CHARACTERS: Final = 60_000
"""A comment may hold 65,536."""


def render(found: Comparison) -> str:
    """Headline, reason, the main table; the rest folded away."""
    shift = found.diagnosis["primary"]
    lead = f" from {escape(shift.a or '')} to {escape(shift.b or '')}" if found.diagnosis_moved else ""
    lines = [f"### TraceML compare: {found.verdict}{lead}", ""]
    lines += [f"{escape(found.why)}", ""]
    settle = "To settle it" if found.verdict == INCONCLUSIVE else "Next"
    lines += [f"**{settle}:** {escape(found.next)}", ""]
    lines += [
        f"- A: {_side(found.a)}",
        f"- B: {_side(found.b)}",
        "- Format: A -> B, delta = B - A",
        "",
    ]
    lines += [*_table(lead_rows(found)), ""]
    if found.differences:
        lines += ["**Not the same in A and B**", ""]
        lines += [f"- {escape(d.what)}: {escape(d.a)} -> {escape(d.b)}" for d in found.differences]
        lines.append("")
    if found.warnings:
        lines += ["**Warnings**", "", *(f"- {escape(w)}" for w in found.warnings), ""]
    more = more_rows(found)
    if more:
        lines += ["<details><summary>Phases, memory, process, system</summary>", ""]
        for title, rows in more:
            lines += [f"**{title}**", "", *_table(rows), ""]
        lines.append("</details>")
    return _fitting("\n".join(lines).rstrip() + "\n")


def _side(side: Side) -> str:
    runs = [r.name for r in side.runs]
    steps = [f"{r.steps:,} steps" for r in side.runs if r.steps is not None]
    return escape(", ".join(runs[:8])) + (f" ({steps[0]})" if len(steps) == 1 else "")


def _table(rows: list[Row]) -> list[str]:
    lines = ["| Metric | A | B | Delta |", "|---|---:|---:|---:|"]
    cells = ([escape(c) for c in (row.label, row.a, row.b, row.change)] for row in rows)
    return [*lines, *("| " + " | ".join(row) + " |" for row in cells)]


def escape(text: str) -> str:
    """Nothing in a name can become markup, a link, a mention or a new cell."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"([\\`*_\[\]|~#!])", r"\\\1", text)
    text = re.sub(r"@(?=\w)", "@\u200b", text)
    return re.sub(r"(?i)(https?|ftp|www)(?=[:.])", "\\1\u200b", text).replace("-&gt;", "→")


def _fitting(text: str) -> str:
    if len(text) <= MOST_CHARACTERS:
        return text
    return text[:MOST_CHARACTERS].rpartition("\n")[0] + "\n\n(cut to fit a comment)\n"
