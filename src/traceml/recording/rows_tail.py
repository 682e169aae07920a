"""One recording, read again and again: each row once, the newest kept, earlier ones folded into a block."""

import os
import zlib
from typing import Final

import numpy as np
from numpy.typing import NDArray

from traceml.files import open_sized
from traceml.recording import layout
from traceml.recording.fold import Fold, latest_of_each_step
from traceml.recording.reader import RecordingReader, Rows, bytes_at, leading
from traceml.recording.writer import CHUNK_BYTES

Bytes = NDArray[np.uint8]

PIECE_ROWS: Final = 16_384
SPARE_ROWS: Final = 32
HOLE_BYTES: Final = CHUNK_BYTES
"""A writer reserves one chunk ahead. A file that is longer than that after its last row has a hole there."""


class RowsTail(RecordingReader):
    """The rows of one file. Everything before `_start` is in `earlier` or was dropped."""

    def __init__(self, name: str, fold: Fold | None) -> None:
        super().__init__(name)
        self.earlier: np.void | None = None
        self._fold = fold
        self._start = 0  # index in the file of the first row held
        self._buffer: Rows
        self._bytes: Bytes
        self._first = 0  # index in `_buffer` of the first row held
        self._use(np.empty(0, dtype=self.dtype))
        # Not all files at once: folding thousands of them in one tick would show.
        self._stagger = zlib.crc32(os.fsencode(name)) % SPARE_ROWS

    @property
    def held(self) -> Rows:
        """The rows held: everything that was read and not dropped. Later pulls do not change this array."""
        return self._buffer[self._first : self._first + self.count - self._start]

    def restart(self, earlier: np.void) -> None:
        """Forget what was read; everything before is in `earlier`."""
        self.earlier = earlier
        self._start = self.count = int(earlier["end_row"])
        self._use(np.empty(0, dtype=self.dtype))

    def _use(self, buffer: Rows) -> None:
        """From now on the rows held are the first ones of this array."""
        # As plain bytes too: copying structured rows column by column is slow.
        self._buffer, self._bytes, self._first = buffer, buffer.view(np.uint8), 0

    def pull(self, most_rows: int, likely: int = 0) -> bool:
        """Read what was published since the last call; hold `most_rows` of the newest, or a few more.

        `likely` is how many rows are expected to be there, because other files have as many.
        Returns False when the file has a hole where its next row should be: the rows there were rolled up.
        """
        most = most_rows + max(2 * SPARE_ROWS, most_rows // 8) + self._stagger
        fd, size = open_sized(self._name)
        try:
            self.live_bytes = bytes_at(fd, layout.LIVE_BYTES, layout.LIVE_OFFSET)
            room = self._room_for(size)
            published = self._published(fd, room, max(likely, self.count))
            while self.count < published:
                want = min(PIECE_ROWS, published - self.count)
                got = self._read(fd, want, most + SPARE_ROWS)
                self._drop_all_but(most_rows, most)
                if got < want:
                    break
        finally:
            os.close(fd)
        self._drop_all_but(most_rows, most)  # without new rows too: fewer may be wanted than before
        if len(self._buffer) > most + 2 * SPARE_ROWS:
            # Give back the room that a long first read needed: all files' rows take memory at once.
            self._move(most + SPARE_ROWS)
        return (room - self.count) * self.row_size <= HOLE_BYTES

    def head(self, most_rows: int) -> Rows:
        """The first rows of the file, which are never rolled up: warm-up is recognized by them."""
        with self._opened() as fd:
            return self._copied(fd, 0, most_rows)

    def _read(self, fd: int, want: int, capacity: int) -> int:
        """Append up to `want` rows to those held; returns how many have the expected numbers."""
        if self._start == self.count and want <= capacity:  # nothing held: no need to copy them again
            self._use(self._copied(fd, self.count, want))
            count = len(self._buffer)
        else:
            used, size = self._room(want, capacity), self.row_size
            room = self._bytes[used * size : (used + want) * size]
            there = _read_at(fd, room, layout.HEADER_SIZE + self.count * size)
            count = leading(self._buffer["sequence"][used : used + there // size], self.count + 1)
        self.count += count
        return count

    def _room(self, want: int, capacity: int) -> int:
        """Where in the buffer space for `want` rows begins, after those held. Arrays that were given away are
        never written to."""
        held = self.count - self._start
        if self._first + held + want > len(self._buffer) or not self._buffer.flags.writeable:
            self._move(max(min(capacity, held + held // 4 + want), held + want))
        return self._first + held

    def _move(self, capacity: int) -> None:
        first, count, before = self._first, self.count - self._start, self._bytes
        self._use(np.empty(capacity, dtype=self.dtype))
        size = self.row_size
        self._bytes[: count * size] = before[first * size : (first + count) * size]

    def _drop_all_but(self, most_rows: int, most: int) -> None:
        """Fold all rows but the newest `most_rows` into `earlier`, if there are more than `most`."""
        if self.count - self._start <= most:
            return
        count = self.count - self._start - most_rows
        gone, after = self.held[:count], self.held[count : count + 1]
        self._first += count
        self._start += count
        if self._fold is None:
            return
        counting = latest_of_each_step(gone, int(after["step"][0]) if len(after) else None)
        if len(counting):
            block = self._fold.rows(counting, self._start)
            self.earlier = block if self.earlier is None else self._fold.blocks(self.earlier, block)


def _read_at(fd: int, into: Bytes, offset: int) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(fd, [into.data], offset)
    data = bytes_at(fd, len(into), offset)
    into[: len(data)] = np.frombuffer(data, np.uint8)
    return len(data)
