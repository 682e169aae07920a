"""A comparison as a comment on a pull request. All text from the files is escaped."""

import re
from typing import Final

from traceml.present.compare_rows import Row, headline, lead_rows, more_rows
from traceml.schema.comparison import Comparison, Side

MOST_CHARACTERS: Final = 60_000
"""GitHub allows 65,536 in a comment."""


def render(found: Comparison) -> str:
    """Headline, reason and main table; the other tables are folded."""
    lines = [f"### TraceML compare: {escape(headline(found))}", ""]
    lines += [escape(found.why), "", f"**Next:** {escape(found.next)}", ""]
    lines += [f"- A: {_side(found.a)}", f"- B: {_side(found.b)}", "- Format: A -> B, delta = B - A", ""]
    lines += [*_table(lead_rows(found)), ""]
    if found.differences:
        lines += ["**Not the same in A and B**", ""]
        lines += [f"- {escape(d.what)}: {escape(d.a)} -> {escape(d.b)}" for d in found.differences]
        lines.append("")
    if found.warnings:
        lines += ["**Warnings**", "", *(f"- {escape(w)}" for w in found.warnings), ""]
    if more := more_rows(found):
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
    return [*lines, *("| " + " | ".join(map(escape, row)) + " |" for row in rows)]


def escape(text: str) -> str:
    """Escape text, so that a name cannot become markup, a link, a mention or a new cell."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"([\\`*_\[\]|~#!])", r"\\\1", text)
    text = re.sub(r"@(?=\w)", "@\u200b", text)
    return re.sub(r"(?i)(https?|ftp|www)(?=[:.])", "\\1\u200b", text).replace("-&gt;", "→")


def _fitting(text: str) -> str:
    if len(text) <= MOST_CHARACTERS:
        return text
    return text[:MOST_CHARACTERS].rpartition("\n")[0] + "\n\n(shortened to fit into a comment)\n"
