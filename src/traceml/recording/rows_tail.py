"""One recording, read again and again: each row once, the newest kept, earlier ones folded into a block."""

import os
import zlib
from contextlib import suppress
from typing import Final

import numpy as np
from numpy.typing import NDArray

from traceml.files import open_sized
from traceml.recording import layout
from traceml.recording.fold import Fold, latest_of_each_step
from traceml.recording.reader import RecordingReader, Rows, UnreadableRecording, bytes_at, leading
from traceml.recording.rollup import rolled_up
from traceml.recording.writer import CHUNK_BYTES

PIECE_ROWS: Final = 16_384
SPARE_ROWS: Final = 32
HOLE_BYTES: Final = CHUNK_BYTES
"""A writer reserves one chunk ahead. A file that is longer than that after its last row has a hole there."""


class RowsTail(RecordingReader):
    """The rows of one file. Everything before `_start` is in `earlier` or was dropped."""

    def __init__(self, path: str, columns: layout.Columns, fold: Fold | None) -> None:
        """Refuses a recording of another kind, whose rows would be taken for something else."""
        super().__init__(path)
        there = self.header["columns"]
        if there != columns and not {name for name, _ in there}.issuperset(name for name, _ in columns):
            raise UnreadableRecording(f"{path}: other columns than expected")
        self.earlier: np.void | None = None
        self._fold = fold
        self._start = 0  # index in the file of the first row held
        self._use(0)
        # Not all files at once: folding thousands of them in one tick would show.
        self._stagger = zlib.crc32(os.fsencode(path)) % SPARE_ROWS

    @property
    def held(self) -> Rows:
        """The rows held: everything that was read and not dropped. Later pulls do not change this array."""
        return self._rows[self._first : self._first + self.count - self._start]

    def _use(self, capacity: int) -> None:
        """From now on the rows held are the first ones of a new buffer for this many."""
        self._rows: Rows = np.empty(capacity, dtype=self.dtype)
        # As plain bytes too: copying structured rows column by column is slow.
        self._buffer: NDArray[np.uint8] = self._rows.view(np.uint8)
        self._first = 0

    def pull(self, most_rows: int, likely: int = 0) -> None:
        """Read everything new, even if rows that were not read yet are rolled up, before or meanwhile. Hold
        `most_rows` of the newest, or a few more; `likely` of all are there, because other files have as many.
        """
        if not self.count:
            with suppress(UnreadableRecording, OSError):  # it may not be needed: see whether rows are missing
                self._skip()
        while not self._pull(most_rows, likely) and self._skip():
            pass

    def _skip(self) -> bool:
        """Go on after what is rolled up; False when that is not further than what was read."""
        earlier = rolled_up(self.path)
        if earlier is None or int(earlier["end_row"]) <= self.count:
            return False
        self.earlier = earlier
        self._start = self.count = int(earlier["end_row"])
        self._use(0)
        return True

    def _pull(self, most_rows: int, likely: int) -> bool:
        """False when the file has a hole where its next row should be: the rows there were rolled up."""
        most = most_rows + max(2 * SPARE_ROWS, most_rows // 8) + self._stagger
        fd, size = open_sized(self.path)
        try:
            self.live_bytes = bytes_at(fd, layout.LIVE_BYTES, layout.LIVE_OFFSET)
            room = self._room_for(size)
            published = self._published(fd, room, max(likely, self.count))
            is_whole = True
            while self.count < published and is_whole:
                is_whole = self._read(fd, min(PIECE_ROWS, published - self.count), most + SPARE_ROWS)
                self._drop_all_but(most_rows, most)
        finally:
            os.close(fd)
        self._drop_all_but(most_rows, most)  # without new rows too: fewer may be wanted than before
        if len(self._rows) > most + 2 * SPARE_ROWS:
            # Give back the room that a long first read needed: all files' rows take memory at once.
            self._move(most + SPARE_ROWS)
        return (room - self.count) * self.row_size <= HOLE_BYTES

    def _read(self, fd: int, want: int, capacity: int) -> bool:
        """Append up to `want` rows to those held; False if not all of them have the expected numbers. Arrays
        that were given away are never written to."""
        held, size = self.count - self._start, self.row_size
        if self._first + held + want > len(self._rows):
            self._move(max(min(capacity, held + held // 4 + want), held + want))
        used = self._first + held
        free = self._buffer[used * size : (used + want) * size]
        there = _read_at(fd, free, layout.HEADER_SIZE + self.count * size) // size
        got = leading(self._rows["sequence"][used : used + there], self.count + 1)
        self.count += got
        return got == want

    def _move(self, capacity: int) -> None:
        first, size = self._first, self.row_size
        held = self._buffer[first * size : (first + self.count - self._start) * size]
        self._use(capacity)
        self._buffer[: len(held)] = held

    def _drop_all_but(self, most_rows: int, most: int) -> None:
        """Fold all rows but the newest `most_rows` into `earlier`, if there are more than `most`."""
        count = self.count - self._start - most_rows
        if count <= most - most_rows:
            return
        gone, after = self.held[:count], self.held[count : count + 1]
        self._first += count
        self._start += count
        if self._fold is None:
            return
        counting = latest_of_each_step(gone, int(after["step"][0]) if len(after) else None)
        if len(counting):
            block = self._fold.rows(counting, self._start)
            self.earlier = block if self.earlier is None else self._fold.blocks(self.earlier, block)


def _read_at(fd: int, into: NDArray[np.uint8], offset: int) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(fd, [into.data], offset)
    data = bytes_at(fd, len(into), offset)
    into[: len(data)] = np.frombuffer(data, np.uint8)
    return len(data)
