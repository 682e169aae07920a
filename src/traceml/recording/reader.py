"""Reads a recording by copying published rows out of it; any kill point leaves a readable prefix.

Rows are never mapped: the monitor may free the space of old rows at any moment (rollup.py), and thousands of
files would need thousands of mappings.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from traceml.errors import TraceMLError, printable
from traceml.files import open_regular
from traceml.recording import layout

NEARLY: Final = 2
"""Ranks that are in step rarely differ by more rows than this."""
MOST_ROW_BYTES: Final = 4096
"""A header that claims larger rows is damaged or hostile."""
_NUMPY_CODES: Final = {"q": "<i8", "d": "<f8", "I": "<u4"}

Rows = NDArray[np.void]


class UnreadableRecording(TraceMLError):
    """Not a recording, of another format version, or its header was never finished."""


class Live(NamedTuple):
    """What a process reports about itself between two rows."""

    phase: int = 0
    state: int = layout.STATE_RUNNING
    failed_step: int = 0
    failed_in: int = 0  # the slot of the phase that an exception left in that step
    own_ns: int = 0  # what recording cost in the steps that were sampled for it
    own_steps: int = 0
    own_passes: int = 0  # and how many calls of theirs were wrapped but not timed
    other_steps: int = 0  # optimizer steps on threads that are not recorded
    own_switches: int = 0  # timed calls of the sampled steps

    @classmethod
    def parse(cls, data: bytes) -> "Live":
        if len(data) < layout.LIVE_BYTES:
            return cls()
        return cls(*layout.LIVE.unpack_from(data))


class RecordingReader:
    """One recording file. Its first `rolled_up` rows may be gone: they are neither read nor returned."""

    def __init__(self, path: str | Path, rolled_up: int = 0) -> None:
        self._name = str(path)  # a string, because `Path` objects are slow for thousands of files
        self.count = rolled_up
        """Rows published up to the last look, rolled-up ones included."""
        self._rolled_up = rolled_up
        with self._opened() as fd:
            head = bytes_at(fd, layout.HEADER_SIZE, 0)
        self.header, self.dtype = parse_header(path, head)
        self.live_bytes = head[layout.LIVE_OFFSET : layout.LIVE_OFFSET + layout.LIVE_BYTES]
        self.row_size = self.dtype.itemsize

    @property
    def path(self) -> Path:
        return Path(self._name)

    def look(self) -> int:
        """How many rows are published by now."""
        with self._opened() as fd:
            self.count = self._published(fd, self._room_for(os.fstat(fd).st_size), self.count)
        return self.count

    def rows(self, begin: int | None = None, most: int | None = None) -> Rows:
        """The published rows from this one on, at most `most` of them."""
        first = self._rolled_up if begin is None else begin
        with self._opened() as fd:
            self.count = self._published(fd, self._room_for(os.fstat(fd).st_size), self.count)
            wanted = max(self.count - first, 0)
            return self._copied(fd, first, wanted if most is None else min(wanted, most))

    @contextmanager
    def _opened(self) -> Iterator[int]:
        fd = open_regular(self._name)
        try:
            yield fd
        finally:
            os.close(fd)

    def _room_for(self, size: int) -> int:
        """How many rows a file of this size has room for; the last of them may not be published yet."""
        return (size - layout.HEADER_SIZE) // self.row_size

    def _published(self, fd: int, high: int, likely: int) -> int:
        """How many rows are published, at most `high`; found by bisection around `likely`.

        Published rows are a prefix, unless old ones have just been rolled up; then the rows that are read do
        not have the expected numbers. Rows that are counted first and read afterwards are never torn.
        """
        low = self.count
        tries = [likely + NEARLY, likely - NEARLY, likely, likely - 1]  # from the last to the first
        while low < high:
            at = tries.pop() if tries else (low + high) // 2
            if not low <= at < high:
                continue
            if is_published(fd, at, self.row_size):
                low = at + 1
            else:
                high = at
        return low

    def _copied(self, fd: int, first: int, count: int) -> Rows:
        """These rows, up to the first that is missing or has another number than expected."""
        data = bytes_at(fd, count * self.row_size, layout.HEADER_SIZE + first * self.row_size)
        rows: Rows = np.frombuffer(data, self.dtype, len(data) // self.row_size)
        return rows[: leading(rows["sequence"], first + 1)]


def is_published(fd: int, index: int, row_size: int) -> bool:
    """Whether the row at this index has its sequence number."""
    size = layout.SEQUENCE.size
    place = layout.HEADER_SIZE + (index + 1) * row_size - size
    return bytes_at(fd, size, place) == layout.SEQUENCE.pack(index + 1)


def leading(sequence: NDArray[np.int64], first: int) -> int:
    """How many leading rows are numbered `first`, `first` + 1, ..."""
    if len(sequence) <= 64:  # a loop is faster
        count = 0
        for number in sequence.tolist():
            if number != first + count:
                break
            count += 1
        return count
    right = sequence == np.arange(first, first + len(sequence))
    return len(sequence) if right.all() else int(right.argmin())


def bytes_at(fd: int, size: int, offset: int) -> bytes:
    """Up to `size` bytes from this place of a file."""
    if hasattr(os, "pread"):
        return os.pread(fd, size, offset)
    os.lseek(fd, offset, os.SEEK_SET)
    return os.read(fd, size)


@lru_cache(maxsize=256)
def names_of(data: bytes, slots: int) -> list[str | None]:
    """User names from the bytes of the live area that hold them; the same list for the same bytes."""
    cut = [data[i * layout.NAME_BYTES : (i + 1) * layout.NAME_BYTES] for i in range(slots)]
    return [printable(c.split(b"\0")[0].decode(errors="replace")) or None for c in cut]


def parse_header(path: str | Path, head: bytes) -> tuple[dict[str, Any], np.dtype[np.void]]:
    """(the header's JSON, the dtype of a row) from the first 8 KiB of a file; `path` is for errors only."""
    if len(head) < layout.HEADER_SIZE:
        raise UnreadableRecording(f"{path}: too short to be a recording")
    magic, version, header_size, row_size, length, check = layout.PREFIX.unpack_from(head)
    if magic != layout.MAGIC:
        raise UnreadableRecording(f"{path}: not a TraceML recording")
    if version != layout.VERSION or header_size != layout.HEADER_SIZE:
        raise UnreadableRecording(f"{path}: format version {version}, this TraceML reads {layout.VERSION}")
    text = head[layout.PREFIX.size : min(layout.PREFIX.size + length, layout.LIVE_OFFSET)]
    if check != layout.checksum(row_size, text):
        raise UnreadableRecording(f"{path}: damaged header")
    try:
        header = _load(text)
        return header, row_dtype(header["columns"], row_size)
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError, RecursionError) as problem:
        raise UnreadableRecording(f"{path}: damaged header") from problem


def _load(text: bytes) -> dict[str, Any]:
    """The header's JSON. Its columns are the same in thousands of files: parsed once."""
    try:
        raw = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        header: dict[str, Any] = json_value(text)
        return {**header, "columns": _load_columns(msgspec.json.encode(header["columns"]))}
    columns = _load_columns(bytes(raw.pop("columns")))
    return {**{key: msgspec.json.decode(value) for key, value in raw.items()}, "columns": columns}


def json_value(text: bytes) -> Any:
    """Python, unlike msgspec, reads and writes halves of characters, as in file names that are not UTF-8."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return json.loads(text)


@lru_cache(maxsize=64)
def _load_columns(text: bytes) -> layout.Columns:
    return msgspec.json.decode(text, type=layout.Columns)


@lru_cache(maxsize=64)
def row_dtype(columns: layout.Columns, row_size: int) -> np.dtype[np.void]:
    """How a row lies in memory; one object for all files of a kind."""
    formats = [np.dtype(_NUMPY_CODES[code]) for _, code in columns]
    names = [*(name for name, _ in columns), "sequence"]
    offsets = [sum(kind.itemsize for kind in formats[:at]) for at in range(len(formats) + 1)]
    last = row_size - layout.SEQUENCE.size
    fits = offsets[-1] <= last < MOST_ROW_BYTES and row_size % layout.SEQUENCE.size == 0
    if not fits or len(set(names)) != len(names):
        raise ValueError("columns do not fit")
    offsets[-1] = last
    formats.append(np.dtype("<i8"))
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": row_size})
