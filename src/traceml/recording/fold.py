"""Many rows become one block: exact integer sums, extremes, first and last. Nothing is rounded.

A row is a block of one step, so rows and blocks fold by the same table, and folding in pieces gives the
same block as folding at once.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from traceml.recording.layout import Columns
from traceml.schema import catalog as c


class Fold:
    """How the rows of one kind of recording are folded."""

    def __init__(self, table: tuple[c.Folded, ...]) -> None:
        self._table = table
        self.columns: Columns = tuple((f.name, "q") for f in table)
        self.dtype: np.dtype[np.void] = np.dtype([(f.name, "<i8") for f in table])
        places = {how: [i for i, f in enumerate(table) if f.how == how] for how in _REDUCE}
        self._by_how = {how: np.array(chosen) for how, chosen in places.items() if chosen}

    def rows(self, rows: NDArray[np.void], end_row: int) -> np.void:
        """One block of all these rows, which end before row `end_row` of their recording.

        Rows that were superseded must not be among them (`latest_of_each_step`).
        """
        words = np.empty((len(self._table), len(rows)), dtype=np.int64)
        for line, column in zip(words, self._table, strict=True):
            if column.source == "one":
                line[:] = 1
            elif column.source == "end_row":
                line[:] = end_row
            elif column.source == "took_ns":
                np.subtract(rows["end_ns"], rows["begin_ns"], out=line)
            else:
                line[:] = rows[column.source]
        return self._one(words)

    def blocks(self, *blocks: NDArray[np.void] | np.void) -> np.void:
        """One block of consecutive blocks, in their order."""
        words = np.concatenate([np.frombuffer(b.tobytes(), dtype=np.int64) for b in blocks])
        return self._one(words.reshape(-1, len(self._table)).T)

    def _one(self, words: NDArray[np.int64]) -> np.void:
        """`words` has a line per block column."""
        folded = np.empty(len(self._table), dtype=np.int64)
        for how, chosen in self._by_how.items():
            folded[chosen] = _REDUCE[how](words[chosen])
        block: np.void = folded.view(self.dtype)[0]
        return block


_REDUCE: Final = {
    "first": lambda words: words[:, 0],
    "last": lambda words: words[:, -1],
    "sum": lambda words: words.sum(axis=1),
    "min": lambda words: words.min(axis=1),
    "max": lambda words: words.max(axis=1),
    "and": lambda words: np.bitwise_and.reduce(words, axis=1),
}
STEPS: Final = Fold(c.STEP_BLOCK)
DROPPED: Final = Fold(c.DROPPED_BLOCK)


def latest_of_each_step(rows: NDArray[np.void], next_step: int | None = None) -> NDArray[np.void]:
    """A row supersedes the row before it if both have the same step; `next_step` is that of the row after."""
    if not len(rows):
        return rows
    step = rows["step"]
    last_counts = next_step is None or int(step[-1]) != next_step
    moves = step[1:] != step[:-1]
    if last_counts and moves.all():
        return rows
    kept: NDArray[np.void] = rows[np.append(moves, last_counts)]
    return kept
