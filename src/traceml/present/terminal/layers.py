"""The layers that deep mode measured, as a table that fits the width."""

from __future__ import annotations

import textwrap

from rich.text import Text

from traceml.present import layers as layer_rows
from traceml.present.terminal.ink import Ink
from traceml.present.terminal.tables import table, width_of
from traceml.schema.summary import Summary


def layer_lines(summary: Summary, most: int, width: int, ink: Ink) -> list[Text]:
    """A row for each of the first layers, then the sums and notes."""
    found = summary.layers
    assert found is not None
    rows = [layer_rows.heads(summary), *(layer_rows.cells(one, summary) for one in found.layers[:most])]
    cells = [[ink.text(cell, "" if at else "bold") for cell in row] for at, row in enumerate(rows)]
    room = max(width - 2 - width_of([row[1:] for row in cells], 2), 12)
    for row in cells:
        row[0].truncate(room, overflow="ellipsis")
    said = [line for one in layer_rows.foot(found, most) for line in textwrap.wrap(one, max(width, 20))]
    return [*table(cells, left=2), *(ink.text(line, "dim") for line in said)]
