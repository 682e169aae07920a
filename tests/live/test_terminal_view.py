"""The terminal view: what a reader sees at three sizes, what the keys do, and text that means harm.

The golden files are the screens as plain text. After an intended change, update them with

    TRACEML_UPDATE_GOLDEN=1 python -m pytest tests/live/test_terminal_view.py
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.live.lives import LIVES, OUTPUT, eight_gpus, one_cpu
from tests.live.screens import plain, screen_of
from traceml.errors import CommandError
from traceml.present.columns import columns
from traceml.present.terminal.app import LiveApp
from traceml.present.terminal.ink import Ink, find_ink
from traceml.schema.live import STATES, Live

GOLDEN = Path(__file__).parent / "golden"
SIZES = ((80, 24), (120, 40), (250, 60))
STEP_COLUMNS = (
    *("Dataloader Fetch", "H2D", "Forward", "Backward", "Sync", "Optimizer Step", "Wait*", "Step Time"),
)
STEP_ROWS = ("Median", "Worst", "Worst Rank", "Skew (%)", "WAIT Share (%)")
MEMORY_ROWS = (
    *("Median Peak (max/K)", "Worst Peak (max/K)", "Worst Rank", "Skew (%)", "Head/Tail Delta (worst)"),
)
GAUGES = ("CPU", "RAM", "GPU utilization", "GPU memory", "GPU temperature", "GPU headroom")
PROCESS = ("Worst-rank CPU", "GPU memory used", "reserved", "total", "GPU used imbalance")


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("name", LIVES)
def test_screen_equals_the_golden_file(name: str, size: tuple[int, int]) -> None:
    """What a reader sees changes only on purpose; it fills the screen and no line is too wide."""
    lines = screen_of(LIVES[name](), size)
    assert len(lines) == size[1]
    assert all(columns(line) <= size[0] for line in lines)
    path = GOLDEN / f"{name}-{size[0]}x{size[1]}.txt"
    if os.environ.get("TRACEML_UPDATE_GOLDEN", "0") not in ("", "0"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
    assert "\n".join(lines) + "\n" == path.read_text()


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_every_name_of_the_reading_guide_is_there(size: tuple[int, int]) -> None:
    """Columns, rows and fields are called as in the guide, in each size, if need be in their own panel."""
    live = eight_gpus()
    tabs: list[list[str]] = [[], ["tab"], ["tab"] * 2, ["tab"] * 3]
    pages = ["\n".join(screen_of(live, size, keys)) for keys in tabs]
    for page, names in zip(pages, (STEP_COLUMNS + STEP_ROWS, MEMORY_ROWS, GAUGES, PROCESS), strict=True):
        assert [name for name in names if name not in page] == []


@pytest.mark.parametrize("name", LIVES)
def test_the_state_is_honest(name: str) -> None:
    """The state is in the first line; a run that has ended or is silent does not say `live`."""
    live = LIVES[name]()
    first = screen_of(live, (120, 40))[0]
    assert STATES[live.state] in first
    assert ("live" in first) == (live.state == "live")


def test_verdict_comes_first() -> None:
    """Label, severity, since when, why and next, before any table."""
    lines = screen_of(eight_gpus(), (80, 24))
    assert lines[1].startswith("INPUT STRAGGLER  warning")
    assert lines[1].endswith("since step 42")
    assert lines[2].startswith("Why   r5 ")
    assert lines[4].startswith("Next  ")


def test_keys_pause_panels_ranks_and_help() -> None:
    """Space pauses and says so, tab goes through the panels, r shows a rank, ? the help, again to go back."""
    live, size = eight_gpus(), (80, 24)
    assert "paused" in screen_of(live, size, ["space"])[0]
    assert "paused" not in screen_of(live, size, ["space", "space"])[0]
    rank = screen_of(live, size, ["r"])
    assert any("Rank 5" in line and "median" in line for line in rank), "the rank that matters is selected"
    assert any(line.startswith("  Dataloader Fetch") and "24." in line for line in rank)
    helped = "\n".join(screen_of(live, size, ["question_mark"]))
    assert "the training goes on" in helped
    assert "Wait* is time in the step that no phase claims" in helped
    usual = screen_of(live, size)
    assert screen_of(live, size, ["question_mark", "escape"]) == usual
    assert screen_of(live, size, ["r", "r"]) == usual
    assert screen_of(live, size, ["tab"] * 6) == usual, "six panels, then the first again"
    assert screen_of(live, size, ["n", "shift+tab"]) == usual


def test_secondary_text_is_dim() -> None:
    """A line of one piece keeps its style: the table's heads and facts are not all alike."""
    found: list[bool | None] = []

    def look(app: LiveApp) -> None:
        segments = list(app.screen._compositor.render_strips()[5])
        found.extend(segment.style.dim for segment in segments if segment.style and segment.text.strip())

    screen_of(eight_gpus(), (80, 24), ["r"], then=look)
    assert found == [True], "`esc: back; ...`"


def ranks_in(lines: list[str]) -> list[str]:
    """The ranks of the table, from top to bottom."""
    words = [line.replace(">", " ").split() for line in lines]
    return [found[0] for found in words if found and found[0].startswith("r") and found[0][1:2].isdigit()]


def test_ranks_are_sorted_by_any_column() -> None:
    """First what matters, then by rank; s goes through the columns, the largest first; S reverses."""
    live, size = eight_gpus(), (250, 60)
    assert ranks_in(screen_of(live, size)) == ["r5*", "r0", "r1", "r2", "r3", "r4", "r6", "r7"]
    by_input = ["s", "s"]
    assert ranks_in(screen_of(live, size, by_input))[0] == "r5*"
    assert ranks_in(screen_of(live, size, [*by_input, "S"]))[-1] == "r5*"
    by_host = ["s"] * 11
    assert len(ranks_in(screen_of(live, size, by_host))) == 8


def test_thousands_of_ranks_scroll_and_say_how_many_are_listed() -> None:
    """4,096 ranks: the view lists those that stand out, says of how many, and reaches the last one."""
    live = eight_gpus(4096, 20)
    lines = screen_of(live, (120, 40), ["tab"] * 4)
    listed = len(live.summary.step_time.ranks)
    assert any(f"{listed} of 4,096 ranks" in line for line in lines)
    assert "r5*" in ranks_in(lines)
    last = screen_of(live, (120, 40), [*["tab"] * 4, "end"])
    assert ranks_in(last)[-1] == f"r{max(map(int, live.summary.step_time.ranks))}"


def test_an_update_with_thousands_of_ranks_costs_about_as_much_as_with_many() -> None:
    """Drawing all of 4,096 ranks (a final summary lists every one) takes a few times as long as 128."""

    def cost(live: Live) -> float:
        took: list[float] = []

        def measure(app: LiveApp) -> None:
            for _ in range(5):
                began = time.thread_time()
                app.redraw()
                took.append(time.thread_time() - began)

        screen_of(live, (120, 40), then=measure)
        return min(took)

    assert cost(eight_gpus(4096, 20, final=True)) < 8 * cost(eight_gpus(128, 20))


def test_resize_changes_the_layout() -> None:
    """A terminal that grows shows all panels; one that shrinks shows one above the output."""

    async def show() -> tuple[list[str], list[str], list[str]]:
        app = LiveApp(eight_gpus, lambda: OUTPUT, Ink())
        found = []
        async with app.run_test(size=(80, 24)) as pilot:
            for size in ((80, 24), (120, 40), (80, 24)):
                await pilot.resize_terminal(*size)
                while app.shown.live is None or app.size != size:
                    await pilot.pause()
                await pilot.pause()
                await pilot.pause()
                found.append(plain(app))
        return found[0], found[1], found[2]

    small, large, again = asyncio.run(show())
    assert small == again
    assert (len(small), len(large)) == (24, 40)
    assert not any("Head/Tail Delta" in line for line in small)
    assert any("Head/Tail Delta" in line for line in large)


HOSTILE = "\x1b[31mred\x1b]0;title\x07 [bold red]markup[/] \u202eback 表格 " + "x" * 400


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_hostile_text_is_shown_as_it_is(size: tuple[int, int]) -> None:
    """Escape sequences, markup and wide characters in names, sentences, hosts and output change nothing."""
    live = eight_gpus()
    summary = live.summary
    first = replace(summary.primary_diagnosis, status=HOSTILE, summary=HOSTILE, action=HOSTILE)
    members = {
        name: replace(member, identity=replace(member.identity, host=HOSTILE))
        for name, member in summary.step_time.ranks.items()
    }
    bad = replace(
        summary,
        run=replace(summary.run, name=HOSTILE),
        primary_diagnosis=first,
        step_time=replace(summary.step_time, ranks=members),
    )
    lines = screen_of(replace(live, summary=bad), size, output=[HOSTILE, "[red]last line[/red]"])
    assert len(lines) == size[1]
    assert all(line.isprintable() and columns(line) <= size[0] for line in lines)
    assert "[bold red]markup[/]" in lines[0] + lines[1]
    assert any(line.endswith("[red]last line[/red]") for line in lines)
    assert lines[-1].startswith("space pause"), "the last line is where it was"


def test_without_unicode_or_colour_the_screen_is_ascii() -> None:
    """A plain terminal gets ASCII only, with letters in the ribbon instead of colours."""
    lines = screen_of(eight_gpus(), (120, 40), ink=Ink(colour=False, unicode=False))
    assert "".join(lines).isascii()
    ribbon = next(line for line in lines if "Median step" in line)
    for letter in ("|D", "| Forward", "| Backward", "| Sync"):
        assert letter in ribbon.replace("| D", "|D")


@pytest.mark.parametrize(
    ("environment", "encoding", "expected"),
    [
        ({"TERM": "xterm-256color"}, "utf-8", Ink(colour=True, unicode=True)),
        ({"TERM": "xterm", "NO_COLOR": "1"}, "UTF-8", Ink(colour=False, unicode=True)),
        ({"TERM": "xterm"}, "ANSI_X3.4-1968", Ink(colour=True, unicode=False)),
        ({"TERM": "linux"}, "utf-8", Ink(colour=True, unicode=False)),
        ({"TERM": "dumb"}, "utf-8", Ink(colour=False, unicode=False)),
        ({}, None, Ink(colour=False, unicode=False)),
    ],
)
def test_what_the_terminal_can_show(environment: dict[str, str], encoding: str | None, expected: Ink) -> None:
    """NO_COLOR, the encoding and TERM decide."""
    assert find_ink(environment, encoding) == expected


def test_a_run_that_cannot_be_read_does_not_look_alive() -> None:
    """If the folder is gone, the first line says so instead of `live`."""
    answers = [one_cpu()]

    def look() -> Live:
        if answers:
            return answers.pop()
        raise CommandError("no such folder")

    async def show() -> list[str]:
        app = LiveApp(look, lambda: OUTPUT, Ink())
        async with app.run_test(size=(120, 40)) as pilot:
            while not app.shown.problem:
                if not answers:
                    app._look_once()
                await pilot.pause()
            app.redraw()
            await pilot.pause()
            return plain(app)

    first = asyncio.run(show())[0]
    assert "cannot be read (no such folder)" in first
    assert "live" not in first


def test_output_of_a_run_that_keeps_none_says_where_it_is() -> None:
    """`traceml watch` of a run in summary mode: its output is in the other terminal."""
    lines = screen_of(one_cpu(), (80, 24), output=None)
    assert any("terminal or file that the run was started with" in line for line in lines)
