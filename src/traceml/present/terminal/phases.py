"""Where a step's time goes: the table of the reading guide, a ribbon of phases, step time over the run."""

from typing import Final

from rich.text import Text

from traceml.present.terminal.ink import Ink, line
from traceml.present.terminal.tables import table, turned, two_line_heads, width_of
from traceml.schema import fmt
from traceml.schema.catalog import GUIDE_LABELS
from traceml.schema.summary import MetricStat, Summary

COLUMNS: Final = ("input_ms", "h2d_ms", "forward_ms", "backward_ms", "sync_ms", "optimizer_ms")
"""Always there, then phases that take time, then Wait* and Step Time."""
NOT_PHASES: Final = ("step_ms", "wait_ms", "compute_ms", "gc_ms")
NOTABLE_SHARE: Final = 0.001
LABEL_COLUMNS: Final = 16
INDENT: Final = 2


def label_of(key: str, summary: Summary) -> str:
    """The reading guide's name of a metric, or the catalogue's."""
    known = (row.label for row in summary.catalog if row.key == key)
    return GUIDE_LABELS.get(key) or next(known, key)


def phase_keys(summary: Summary) -> list[str]:
    """The metrics that are columns of the table, in their order."""
    more = [
        key
        for key, stat in summary.step_time.metrics.items()
        if key.endswith("_ms") and key not in (*COLUMNS, *NOT_PHASES) and (stat.share or 0.0) >= NOTABLE_SHARE
    ]
    return [*COLUMNS, *more, "wait_ms"]


def user_keys(summary: Summary) -> list[str]:
    """The phases that the user named, in their order."""
    return [key for key in summary.step_time.metrics if key.startswith("user.")]


def phase_lines(summary: Summary, width: int, ink: Ink) -> list[Text]:
    """The whole panel."""
    if not summary.step_time.window.num_steps:
        return [ink.text("  no completed step to show yet", "dim")]
    return [*step_table(summary, width, ink), *ribbons(summary, width, ink), *_history(summary, width, ink)]


def step_table(summary: Summary, width: int, ink: Ink) -> list[Text]:
    """Median, Worst, Worst Rank, Skew (%) and WAIT Share (%) of each phase; turned if it is too wide."""
    section = summary.step_time
    keys = [*phase_keys(summary), "step_ms"]
    stats = [section.metrics.get(key, MetricStat()) for key in keys]
    users = user_keys(summary)
    heads = [head_of(key, summary, users, ink) for key in keys[:-1]]
    blank = ink.text("")
    share = [
        ink.text(fmt.share(s.share)) if key == "wait_ms" else blank
        for key, s in zip(keys, stats, strict=True)
    ]
    rows = [
        [blank, *heads, ink.text(GUIDE_LABELS["step_ms"], "bold")],
        [ink.text("Median"), *(ink.text(fmt.ms(s.median.value)) for s in stats)],
        [ink.text("Worst"), *(ink.text(fmt.ms(s.worst.value)) for s in stats)],
        [ink.text("Worst Rank"), *(ink.text(fmt.rank(s.worst.rank)) for s in stats)],
        [ink.text("Skew (%)"), *(ink.text(fmt.skew(s.skew)) for s in stats)],
        [ink.text("WAIT Share (%)"), *share],
    ]
    room = width - INDENT
    for layout, gap in ((rows, 3), (rows, 2), (rows, 1), (two_line_heads(rows), 1)):
        if width_of(layout, gap) <= room:
            return indented(table(layout, gap))
    return indented(table(turned(rows), 2))


def head_of(key: str, summary: Summary, users: list[str], ink: Ink) -> Text:
    """The name of a phase behind a mark in its colour: coloured text is not readable on every background."""
    mark = "▌" if ink.colour and ink.unicode else ""
    return line(ink.text(mark, ink.phase(key, users)), ink.clipped(label_of(key, summary), 18, "bold"))


def indented(lines: list[Text]) -> list[Text]:
    """Two columns to the right."""
    return [line(Text(" " * INDENT), one) for one in lines]


def ribbons(summary: Summary, width: int, ink: Ink) -> list[Text]:
    """The typical step as one bar: each phase as wide as its share, with its name or first letter on it."""
    section, users = summary.step_time, user_keys(summary)
    keys = phase_keys(summary)
    shares = [section.metrics.get(key, MetricStat()).share for key in keys]
    widths = fmt.ribbon_widths(shares, width - INDENT - LABEL_COLUMNS)
    parts = [
        ink.text(_on_ribbon(label_of(key, summary), fmt.share(share), w, ink), ink.phase(key, users, True))
        for key, share, w in zip(keys, shares, widths, strict=True)
        if w > 0
    ]
    return [line(ink.text(f"{'  Median step':<{INDENT + LABEL_COLUMNS}}"), *parts)] if parts else []


def _on_ribbon(label: str, share: str, width: int, ink: Ink) -> str:
    """The longest description that fits; without colour a bar marks where the phase begins."""
    bar = "" if ink.colour else "|"
    for text in (f" {label} {share} ", f" {label} ", f" {label[:1]} {share} ", f" {label[:1]} ", label[:1]):
        if len(bar + text) <= width:
            return (bar + text).ljust(width, " " if ink.colour else "-")
    return label[:width]


def _history(summary: Summary, width: int, ink: Ink) -> list[Text]:
    """Step time over the steps that are shown; the slowest of each piece."""
    series = summary.series.step_time
    values = series.get("step_ms_max") or series.get("step_ms") or []
    bars, highest = fmt.sparkline(values, max(width - INDENT - LABEL_COLUMNS - 20, 10), ink.bars)
    if not bars:
        return []
    name = ink.text(f"{'  Step Time':<{INDENT + LABEL_COLUMNS}}")
    return [line(name, ink.text(bars, "dim"), ink.text(f"  slowest {fmt.ms(highest)}", "dim"))]
