"""Reads recordings as NumPy views: no parsing, no copy, any kill point leaves a readable prefix."""

from __future__ import annotations

import json
import mmap
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from traceml.errors import TraceMLError
from traceml.recording import format as fmt

_COLUMNS_MARK = b', "columns": '
_NUMPY_CODES = {"q": "<i8", "d": "<f8", "I": "<u4"}


class UnreadableRecording(TraceMLError):
    """Not a recording, of a newer format, or never finished its header."""


class RecordingReader:
    """One recording file; `rows()` gives everything published so far.

    The first `rolled_up` rows may be gone from the file (collect/rollup.py): they are neither read nor given.
    """

    def __init__(self, path: Path, rolled_up: int = 0) -> None:
        self.path = path
        self._first = self._known = rolled_up
        with path.open("rb") as file:
            self.header, self.row_size = parse_header(path, file.read(fmt.HEADER_SIZE))
        self.dtype = row_dtype(path, self.header, self.row_size)

    @property
    def count(self) -> int:
        """Rows published up to the last look, rolled-up ones included."""
        return self._known

    def rows(self) -> NDArray[np.void]:
        """The published rows, as a structured array over the mapped file."""
        size = os.path.getsize(self.path)
        capacity = (size - fmt.HEADER_SIZE) // self.row_size
        if capacity <= self._first:
            return np.zeros(0, dtype=self.dtype)
        with self.path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        every = np.frombuffer(mapped, self.dtype, count=capacity, offset=fmt.HEADER_SIZE)
        # Published rows are a prefix: look only at what came since the last call.
        sequence = every["sequence"][self._known :]
        expected = np.arange(self._known + 1, capacity + 1)
        missing = np.flatnonzero(sequence != expected)
        self._known = self._known + int(missing[0]) if len(missing) else capacity
        return every[self._first : self._known]

    def live(self) -> tuple[int, int]:
        """(current phase, writer's state) as the process last wrote them."""
        with self.path.open("rb") as file:
            file.seek(fmt.LIVE_PHASE)
            data = file.read(2)
        return (data[0], data[1]) if len(data) == 2 else (0, 0)

    def failed_in(self) -> int | None:
        """The phase that an exception left in the step after the last row: its slot."""
        with self.path.open("rb") as file:
            file.seek(fmt.LIVE_FAILED)
            data = file.read(fmt.FAILURE.size)
        step, slot = fmt.FAILURE.unpack(data) if len(data) == fmt.FAILURE.size else (0, 0)
        rows = self.rows()
        done = int(rows["step"][-1]) if len(rows) else 0
        return int(slot) if step == done + 1 else None

    def user_names(self, slots: int) -> list[str | None]:
        """Names of the user columns, None where unused."""
        with self.path.open("rb") as file:
            file.seek(fmt.LIVE_NAMES)
            return names_of(file.read(slots * fmt.NAME_BYTES), slots)


def names_of(data: bytes, slots: int) -> list[str | None]:
    """User names from the bytes of the live area that hold them."""
    cut = [data[i * fmt.NAME_BYTES : (i + 1) * fmt.NAME_BYTES] for i in range(slots)]
    return [c.split(b"\0")[0].decode(errors="replace") or None for c in cut]


def parse_header(path: str | Path, head: bytes) -> tuple[dict[str, Any], int]:
    """(what the header says, bytes a row) from the first `HEADER_SIZE` bytes; `path` is for errors only."""
    if len(head) < fmt.HEADER_SIZE:
        raise UnreadableRecording(f"{path}: too short to be a recording")
    magic, version, header_size, row_size, length, check = fmt.PREFIX.unpack_from(head)
    if magic != fmt.MAGIC:
        raise UnreadableRecording(f"{path}: not a TraceML recording")
    if version != fmt.VERSION or header_size != fmt.HEADER_SIZE:
        raise UnreadableRecording(f"{path}: format version {version}, this TraceML reads {fmt.VERSION}")
    if not 16 <= row_size <= 4096 or length > fmt.LIVE_OFFSET - fmt.PREFIX.size:
        raise UnreadableRecording(f"{path}: damaged header")
    text = head[fmt.PREFIX.size : fmt.PREFIX.size + length]
    if check != fmt.checksum(row_size, text):
        raise UnreadableRecording(f"{path}: damaged header")
    try:
        header = _load(text)
    except ValueError as problem:
        raise UnreadableRecording(f"{path}: damaged header") from problem
    if not isinstance(header, dict):
        raise UnreadableRecording(f"{path}: damaged header")
    return header, row_size


def _load(text: bytes) -> Any:
    """The header's JSON. The columns come last and are the same in thousands of files: parsed once."""
    before, mark, columns = text.rpartition(_COLUMNS_MARK)
    if mark and columns.endswith(b"}"):
        try:
            return {**msgspec.json.decode(before + b"}"), "columns": _load_columns(columns[:-1])}
        except (msgspec.MsgspecError, ValueError, TypeError):
            pass  # not as our writer makes it
    return json.loads(text)


@lru_cache(maxsize=64)
def _load_columns(text: bytes) -> tuple[tuple[Any, ...], ...]:
    return tuple([tuple(pair) for pair in json.loads(text)])


def row_dtype(path: str | Path, header: dict[str, Any], row_size: int) -> np.dtype[np.void]:
    """How a row of this recording lies in memory; `path` is for the error only."""
    try:
        columns = header["columns"]
        shared = columns if isinstance(columns, tuple) else tuple([tuple(pair) for pair in columns])
        return _dtype(shared, row_size)
    except (KeyError, TypeError, ValueError) as problem:
        raise UnreadableRecording(f"{path}: damaged column list") from problem


@lru_cache(maxsize=64)
def _dtype(columns: tuple[tuple[Any, ...], ...], row_size: int) -> np.dtype[np.void]:
    """Shared by all files of a kind: thousands of ranks have the same columns."""
    names, formats, offsets, at = [], [], [], 0
    for name, code in columns:
        kind = np.dtype(_NUMPY_CODES[code])
        names.append(name)
        formats.append(kind)
        offsets.append(at)
        at += kind.itemsize
    names.append("sequence")
    formats.append(np.dtype("<i8"))
    offsets.append(row_size - 8)
    if at > row_size - 8 or len(set(names)) != len(names):
        raise ValueError("columns do not fit")
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": row_size})
