"""Which panels there are, what each one shows, and what the keys have changed."""

import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rich.cells import chop_cells
from rich.text import Text

from traceml.errors import printable
from traceml.present.columns import columns, table
from traceml.present.terminal import tables
from traceml.present.terminal.ink import SEVERITY, Ink, between, line
from traceml.present.text import about_layers, layer_rows, layer_sums, steps_of
from traceml.schema import fmt
from traceml.schema import live as state
from traceml.schema.live import Live
from traceml.schema.summary import Section, SectionWindow, Summary

TITLES: Final = {
    "time": "Step time",
    "memory": "Step memory",
    "system": "System",
    "process": "Process",
    "layers": "Layers",
    "ranks": "Ranks",
    "output": "Output",
}
"""In the order of the screen. Layers are there in deep mode only."""
TABLES: Final[dict[str, tuple[str, Callable[[Summary, int, Ink], list[Text]]]]] = {
    "time": ("step_time", tables.step_lines),
    "memory": ("step_memory", tables.memory_lines),
    "system": ("system", tables.system_lines),
    "process": ("process", tables.process_lines),
}
"""The panels that are a section of the Summary."""
KEYS: Final = (
    ("space", "pause", "stop and resume the updates; the training goes on"),
    ("tab", "next panel", "tab or n: the next panel; shift+tab: the one before"),
    ("r", "rank", "all numbers of the selected rank; up and down select one"),
    ("s", "sort", "sort the ranks by the next column; S reverses the order"),
    ("z", "zoom", "show the current panel alone, or all of them"),
    ("?", "help", "this page"),
    ("q", "quit view", "leave the view; the training goes on"),
)
READING: Final = (
    "Read the verdict first, then the Median row, then compare Worst with Median.",
    "Worst Rank says which rank produced the worst value, Skew (%) how much larger it is than the median.",
    "Wait* is time in the step that no phase claims. WAIT Share (%) is its share of the typical step.",
    "Peaks (max/K) are the highest values over the K steps of the window.",
    "Head/Tail Delta (worst) is a hint whether the worst rank's memory moves up or down.",
    "Ctrl-C acts on the training, as it does without the view.",
)
STATE_STYLES: Final = {state.LIVE: "green", state.STALE: "yellow", state.CRASHED: "red"}
LAYERS_ALONE, LAYERS_BESIDE = 10, 5
"""Layers that are shown: alone above the output, and beside other panels."""
MOST_SAID: Final = 2
"""Lines of each sentence of the verdict."""
MOST_ROWS: Final = 3
"""Of one long line of output; the file has all of it."""


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
    column: int = 0  # by which the ranks are sorted
    descending: bool = False

    def panels(self) -> list[str]:
        """The panels that there are: layers only if they were measured."""
        has_layers = self.live is not None and self.live.summary.layers is not None
        return [name for name in TITLES if name != "layers" or has_layers]

    def ranked(self) -> list[list[object]]:
        """The ranks in the order of the table."""
        return tables.ranked(self.live.summary, self.column, self.descending) if self.live else []


def draw(name: str, shown: Shown, width: int, height: int) -> list[Text]:
    """The lines of a panel, for this width and height."""
    live = shown.live
    if name in ALWAYS:
        return ALWAYS[name](shown, width, height)
    if live is None:
        return [_title(name, shown, width)]
    if name == "layers":
        return _layers(shown, live.summary, width)
    if name == "ranks":
        return _ranks(shown, live.summary, width, height)
    section, lines = TABLES[name]
    found: Section = getattr(live.summary, section)
    return [
        _title(name, shown, width, _about(name, found.window), found),
        *lines(live.summary, width, shown.ink),
    ]


def _about(name: str, window: SectionWindow) -> str:
    if name == "time":
        return steps_of(window)
    if name == "memory":
        return f"K = {fmt.count(window.num_steps)}" if window.num_steps else ""
    return f"{fmt.count(window.samples)} samples" if window.samples else ""


def _title(name: str, shown: Shown, width: int, about: str = "", section: Section | None = None) -> Text:
    """`Step time  INPUT-BOUND critical ------- 299 steps`."""
    ink, is_current = shown.ink, name == shown.current
    is_tab = is_current and shown.alone and name != "output"  # its name is in the line above
    parts = [] if is_tab else [ink.text(TITLES[name], "bold reverse" if is_current else "bold"), Text("  ")]
    if section is not None:
        word, style = _severity(section.diagnosis.severity, ink)
        said = f"{section.diagnosis.status} {word}".rstrip()
        parts += [ink.text(said, style if word else ""), Text(" ")]
    left, right = line(*parts), ink.text(f" {about}" if about else "", "dim")
    rule = ink.text(("─" if ink.unicode else "-") * max(width - left.cell_len - right.cell_len, 0), "dim")
    return line(left, rule, right)


def _severity(severity: str, ink: Ink) -> tuple[str, str]:
    word, colour = SEVERITY.get(severity, ("", ""))
    return word, f"bold {colour}" if ink.colour else "bold"


def _rail(shown: Shown, width: int, _height: int) -> list[Text]:
    """The verdict first: what is wrong, why, what to do, since when, and whether there is news."""
    live, ink = shown.live, shown.ink
    note = shown.problem or ("paused; space to go on" if shown.paused else "")
    if live is None:
        return [between(ink.text("TraceML", "bold"), ink.text(note or "looking for the run", "bold"), width)]
    first, run = live.summary.primary_diagnosis, live.summary.run
    word, style = _severity(first.severity, ink)
    verdict = line(
        ink.text(first.status, style if first.kind != "NO_DATA" else "bold"), ink.text(f"  {word}")
    )
    since = ""
    if live.since_step is not None:
        since = f"since step {fmt.count(live.since_step)}{' or earlier' if live.since_start else ''}"
    lines = [_head(live, ink, note, width), between(verdict, ink.text(since, "dim"), width)]
    ended = run.reason or run.status if run.status not in ("running", "completed") else ""
    for name, said in (("Why", first.summary), ("Next", first.action), ("Ended", ended)):
        found = textwrap.wrap(ink.clean(said), max(width - 6, 10), max_lines=MOST_SAID, placeholder=" ...")
        names = (name, *[""] * MOST_SAID)
        lines += [line(ink.text(f"{n:<6}", "dim"), ink.text(s)) for n, s in zip(names, found, strict=False)]
    return lines


def _head(live: Live, ink: Ink, note: str, width: int) -> Text:
    """The run, how far it is, and how fresh that is; on a narrow screen with fewer facts."""
    run = live.summary.run
    facts = [
        fmt.age(run.duration_s) if run.duration_s is not None else "",
        fmt.rate(live.steps_per_s, "steps") if live.steps_per_s and not live.is_over else "",
        f"{fmt.count(run.world_size)} ranks" if run.world_size > 1 else "",
        f"step {fmt.count(run.steps.total)}" if run.steps.total else "",
    ]
    facts = [fact for fact in facts if fact]
    name = ink.text(f"TraceML  {run.name}", "bold")
    style = STATE_STYLES.get(live.state, "") if ink.colour else ""
    now = ink.text(note or _freshness(live), "bold reverse" if note else f"bold {style}")
    while facts and name.cell_len + len(", ".join(facts)) + now.cell_len + 4 > width:
        facts = facts[1:]
    return between(name, line(ink.text(", ".join(facts), "dim"), Text("  "), now), width)


def _freshness(live: Live) -> str:
    """The state in words, with the seconds since there was news."""
    said, quiet = state.STATES.get(live.state, live.state), fmt.age(live.quiet_s)
    if live.state == state.LIVE:
        return f"{said}, last step {quiet} ago" if live.summary.run.steps.total else said
    return said + {state.STALE: f" for {quiet}", state.WAITING: f", {quiet}"}.get(live.state, "")


def _tabs(shown: Shown, _width: int, _height: int) -> list[Text]:
    """The names of all panels, for a screen that shows one."""
    parts = []
    for name in shown.panels():
        parts += [
            shown.ink.text(TITLES[name], "bold reverse" if name == shown.current else "dim"),
            Text("  "),
        ]
    return [line(*parts)]


def _ranks(shown: Shown, summary: Summary, width: int, height: int) -> list[Text]:
    """As many ranks as fit, around the selected one."""
    rows, named = shown.ranked(), summary.primary_diagnosis.ranks
    used = len(summary.step_time.window.ranks)
    about = f"{fmt.count(len(rows))} rank{'s' * (len(rows) != 1)}"
    if len(rows) < used:
        about = f"{fmt.count(len(rows))} of {fmt.count(used)} ranks: those that stand out, and some others"
    title = _title("ranks", shown, width, about + "; * is named by the verdict" * bool(named))
    if not rows:
        return [title]
    shown.cursor = min(shown.cursor, len(rows) - 1)
    room = max(height - 3, 1)  # without the title and a head of two lines
    first = max(0, min(shown.cursor - room // 2, len(rows) - room))
    rows = rows[first : first + room]
    names = tables.rank_heads(summary)
    names[shown.column] += "▼" if shown.descending else "▲"
    heads, lines = tables.grid(
        [names, *(tables.rank_cells(row, row[0] in named) for row in rows)], width, indent=2
    )
    found = [title, *tables.inked(shown.ink, heads)]
    for at, (row, text) in enumerate(zip(rows, lines, strict=True), first):
        is_selected = at == shown.cursor
        style = f"{'bold' * (row[0] in named)} {'reverse' * (is_selected and shown.current == 'ranks')}"
        found.append(shown.ink.text(f">{text[1:]}" if is_selected else text, style.strip()))
    return found + [Text("")] * (2 - len(heads))  # the same height with either head


def _layers(shown: Shown, summary: Summary, width: int) -> list[Text]:
    """The layers that take longest, in a table that fits the width; then the sums and notes."""
    found, ink = summary.layers, shown.ink
    if found is None:
        return []
    most = LAYERS_ALONE if shown.alone else LAYERS_BESIDE
    rows = layer_rows(found, most)
    align = "<<".ljust(len(rows[0]), ">")
    others = table([row[1:] for row in rows], align[1:], indent=0)
    lines = table(rows, align, indent=0, most=(max(width - 2 - columns(others[0]), 12),))
    said = [text for one in layer_sums(found, most) for text in textwrap.wrap(one, max(width, 20))]
    title = _title("layers", shown, width, about_layers(found))
    return [title, *tables.inked(ink, lines[:1], lines[1:]), *(ink.text(text, "dim") for text in said)]


def _output(shown: Shown, width: int, height: int) -> list[Text]:
    """The newest lines of the training, or those before them."""
    lines, ink = shown.output, shown.ink
    title = _title(
        "output", shown, width, f"{fmt.count(shown.back)} lines back; end: newest" if shown.back else ""
    )
    if lines is None:
        return [title, ink.text("  goes to the terminal or file that the run was started with", "dim")]
    shown.back = min(shown.back, max(len(lines) - 1, 0))
    newest = folded(lines[: len(lines) - shown.back], width, height - 1)
    return [title, *(ink.text(row) for row in newest)]


def folded(lines: list[str], width: int, most: int) -> list[str]:
    """The newest lines that fit into `most` rows; a long line takes a few of them and is cut then."""
    rows: list[str] = []
    width = max(width, 4)
    for text in reversed(lines):
        if len(rows) >= most:
            break
        found = chop_cells(printable(text.expandtabs())[: MOST_ROWS * width + 1], width) or [""]
        if len(found) > MOST_ROWS:
            found = [*found[: MOST_ROWS - 1], f"{found[MOST_ROWS - 1][:-1]}…"]
        rows = [*found, *rows]
    return rows[-most:] if most > 0 else []


def _over(shown: Shown, width: int, _height: int) -> list[Text]:
    """The page above everything else: one rank, or the help."""
    ink = shown.ink
    if shown.over == "rank" and shown.live is not None:
        ranks = [int(str(row[0])) for row in shown.ranked()]
        back = ink.text("  esc: back; up and down: another rank", "dim")
        if not ranks:
            return [back, ink.text("  no rank has completed a step yet")]
        rank = ranks[min(shown.cursor, len(ranks) - 1)]
        return [back, *tables.rank_detail(shown.live.summary, rank, ink)]
    keys = [line(ink.text(f"  {key:<8}", "bold"), ink.text(said)) for key, _, said in KEYS]
    said = [row for sentence in READING for row in textwrap.wrap(sentence, max(width - 2, 20))]
    return [*keys, Text(""), *(ink.text(f"  {row}") for row in said)]


def _keys(shown: Shown, width: int, _height: int) -> list[Text]:
    """The keys, in the last line."""
    ink = shown.ink
    found = line(
        *(part for key, name, _ in KEYS for part in (ink.text(key, "bold"), ink.text(f" {name}  ", "dim")))
    )
    found.truncate(width)
    return [found]


ALWAYS: Final[dict[str, Callable[[Shown, int, int], list[Text]]]] = {
    "rail": _rail,
    "tabs": _tabs,
    "output": _output,
    "over": _over,
    "keys": _keys,
}
"""What is drawn whether or not the run was found."""
