"""One recording, read again and again: each row once, the newest kept, the earlier ones folded into a block.

Rows are copied out of the file, never mapped: the monitor may free the space of old rows at any
moment (collect/rollup.py), and thousands of files need no thousands of mappings.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from traceml.recording import format as fmt
from traceml.recording.fold import Fold, latest_of_each_step
from traceml.recording.reader import RecordingReader
from traceml.recording.writer import CHUNK_BYTES

PIECE_ROWS: Final = 16_384
SPARE_ROWS: Final = 32
LIVE_BYTES: Final = 1024
_READ_FLAGS: Final = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_COUNT: Final = np.arange(PIECE_ROWS)
HOLE_BYTES: Final = CHUNK_BYTES
"""A writer reserves a chunk ahead; a file that goes on for longer after its last row has a hole there."""


class RowsTail:
    """The rows of one file. `start` is where what is known of earlier rows ends."""

    def __init__(self, path: Path, fold: Fold | None) -> None:
        reader = RecordingReader(path)
        self.path = path
        self.header = reader.header
        self.earlier: np.void | None = None
        self.live = b""
        self._live_bytes = np.zeros(LIVE_BYTES, dtype=np.uint8)
        self._name = str(path)
        self._fold = fold
        self._start = 0  # index in the file of the first row held
        self._end = 0  # index in the file of the first row not yet read
        self._held = np.empty(0, dtype=reader.dtype)
        self._first = 0  # index in `_held` of the first row that is still held
        self._guess = SPARE_ROWS
        # Not all files at once: folding thousands of them in one tick would show.
        self._stagger = zlib.crc32(self._name.encode()) % SPARE_ROWS

    @property
    def rows(self) -> NDArray[np.void]:
        """The rows held: everything that was read and not dropped. Later pulls do not change this array."""
        return self._held[self._first : self._first + self._end - self._start]

    @property
    def newest(self) -> int:
        """Rows of the file that were read or are covered by `earlier`."""
        return self._end

    def restart(self, earlier: np.void) -> None:
        """Forget what was read; everything before is in `earlier`."""
        self.earlier = earlier
        self._start = self._end = int(earlier["end_row"])
        self._held, self._first = np.empty(0, dtype=self._held.dtype), 0

    def pull(self, most_rows: int) -> bool:
        """Read what was published since the last call; hold `most_rows` of the newest, or a few more.

        False when the file has a hole where its next row should be: the rows there were rolled up.
        """
        spare = max(SPARE_ROWS, most_rows // 8) + self._stagger
        fd = os.open(self._name, _READ_FLAGS)
        try:
            _read_at(fd, self._live_bytes, fmt.LIVE_OFFSET)
            self.live = self._live_bytes.tobytes()
            while True:
                want = min(self._guess, PIECE_ROWS)
                got = self._read(fd, want)
                self._guess = max(SPARE_ROWS, min(2 * self._guess, PIECE_ROWS) if got == want else 2 * got)
                held = self._end - self._start
                if held > most_rows + spare:
                    self.drop(held - most_rows)
                if got < want:
                    self._shrink()
                    ahead = os.fstat(fd).st_size - fmt.HEADER_SIZE - self._end * self._held.dtype.itemsize
                    return ahead <= HOLE_BYTES
        finally:
            os.close(fd)

    def head(self, most_rows: int) -> NDArray[np.void]:
        """The first rows of the file, which are never rolled up: what warm-up is told from."""
        rows = np.zeros(most_rows, dtype=self._held.dtype)
        fd = os.open(self._name, _READ_FLAGS)
        try:
            there = _read_at(fd, _bytes(rows), fmt.HEADER_SIZE) // rows.dtype.itemsize
        finally:
            os.close(fd)
        wrong = np.flatnonzero(rows["sequence"][:there] != np.arange(1, there + 1))
        return rows[: int(wrong[0]) if len(wrong) else there]

    def _read(self, fd: int, want: int) -> int:
        """Copy up to `want` new rows; returns how many were published."""
        size = self._held.dtype.itemsize
        room = self._room(want)
        into = _bytes(room)
        offset = fmt.HEADER_SIZE + self._end * size
        there = _read_at(fd, into, offset) // size
        sequence = room["sequence"]
        published = sequence[:there] == _COUNT[:there] + (self._end + 1)
        count = there if published.all() else int(published.argmin())
        if count:
            # A row that was published during the first read may be torn in it: read again, now that it is
            # known to be whole; and look again, because the oldest may have been rolled up meanwhile.
            _read_at(fd, into[: count * size], offset)
            if int(sequence[0]) != self._end + 1:
                return 0
        self._end += count
        return count

    def _room(self, want: int) -> NDArray[np.void]:
        """Space for `want` rows after those held. Arrays that were given away are never written to."""
        used = self._first + self._end - self._start
        if used + want > len(self._held):
            held = self.rows
            more = np.empty(len(held) + want + max(SPARE_ROWS, len(held) // 4), dtype=self._held.dtype)
            _bytes(more)[: held.nbytes] = _bytes(held)
            self._held, self._first, used = more, 0, len(held)
        return self._held[used : used + want]

    def _shrink(self) -> None:
        """Give back the room that a long first read needed."""
        held = self.rows
        if len(self._held) > 2 * len(held) + 4 * SPARE_ROWS:
            self._held, self._first = held.copy(), 0

    def drop(self, count: int) -> None:
        """Fold the oldest `count` rows into `earlier` and let go of them."""
        gone, after = self.rows[:count], self.rows[count : count + 1]
        self._first += count
        self._start += count
        if self._fold is None:
            return
        counting = latest_of_each_step(gone, int(after["step"][0]) if len(after) else None)
        if len(counting):
            block = self._fold.rows(counting, self._start)
            self.earlier = block if self.earlier is None else self._fold.blocks(self.earlier, block)


def _bytes(rows: NDArray[np.void]) -> NDArray[np.uint8]:
    """The same memory as plain bytes: copying structured rows column by column is slow."""
    return rows.view(np.uint8)


def _read_at(fd: int, into: NDArray[np.uint8], offset: int) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(fd, [into.data], offset)
    os.lseek(fd, offset, os.SEEK_SET)
    data = os.read(fd, len(into))
    into[: len(data)] = np.frombuffer(data, np.uint8)
    return len(data)
