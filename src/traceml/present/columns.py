"""Layout of text: clipping, wrapping and aligned tables within 100 columns."""

import re
import textwrap
import unicodedata
from collections.abc import Sequence
from typing import Final

from traceml.errors import printable

WIDTH: Final = 100
RULE: Final = "-" * WIDTH
_UNIT: Final = re.compile(r"(?<=\d) (?=(?:%|pp|ms|µs|s|min|B|[kMGT]B)(?:\W|$))")
_HELD: Final = "\u00a0"


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
    right = clip(printable(right), WIDTH * 2 // 3)
    left = clip(printable(left), WIDTH - 2 - columns(right))
    return left + " " * (WIDTH - columns(left) - columns(right)) + right


def wrap(lead: str, text: str) -> list[str]:
    """Lines of at most 100 columns that begin with `lead`. A number stays on one line with its unit."""
    text = _UNIT.sub(_HELD, printable(text))
    # With wide characters, only half as many are sure to fit.
    room = (WIDTH - len(lead)) // 2 if columns(text) > len(text) else WIDTH - len(lead)
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
