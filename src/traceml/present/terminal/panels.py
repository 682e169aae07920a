"""Which panels there are, what each one shows, and what the keys have changed."""

import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from rich.text import Text

from traceml.present import layers as layer_rows
from traceml.present.terminal.ink import SEVERITY, Ink, line
from traceml.present.terminal.output import folded
from traceml.present.terminal.phases import phase_lines
from traceml.present.terminal.rail import rail
from traceml.present.terminal.ranks import Sorting, how_many, ordered, rank_detail, rank_lines
from traceml.present.terminal.resources import memory_lines, process_lines, system_lines
from traceml.present.terminal.tables import table, width_of
from traceml.schema import fmt
from traceml.schema.live import Live
from traceml.schema.summary import Section, Summary

TITLES: Final = {
    "time": "Step time",
    "memory": "Step memory",
    "system": "System",
    "process": "Process",
    "layers": "Layers",
    "ranks": "Ranks",
    "output": "Output",
}
PANELS: Final = tuple(TITLES)
"""In the order of the screen. Layers are there in deep mode only."""
KEYS: Final = (
    ("space", "pause", "stop and resume the updates; the training goes on"),
    ("tab", "next panel", "tab or n: the next panel; shift+tab: the one before"),
    ("r", "rank", "all numbers of the selected rank; up and down select one"),
    ("s", "sort", "sort the ranks by the next column; S reverses the order"),
    ("z", "zoom", "show the current panel alone, or all of them"),
    ("?", "help", "this page"),
    ("q", "quit view", "leave the view; the training goes on"),
)
LAYERS_ALONE, LAYERS_BESIDE = 10, 5
"""Layers that are shown: alone above the output, and beside other panels."""
READING: Final = (
    "Read the verdict first, then the Median row, then compare Worst with Median.",
    "Worst Rank says which rank produced the worst value, Skew (%) how much larger it is than the median.",
    "Wait* is time in the step that no phase claims. WAIT Share (%) is its share of the typical step.",
    "Peaks (max/K) are the highest values over the K steps of the window.",
    "Head/Tail Delta (worst) is a hint whether the worst rank's memory moves up or down.",
    "Ctrl-C acts on the training, as it does without the view.",
)


@dataclass(slots=True)
class Shown:
    """What is on the screen."""

    ink: Ink
    live: Live | None = None
    output: list[str] | None = None
    problem: str = ""
    paused: bool = False
    current: str = "time"
    alone: bool = False  # one panel at a time
    zoomed: bool = False
    over: str = ""  # rank | help
    cursor: int = 0
    back: int = 0  # rows that the output is scrolled back
    sorting: Sorting = field(default_factory=Sorting)


Draw = Callable[[Summary, int, Ink], list[Text]]
TABLES: Final[dict[str, tuple[str, Draw]]] = {
    "time": ("step_time", phase_lines),
    "memory": ("step_memory", memory_lines),
    "system": ("system", system_lines),
    "process": ("process", process_lines),
}


def draw(name: str, shown: Shown, width: int, height: int) -> list[Text]:
    """The lines of a panel, for this width and height."""
    ink, live = shown.ink, shown.live
    if name == "rail":
        note = shown.problem or ("paused; space to go on" if shown.paused else "")
        return rail(live, width, ink, note)
    if name == "tabs":
        return [_tabs(shown)]
    if name == "over":
        return _over(shown, width)
    if name == "output":
        return _output(shown, width, height)
    if live is None:
        return [_title(name, shown, width)]
    if name == "layers":
        return _layers(shown, live.summary, width)
    if name == "ranks":
        return _ranks(shown, live.summary, width, height)
    section, lines = TABLES[name]
    found: Section = getattr(live.summary, section)
    return [_title(name, shown, width, found, _about(name, found)), *lines(live.summary, width, ink)]


def _about(name: str, section: Section) -> str:
    window = section.window
    if name == "time" and window.num_steps:
        steps = f"steps {fmt.plain(window.start_step)} to {fmt.plain(window.end_step)}"
        return f"{steps}, {window.clock or 'unknown'} clock"
    if name == "memory" and window.num_steps:
        return f"K = {fmt.count(window.num_steps)}"
    return f"{fmt.count(window.samples)} samples" if window.samples else ""


def _title(name: str, shown: Shown, width: int, section: Section | None = None, about: str = "") -> Text:
    """`Step time  INPUT-BOUND critical ------- 299 steps`."""
    ink = shown.ink
    is_current = name == shown.current
    is_tab = is_current and shown.alone and name != "output"  # its name is in the line above
    parts = [] if is_tab else [ink.text(TITLES[name], "bold reverse" if is_current else "bold"), Text("  ")]
    if section is not None:
        found = section.diagnosis
        word = SEVERITY.get(found.severity, ("", ""))[0]
        style = ink.severity(found.severity) if word else ""
        parts.append(ink.text(f"{found.status}{' ' * bool(word)}{word}", style))
        parts.append(Text(" "))
    left, right = line(*parts), ink.text(f" {about}" if about else "", "dim")
    rule = ink.text(("─" if ink.unicode else "-") * max(width - left.cell_len - right.cell_len, 0), "dim")
    return line(left, rule, right)


def _tabs(shown: Shown) -> Text:
    """The names of all panels, for a screen that shows one."""
    parts = []
    for name in panels_of(shown):
        style = "bold reverse" if name == shown.current else "dim"
        parts += [shown.ink.text(TITLES[name], style), Text("  ")]
    return line(*parts)


def _ranks(shown: Shown, summary: Summary, width: int, height: int) -> list[Text]:
    """As many ranks as fit, around the selected one."""
    rows = ordered(summary, shown.sorting)
    title = _title("ranks", shown, width, about=how_many(summary))
    if not rows:
        return [title]
    shown.cursor = min(shown.cursor, len(rows) - 1)
    room = max(height - 3, 1)  # without the title and a head of up to two lines
    first = max(0, min(shown.cursor - room // 2, len(rows) - room))
    heads, lines = rank_lines(summary, rows[first : first + room], shown.sorting, shown.ink, width - 2)
    found = [title, *(line(Text("  "), head) for head in heads)]
    for at, one in enumerate(lines, first):
        is_selected = at == shown.cursor
        row = line(Text("> " if is_selected else "  "), one)
        if is_selected and shown.current == "ranks":
            row.stylize("reverse")
        found.append(row)
    return found


def _layers(shown: Shown, summary: Summary, width: int) -> list[Text]:
    """The layers that take longest, in a table that fits the width; then the sums and notes."""
    found, ink = summary.layers, shown.ink
    if found is None:
        return []
    most = LAYERS_ALONE if shown.alone else LAYERS_BESIDE
    rows = [layer_rows.heads(summary), *(layer_rows.cells(one, summary) for one in found.layers[:most])]
    cells = [[ink.text(cell, "" if at else "bold") for cell in row] for at, row in enumerate(rows)]
    room = max(width - 2 - width_of([row[1:] for row in cells], 2), 12)
    for row in cells:
        row[0].truncate(room, overflow="ellipsis")
    said = [text for one in layer_rows.foot(found, most) for text in textwrap.wrap(one, max(width, 20))]
    title = _title("layers", shown, width, about=layer_rows.about(found))
    return [title, *table(cells, left=2), *(ink.text(text, "dim") for text in said)]


def panels_of(shown: Shown) -> list[str]:
    """The panels that there are: layers only if they were measured."""
    has_layers = shown.live is not None and shown.live.summary.layers is not None
    return [name for name in PANELS if name != "layers" or has_layers]


def _output(shown: Shown, width: int, height: int) -> list[Text]:
    """The newest lines of the training, or those before them."""
    lines, ink = shown.output, shown.ink
    where = f"{fmt.count(shown.back)} lines back; end: newest" if shown.back else ""
    title = _title("output", shown, width, about=where)
    if lines is None:
        return [title, ink.text("  goes to the terminal or file that the run was started with", "dim")]
    shown.back = min(shown.back, max(len(lines) - 1, 0))
    newest = folded(lines[: len(lines) - shown.back], width, height - 1)
    return [title, *(ink.text(row) for row in newest)]


def _over(shown: Shown, width: int) -> list[Text]:
    """The page above everything else: one rank, or the help."""
    ink = shown.ink
    if shown.over == "rank" and shown.live is not None:
        ranks = [row[0] for row in ordered(shown.live.summary, shown.sorting)]
        back = ink.text("  esc: back; up and down: another rank", "dim")
        if ranks:
            return [back, *rank_detail(shown.live.summary, ranks[min(shown.cursor, len(ranks) - 1)], ink)]
        return [back, ink.text("  no rank has completed a step yet")]
    keys = [line(ink.text(f"  {key:<8}", "bold"), ink.text(said)) for key, _, said in KEYS]
    said = [row for sentence in READING for row in textwrap.wrap(sentence, max(width - 2, 20))]
    return [*keys, Text(""), *(ink.text(f"  {row}") for row in said)]


def key_line(shown: Shown, width: int, _height: int) -> list[Text]:
    """The keys, in the last line."""
    parts = []
    for key, name, _ in KEYS:
        parts += [shown.ink.text(key, "bold"), shown.ink.text(f" {name}  ", "dim")]
    found = line(*parts)
    found.truncate(width)
    return [found]
