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
from traceml.recording.reader import parse_header, row_dtype
from traceml.recording.writer import CHUNK_BYTES

PIECE_ROWS: Final = 16_384
SPARE_ROWS: Final = 32
FEW_ROWS: Final = 64
SEQUENCE_BYTES: Final = 8
NEARLY: Final = 2  # ranks that are in step have as many rows as each other, give or take this
LIVE_BYTES: Final = 1024
READ_FLAGS: Final = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_COUNT: Final = np.arange(PIECE_ROWS)
HOLE_BYTES: Final = CHUNK_BYTES
"""A writer reserves a chunk ahead; a file that goes on for longer after its last row has a hole there."""


class RowsTail:
    """The rows of one file. `start` is where what is known of earlier rows ends."""

    def __init__(self, name: str, fold: Fold | None) -> None:
        self._name = name  # a string: paths of thousands of files show in the time of a look
        fd = os.open(self._name, READ_FLAGS)
        try:
            head = bytes_at(fd, fmt.HEADER_SIZE, 0)
        finally:
            os.close(fd)
        self.header, row_size = parse_header(name, head)
        self.earlier: np.void | None = None
        self.live = b""
        self._fold = fold
        self._start = 0  # index in the file of the first row held
        self._end = 0  # index in the file of the first row not yet read
        self._held = np.empty(0, dtype=row_dtype(name, self.header, row_size))
        self._first = 0  # index in `_held` of the first row that is still held
        self._guess = SPARE_ROWS
        self._capacity = 0
        # Not all files at once: folding thousands of them in one tick would show.
        self._stagger = zlib.crc32(self._name.encode()) % SPARE_ROWS

    @property
    def path(self) -> Path:
        """Where it is."""
        return Path(self._name)

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

    def pull(self, most_rows: int, likely: int = 0) -> bool:
        """Read what was published since the last call; hold `most_rows` of the newest, or a few more.

        `likely` is how many rows a file that is new to us may have, because others have as many.
        False when the file has a hole where its next row should be: the rows there were rolled up.
        """
        size = self._held.dtype.itemsize
        most = most_rows + max(2 * SPARE_ROWS, most_rows // 8) + self._stagger
        self._capacity = most + SPARE_ROWS
        fd = os.open(self._name, READ_FLAGS)
        try:
            self.live = bytes_at(fd, LIVE_BYTES, fmt.LIVE_OFFSET)
            end = (os.fstat(fd).st_size - fmt.HEADER_SIZE) // size
            if self._start == self._end:
                self._first_look(fd, self._count(fd, end, likely), most_rows, most)
            else:
                self._look(fd, end, most_rows, most)
            self._shrink()
            return (end - self._end) * size <= HOLE_BYTES
        finally:
            os.close(fd)

    def _first_look(self, fd: int, published: int, most_rows: int, most: int) -> None:
        """A file that is new to us: what is published now was counted first, and is read once."""
        if published - self._end <= min(most, PIECE_ROWS):
            self._take(fd, published - self._end)
            return
        while self._end < published:
            want = min(PIECE_ROWS, published - self._end)
            if self._read(fd, want, are_whole=True) < want:
                return
            if self._end - self._start > most:
                self.drop(self._end - self._start - most_rows)

    def _take(self, fd: int, count: int) -> None:
        """Hold these rows as they come out of the file: nothing is held yet; later rows get new room."""
        size = self._held.dtype.itemsize
        data = bytes_at(fd, count * size, fmt.HEADER_SIZE + self._end * size)
        rows = np.frombuffer(data, self._held.dtype, len(data) // size)
        whole = _published(rows["sequence"], self._end + 1)
        self._held, self._first = rows[:whole], 0
        self._end += whole

    def _look(self, fd: int, end: int, most_rows: int, most: int) -> None:
        """What is new; usually as little as the last time."""
        want, got = min(self._guess, end - self._end), 0
        while want > 0:
            got = self._read(fd, want)
            if self._end - self._start > most:
                self.drop(self._end - self._start - most_rows)
            if got < want:
                break
            want = min(PIECE_ROWS, end - self._end)
        self._guess = min(PIECE_ROWS, max(SPARE_ROWS, 2 * got))

    def _count(self, fd: int, end: int, likely: int) -> int:
        """The index after the last published row: published rows are a prefix, so that halving finds it.

        (Unless old ones have just been rolled up; then the rows that are read are not as expected.)
        """
        low, high = self._end, end
        tries = [likely - NEARLY, likely + NEARLY]
        while low < high:
            at = tries.pop() if tries else (low + high) // 2
            if not low <= at < high:
                continue
            if self._is_published(fd, at):
                low = at + 1
            else:
                high = at
        return low

    def _is_published(self, fd: int, index: int) -> bool:
        place = fmt.HEADER_SIZE + (index + 1) * self._held.dtype.itemsize - SEQUENCE_BYTES
        return int.from_bytes(bytes_at(fd, SEQUENCE_BYTES, place), "little") == index + 1

    def head(self, most_rows: int) -> NDArray[np.void]:
        """The first rows of the file, which are never rolled up: what warm-up is told from."""
        rows = np.zeros(most_rows, dtype=self._held.dtype)
        fd = os.open(self._name, READ_FLAGS)
        try:
            there = _read_at(fd, _bytes(rows), fmt.HEADER_SIZE) // rows.dtype.itemsize
        finally:
            os.close(fd)
        wrong = np.flatnonzero(rows["sequence"][:there] != np.arange(1, there + 1))
        return rows[: int(wrong[0]) if len(wrong) else there]

    def _read(self, fd: int, want: int, are_whole: bool = False) -> int:
        """Copy up to `want` new rows; returns how many were published."""
        size = self._held.dtype.itemsize
        room = self._room(want)
        into = _bytes(room)
        offset = fmt.HEADER_SIZE + self._end * size
        there = _read_at(fd, into, offset) // size
        count = _published(room["sequence"][:there], self._end + 1)
        if count and not are_whole:
            # A row that was published during the first read may be torn in it: read again, now that it is
            # known to be whole; and look again, because old ones may have been rolled up meanwhile.
            _read_at(fd, into[: count * size], offset)
            if _published(room["sequence"][:count], self._end + 1) < count:
                return 0
        self._end += count
        return count

    def _room(self, want: int) -> NDArray[np.void]:
        """Space for `want` rows after those held. Arrays that were given away are never written to."""
        used = self._first + self._end - self._start
        if used + want > len(self._held):
            held = self.rows
            usual = min(self._capacity, len(held) + len(held) // 4 + want)
            self._move(max(usual, len(held) + want))
            used = len(held)
        return self._held[used : used + want]

    def _shrink(self) -> None:
        """Give back the room that a long first read needed: all files' rows take memory at once."""
        if len(self._held) > self._capacity + SPARE_ROWS and len(self.rows) <= self._capacity:
            self._move(self._capacity)

    def _move(self, capacity: int) -> None:
        held, more = self.rows, np.empty(capacity, dtype=self._held.dtype)
        _bytes(more)[: held.nbytes] = _bytes(held)
        self._held, self._first = more, 0

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


def _published(sequence: NDArray[np.int64], first: int) -> int:
    """How many leading rows have the numbers that they must have."""
    if len(sequence) <= FEW_ROWS:  # a loop is faster
        count = 0
        for number in sequence.tolist():
            if number != first + count:
                break
            count += 1
        return count
    right = sequence == _COUNT[: len(sequence)] + first
    return len(sequence) if right.all() else int(right.argmin())


def _bytes(rows: NDArray[np.void]) -> NDArray[np.uint8]:
    """The same memory as plain bytes: copying structured rows column by column is slow."""
    return rows.view(np.uint8)


def _read_at(fd: int, into: NDArray[np.uint8], offset: int) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(fd, [into.data], offset)
    data = bytes_at(fd, len(into), offset)
    into[: len(data)] = np.frombuffer(data, np.uint8)
    return len(data)


def bytes_at(fd: int, size: int, offset: int) -> bytes:
    """Up to so many bytes from this place of a file."""
    if hasattr(os, "pread"):
        return os.pread(fd, size, offset)
    os.lseek(fd, offset, os.SEEK_SET)
    return os.read(fd, size)
