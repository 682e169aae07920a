"""Appends rows through `mmap`. Standard library only: this runs inside the training process.

Blocks are reserved before they are mapped, because writing to an unreserved page of a full disk would
kill the process with SIGBUS. When that fails the writer stops, says so once, and training goes on.
"""

from __future__ import annotations

import json
import mmap
import os
from typing import Any

from traceml.recording import format as fmt

CHUNK_BYTES = 256 * 1024


def reserve(fd: int, offset: int, length: int) -> None:
    """Make sure that these bytes exist on disk; raises OSError when they cannot."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, offset, length)
        return
    os.lseek(fd, offset, os.SEEK_SET)
    os.write(fd, bytes(length))


class RecordingWriter:
    """One file of rows with fixed columns."""

    __slots__ = (
        "_body",
        "_fd",
        "_header",
        "_next_chunk",
        "_sequence_at",
        "count",
        "end",
        "failed",
        "map",
        "offset",
        "path",
        "row_size",
    )

    def __init__(self, path: str, columns: tuple[tuple[str, str], ...], header: dict[str, Any]) -> None:
        self.path = path
        self.count = 0
        self.failed = False
        self._body = fmt.row_struct(columns)
        self.row_size = fmt.padded_row_size(self._body.size)
        self._sequence_at = self.row_size - fmt.SEQUENCE.size
        self._next_chunk = fmt.HEADER_SIZE
        self.offset = self.end = 0
        text = json.dumps({**header, "columns": [list(c) for c in columns]}).encode()
        if len(text) > fmt.LIVE_OFFSET - fmt.PREFIX.size:
            raise ValueError(f"recording header of {len(text)} bytes does not fit")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
        self._fd = os.open(path, flags, 0o644)
        reserve(self._fd, 0, fmt.HEADER_SIZE)
        self._header = mmap.mmap(self._fd, fmt.HEADER_SIZE)
        self.map = self._header
        self._header[fmt.PREFIX.size : fmt.PREFIX.size + len(text)] = text
        # The magic goes last: a header without it was never finished and is not read.
        sizes = (fmt.HEADER_SIZE, self.row_size, len(text), fmt.checksum(self.row_size, text))
        fmt.PREFIX.pack_into(self._header, 0, b"", fmt.VERSION, *sizes)
        self._header[0 : len(fmt.MAGIC)] = fmt.MAGIC
        self.grow()

    @property
    def live(self) -> mmap.mmap:
        """The header's mapping, for the bytes of the live area."""
        return self._header

    def append(self, *values: float) -> None:
        """Publish one row."""
        self.append_packed(self._body.pack(*values))

    def append_packed(self, body: bytes) -> None:
        """Publish one row that is packed already: body first, sequence number last."""
        offset = self.offset
        if offset == self.end:
            if self.failed or not self.grow():
                return
            offset = self.offset
        self.map[offset : offset + len(body)] = body
        self.count += 1
        fmt.SEQUENCE.pack_into(self.map, offset + self._sequence_at, self.count)
        self.offset = offset + self.row_size

    def set_name(self, slot: int, name: str) -> None:
        """Name a user column; shown by readers, cut to what fits."""
        data = name.encode()[: fmt.NAME_BYTES - 1].decode(errors="ignore").encode()
        start = fmt.LIVE_NAMES + slot * fmt.NAME_BYTES
        self._header[start : start + fmt.NAME_BYTES] = data.ljust(fmt.NAME_BYTES, b"\0")

    def set_state(self, state: int) -> None:
        """Say how the writer ended."""
        self._header[fmt.LIVE_STATE] = state

    def close(self, state: int = fmt.STATE_CLOSED) -> None:
        """Mark the end. The mappings go with the process: others may still hold views."""
        if not self.failed:
            self.set_state(state)

    def grow(self) -> bool:
        """Reserve and map the next chunk; False (once, with the state set) when the disk is full."""
        try:
            reserve(self._fd, self._next_chunk, CHUNK_BYTES)
            chunk = mmap.mmap(self._fd, CHUNK_BYTES, offset=self._next_chunk)
        except OSError:
            self.failed = True
            self.set_state(fmt.STATE_LOST)
            raise
        self.map = chunk
        self.offset, self.end = 0, CHUNK_BYTES
        self._next_chunk += CHUNK_BYTES
        return True
