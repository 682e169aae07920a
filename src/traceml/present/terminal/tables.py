"""Aligned columns of styled cells: names on the left, numbers on the right."""

from collections.abc import Sequence

from rich.text import Text

from traceml.present.terminal.ink import line

Row = Sequence[Text]


def width_of(rows: Sequence[Row], gap: int) -> int:
    """Columns that the table takes."""
    return max(line.cell_len for line in table(rows, gap))


def table(rows: Sequence[Row], gap: int = 2, left: int = 1) -> list[Text]:
    """The lines of a table; the first `left` columns start on the left, the others end on the right."""
    widths = [max(cell.cell_len for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        parts = []
        for at, (cell, width) in enumerate(zip(row, widths, strict=True)):
            pad = Text(" " * (width - cell.cell_len))
            parts += [cell, pad] if at < left else [pad, cell]
            parts.append(Text(" " * gap))
        lines.append(line(*parts[:-1]))
    return lines


def turned(rows: Sequence[Row]) -> list[list[Text]]:
    """Rows become columns."""
    return [list(column) for column in zip(*rows, strict=True)]


def two_line_heads(rows: Sequence[Row]) -> list[list[Text]]:
    """The same table with heads of two words in two lines, to save width."""
    head, *body = rows
    words = [cell.split(" ") for cell in head]
    first = [found[0] if len(found) > 1 else Text("") for found in words]
    second = [Text(" ").join(found[1:] or found) for found in words]
    return [first, second, *map(list, body)]
