"""Reads a recording by copying published rows out of it; any kill point leaves a readable prefix.

Rows are never mapped: the monitor may free the space of old rows at any moment (rollup.py), and thousands of
files would need thousands of mappings. No file is trusted: it may be damaged, or come from a node that lies.
"""

import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from traceml.errors import TraceMLError, printable
from traceml.files import open_regular, open_sized, sound
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
        return cls(*layout.LIVE.unpack_from(data)) if len(data) >= layout.LIVE_BYTES else cls()


class RecordingReader:
    """One recording file. Its first `rolled_up` rows may be gone: they are neither read nor returned."""

    def __init__(self, path: str | Path, rolled_up: int = 0) -> None:
        self.path = os.fspath(path)  # a string, because `Path` objects are slow for thousands of files
        self.count = self._rolled_up = rolled_up
        """Rows published up to the last look, rolled-up ones included."""
        head = read_at(self.path, layout.HEADER_SIZE, 0)
        self.header, self.dtype = parse_header(path, head)
        self.live_bytes = head[layout.LIVE_OFFSET : layout.LIVE_OFFSET + layout.LIVE_BYTES]
        self.row_size = self.dtype.itemsize

    def look(self) -> int:
        """How many rows are published by now."""
        fd, size = open_sized(self.path)
        try:
            self.count = self._published(fd, self._room_for(size), self.count)
        finally:
            os.close(fd)
        return self.count

    def rows(self) -> Rows:
        """All published rows that are not rolled up."""
        return self.copied(self._rolled_up, max(self.look() - self._rolled_up, 0))

    def copied(self, first: int, count: int) -> Rows:
        """These rows, up to the first that is missing or has another number than expected."""
        data = read_at(self.path, count * self.row_size, layout.HEADER_SIZE + first * self.row_size)
        rows: Rows = np.frombuffer(data, self.dtype, len(data) // self.row_size)
        return rows[: leading(rows["sequence"], first + 1)]

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
            place = layout.HEADER_SIZE + (at + 1) * self.row_size - layout.SEQUENCE.size
            if bytes_at(fd, layout.SEQUENCE.size, place) == layout.SEQUENCE.pack(at + 1):
                low = at + 1
            else:
                high = at
        return low


def leading(sequence: NDArray[np.int64], first: int) -> int:
    """How many leading rows are numbered `first`, `first` + 1, ..."""
    if len(sequence) <= 64:  # a loop is faster
        numbers = enumerate(sequence.tolist())
        return next((i for i, number in numbers if number != first + i), len(sequence))
    right = sequence == np.arange(first, first + len(sequence))
    return len(sequence) if right.all() else int(right.argmin())


def bytes_at(fd: int, size: int, offset: int) -> bytes:
    """Up to `size` bytes from this place of a file."""
    if hasattr(os, "pread"):
        return os.pread(fd, size, offset)
    os.lseek(fd, offset, os.SEEK_SET)
    return os.read(fd, size)


def read_at(path: str | Path, size: int, offset: int) -> bytes:
    """The same of a file that is not open."""
    fd = open_regular(path)
    try:
        return bytes_at(fd, size, offset)
    finally:
        os.close(fd)


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
        header = json_value(text)
        header["columns"] = msgspec.convert(header["columns"], layout.Columns)
        return header, row_dtype(header["columns"], row_size)
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError, RecursionError) as problem:
        raise UnreadableRecording(f"{path}: damaged header") from problem


def json_value(text: bytes) -> Any:
    """Python, unlike msgspec, reads and writes halves of characters, as in file names that are not UTF-8."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return json.loads(text)


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


_Number = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
_Cost = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


class _Identity(msgspec.Struct):
    """Numbers that are missing or senseless are dealt with by `identity_of`."""

    rank: _Number = 0
    pid: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] = 0


class _Process(msgspec.Struct):
    clock_ns: _Number = 0
    wall_ns: _Number = 0
    thread: _Number | None = None
    threads: _Number | None = None
    python: str | None = None
    torch: str | None = None
    packages: dict[str, str] | None = None


class _Device(msgspec.Struct):
    type: str | None = None
    name: str | None = None
    capacity_bytes: _Number | None = None


class _Overhead(msgspec.Struct):
    switch_ns: _Cost = 0.0
    row_ns: _Cost = 0.0
    pass_ns: _Cost = 0.0
    step_ns: _Cost = 0.0
    in_c: bool | None = None


class _Header(msgspec.Struct):
    """The types that the analysis relies on; more may be there."""

    identity: _Identity
    process: _Process = msgspec.field(default_factory=_Process)
    device: _Device = msgspec.field(default_factory=_Device)
    overhead: _Overhead = msgspec.field(default_factory=_Overhead)
    missing: list[str] | None = None


def checked(header: dict[str, Any], path: object) -> dict[str, Any]:
    """A rank's header, if everything in it has the type that it must have; its texts are printable."""
    try:
        found = {key: value if key == "columns" else sound(value) for key, value in header.items()}
        msgspec.convert(found, _Header)
    except (msgspec.ValidationError, UnicodeError, RecursionError):
        raise UnreadableRecording(f"{path}: its header does not make sense") from None
    return found
