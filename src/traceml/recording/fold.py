"""Many rows become one block: exact integer sums, extremes, first and last. Nothing is rounded.

A row is a block of one step, so rows and blocks fold by the same table, and folding in pieces gives the
same block as folding at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from traceml.schema import catalog as c

Words = NDArray[np.int64]
_Places = tuple[tuple[NDArray[np.intp], NDArray[np.intp]], list[tuple[int, str]]]


class Fold:
    """How the rows of one kind of recording are folded."""

    def __init__(self, table: tuple[c.Folded, ...]) -> None:
        self._table = table
        self.columns: tuple[tuple[str, str], ...] = tuple((f.name, "q") for f in table)
        self.dtype: np.dtype[np.void] = np.dtype([(f.name, "<i8") for f in table])
        self._known_dtype: np.dtype[np.void] | None = None
        self._known_places: _Places | None = None
        places = {how: [i for i, f in enumerate(table) if f.how == how] for how in _REDUCE}
        self._by_how = {how: np.array(chosen) for how, chosen in places.items() if chosen}

    def rows(self, rows: NDArray[np.void], end_row: int) -> np.void:
        """One block of all these rows, which end before row `end_row` of their recording.

        `rows` must be of steps that count: superseded ones left out (`latest_of_each_step`).
        """
        words = np.empty((len(rows), len(self._table)), dtype=np.int64)
        places, others = self._places(rows.dtype)
        # A row is a line of 64-bit words: most columns are taken at once.
        words[:, places[0]] = rows.view(np.int64).reshape(len(rows), -1)[:, places[1]]
        for at, source in others:
            if source == "one":
                words[:, at] = 1
            elif source == "end_row":
                words[:, at] = end_row
            elif source == "took_ns":
                words[:, at] = rows["end_ns"] - rows["begin_ns"]
            else:
                words[:, at] = rows[source]
        return self._one(words)

    def _places(self, dtype: np.dtype[np.void]) -> _Places:
        """(block columns, words of a row) that are the same, and the other block columns."""
        if self._known_places is None or dtype is not self._known_dtype:
            fields: Mapping[str, Any] = dtype.fields or {}
            to: list[int] = []
            source: list[int] = []
            others: list[tuple[int, str]] = []
            for at, column in enumerate(self._table):
                kind, offset = fields.get(column.source, (None, 0))[:2]
                if kind == np.dtype("<i8") and offset % 8 == 0:
                    to.append(at)
                    source.append(offset // 8)
                else:
                    others.append((at, column.source))
            self._known_dtype = dtype
            self._known_places = ((np.array(to), np.array(source)), others)
        return self._known_places

    def blocks(self, *blocks: NDArray[np.void] | np.void) -> np.void:
        """One block of consecutive blocks, in their order."""
        words = np.concatenate([np.frombuffer(b.tobytes(), dtype=np.int64) for b in blocks])
        return self._one(words.reshape(-1, len(self._table)))

    def _one(self, words: Words) -> np.void:
        folded = np.empty(len(self._table), dtype=np.int64)
        for how, chosen in self._by_how.items():
            folded[chosen] = _REDUCE[how](words[:, chosen])
        block: np.void = folded.view(self.dtype)[0]
        return block


_REDUCE: Final = {
    "first": lambda words: words[0],
    "last": lambda words: words[-1],
    "sum": lambda words: words.sum(axis=0),
    "min": lambda words: words.min(axis=0),
    "max": lambda words: words.max(axis=0),
    "and": lambda words: np.bitwise_and.reduce(words, axis=0),
}
STEPS: Final = Fold(c.STEP_BLOCK)
DEVICE: Final = Fold(c.DEVICE_BLOCK)
GAUGES: Final = Fold(c.GAUGE_BLOCK)


def latest_of_each_step(rows: NDArray[np.void], next_step: int | None = None) -> NDArray[np.void]:
    """A row with the same step number as the one before supersedes it; `next_step` is of the row after."""
    if not len(rows):
        return rows
    step = rows["step"]
    last_counts = next_step is None or int(step[-1]) != next_step
    moves = step[1:] != step[:-1]
    if last_counts and moves.all():
        return rows
    kept: NDArray[np.void] = rows[np.append(moves, last_counts)]
    return kept
