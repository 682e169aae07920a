"""Layout of text: clipping, wrapping and aligned tables within 100 columns, or a narrower terminal."""

import os
import re
import textwrap
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, TextIO

from traceml.errors import printable

WIDTH: Final = 100
LEAST_WIDTH: Final = 60
_width: Final = ContextVar("width", default=WIDTH)
_UNIT: Final = re.compile(r"(?<=\d) (?=(?:%|pp|ms|µs|s|min|B|[kMGT]B)(?:\W|$))")
_HELD: Final = "\u00a0"


@contextmanager
def fitting(stream: TextIO | None) -> Iterator[None]:
    """Lay out what is made inside for the terminal behind this stream; tables keep their width."""
    try:
        wide = os.get_terminal_size(stream.fileno()).columns if stream is not None else 0
    except (OSError, ValueError):
        wide = 0  # no terminal
    before = _width.set(max(LEAST_WIDTH, min(wide or WIDTH, WIDTH)))
    try:
        yield
    finally:
        _width.reset(before)


def rule() -> str:
    """A line across the whole width."""
    return "-" * _width.get()


def columns(text: str) -> int:
    """Columns on the screen. Wide characters take two, combining characters none."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(ch) in "WF" for ch in text)
    return len(text) + wide - sum(unicodedata.combining(ch) != 0 for ch in text)


def clip(text: str, most: int = WIDTH) -> str:
    """The text, shortened with an ellipsis if it is too long."""
    if columns(text) <= most:
        return text
    while columns(text) >= most:
        text = text[: -max(1, (columns(text) - most) // 2)]
    return text + "…"


def spread(left: str, right: str) -> str:
    """One line with text on both sides; the left one is shortened if there is no room."""
    width = _width.get()
    right = clip(printable(right), width * 2 // 3)
    left = clip(printable(left), width - 2 - columns(right))
    return left + " " * (width - columns(left) - columns(right)) + right


def wrap(lead: str, text: str) -> list[str]:
    """Lines that begin with `lead`. A number stays on one line with its unit."""
    text = _UNIT.sub(_HELD, printable(text))
    # With wide characters, only half as many are sure to fit.
    room = (_width.get() - len(lead)) // (2 if columns(text) > len(text) else 1)
    lines = textwrap.wrap(text, room, break_on_hyphens=False) or [""]
    indent = " " * len(lead)
    return [(indent if i else lead) + line.replace(_HELD, " ") for i, line in enumerate(lines)]


def table(
    rows: Sequence[Sequence[str]],
    align: str = "",
    indent: int = 2,
    gap: int = 2,
    least: Sequence[int] = (),
    most: Sequence[int] = (),
) -> list[str]:
    """Aligned columns. `align` has `<` or `>` for each (default: names on the left, numbers on the right),
    `least` and `most` their widths."""
    align = align or "<".ljust(len(rows[0]), ">")
    floor, roof = [*least, *[0] * len(align)], [*most, *[WIDTH] * len(align)]
    cells = [[clip(printable(cell), roof[i]) for i, cell in enumerate(row)] for row in rows]
    widths = [max(floor[i], *(columns(row[i]) for row in cells)) for i in range(len(align))]
    lines = []
    for row in cells:
        pads = [" " * (width - columns(cell)) for cell, width in zip(row, widths, strict=True)]
        placed = [c + p if a == "<" else p + c for c, p, a in zip(row, pads, align, strict=True)]
        lines.append(" " * indent + (" " * gap).join(placed))
    return lines


def page(lines: Sequence[str]) -> str:
    """The lines as one text. Each line is clipped and printable."""
    return "\n".join(clip(printable(line).rstrip()) for line in lines) + "\n"
