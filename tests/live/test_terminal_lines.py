"""The parts of the terminal view that are plain functions: output, ribbon, sparkline, colours."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz import examples
from traceml.monitor.display import MOST_BYTES, OutputTail
from traceml.present.columns import columns
from traceml.present.terminal.output import settled
from traceml.present.terminal.panels import folded
from traceml.schema import fmt
from traceml.schema.catalog import PHASE_COLOURS, PHASES, USER_COLOURS, colour_of


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("one\ntwo\n", ["one", "two"]),
        ("\r 10%|# \r 20%|##\r100%|##########\ndone\n", ["100%|##########", "done"]),
        ("a long bar\rshort     \rshort", ["short"]),
        ("12345\rab", ["ab345"]),
        ("a\r\nb\r\n", ["a", "b"]),
        ("abc\b\bX", ["aXc"]),
        ("\x1b[31mred\x1b[0m \x1b]0;title\x07text \x1b(B", ["red text"]),
        ("outer\ninner 1\x1b[A\rOUTER\ninner 2", ["OUTER", "inner 2"]),
        ("one\r\x1b[Ktwo", ["two"]),
        ("up\x1b[999999999Ahigher", ["uphigher"]),
        ("\n\n\nafter\n\n", ["", "", "", "after"]),
        ("", []),
    ],
)
def test_output_is_settled_as_a_terminal_would(text: str, lines: list[str]) -> None:
    """Bars are one line in their latest state, nested ones too; colours and titles leave no trace."""
    assert settled(text) == lines


@given(
    st.text(alphabet="ab\x1b[]0;1AKBm\r\n\b\t\x07\x9b表é", max_size=200),
    st.integers(4, 90),
    st.integers(0, 9),
)
@examples(200)
def test_any_output_fits_and_is_printable(text: str, width: int, most: int) -> None:
    """Whatever a training prints: at most the given number of rows, none wider than the panel, no control
    characters."""
    rows = folded(settled(text), width, most)
    assert len(rows) <= most
    assert all(row.isprintable() and columns(row) <= width for row in rows)


def test_a_long_line_takes_a_few_rows() -> None:
    """A line of a megabyte does not push everything else off the screen."""
    rows = folded(["before", "x" * 1_000_000], 80, 10)
    assert [len(row) for row in rows] == [6, 80, 80, 80]
    assert rows[-1].endswith("…")


def test_only_the_end_of_the_output_is_read(tmp_path: Path) -> None:
    """A log of any length costs one small read; the first line is whole; no file is not an empty one."""
    path = tmp_path / "output.log"
    tail = OutputTail(path)
    assert tail.read() is None
    path.write_text("".join(f"line {at}\n" for at in range(100_000)))
    lines = tail.read() or []
    assert lines[-1] == "line 99999"
    assert lines[0].startswith("line ")
    assert sum(len(line) + 1 for line in lines) <= MOST_BYTES
    assert tail.read() is lines, "nothing new, nothing read"


def test_a_fifo_in_place_of_the_output_does_not_hang_the_view(tmp_path: Path) -> None:
    """Only a regular file is read."""
    os.mkfifo(tmp_path / "output.log")
    with pytest.raises(OSError, match="not a regular file"):
        OutputTail(tmp_path / "output.log").read()


SHARES = st.lists(st.one_of(st.none(), st.floats(0, 1e6)), min_size=1, max_size=12)


@given(SHARES, st.integers(0, 300))
@examples(200)
def test_ribbon_fills_its_width(shares: list[float | None], width: int) -> None:
    """The parts add up to the width, whatever the shares; nothing without a share has a column."""
    widths = fmt.ribbon_widths(shares, width)
    assert len(widths) == len(shares)
    assert sum(widths) == (width if any(share and share > 0 for share in shares) else 0)
    assert all(w >= 0 for w in widths)
    assert all(w == 0 for w, share in zip(widths, shares, strict=True) if not share)


def test_sparkline_keeps_a_single_slow_step_visible() -> None:
    """Steady looks steady, one slow step among thousands stands out."""
    levels = "01234567"
    steady, highest = fmt.sparkline([10.0] * 1000, 50, levels)
    assert (len(steady), set(steady), highest) == (50, {"4"}, 10.0)
    values: list[float | None] = [10.0] * 1000
    values[500], values[3] = 100.0, None
    line, highest = fmt.sparkline(values, 50, levels)
    assert (line.count("7"), line.count("1"), highest) == (1, 49, 100.0)
    assert fmt.sparkline([], 50, levels) == ("", None)
    assert fmt.sparkline([0.0, 0.0], 50, levels) == ("00", 0.0)


def test_every_phase_has_a_colour_of_its_own() -> None:
    """No two phases look alike; user phases take three colours in turn."""
    assert {phase.key for phase in PHASES} | {"wait"} == set(PHASE_COLOURS)
    assert len(set(PHASE_COLOURS.values()) | set(USER_COLOURS)) == len(PHASE_COLOURS) + len(USER_COLOURS)
    users = [f"user.{name}_ms" for name in "abcd"]
    assert [colour_of(key, users) for key in users] == [*USER_COLOURS, USER_COLOURS[0]]
    assert colour_of("input_ms") == colour_of("input") == "#E69F00"


def test_settling_takes_time_in_proportion() -> None:
    """Ten times as much output takes about ten times as long, not a hundred."""

    def cost(count: int) -> float:
        text = "\r 10%|# \x1b[A" * count
        took = []
        for _ in range(5):
            began = time.thread_time()
            settled(text)
            took.append(time.thread_time() - began)
        return min(took)

    assert cost(10_000) < 40 * cost(1_000)
