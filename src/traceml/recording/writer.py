"""Appends rows through `mmap`. Standard library only: this runs inside the training process.

Disk space is reserved before it is mapped, because writing to an unreserved page of a full disk would kill
the process with SIGBUS. If space cannot be reserved, the writer stops and training goes on.
"""

import mmap
import os
import sys
from typing import Any, Final

from traceml.recording import layout

CHUNK_BYTES = 256 * 1024
"""A writer reserves this much at a time, rounded down to whole rows."""
FIRST_CHUNK_BYTES = 16 * 1024
"""The first time only this much: many short processes must not fill the disk."""


def reserve(fd: int, offset: int, length: int) -> None:
    """Make sure that these bytes exist on disk; raises OSError if they cannot."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, offset, length)
        return
    os.lseek(fd, offset, os.SEEK_SET)
    os.write(fd, bytes(length))


def open_apart(path: str, flags: int) -> list[int]:
    """Open a file; the last descriptor is the one to use, and all are to be closed.

    The others keep 0 to 2 taken meanwhile, if the script has closed some of them: what it still writes there
    must never reach a file of ours. The user's umask applies.
    """
    opened = [os.open(path, flags | getattr(os, "O_CLOEXEC", 0), 0o666)]
    while opened[-1] <= 2:
        opened.append(os.dup(opened[-1]))
    return opened


def write_all(fd: int, data: bytes | bytearray, offset: int) -> None:
    """All of it at this place, or OSError."""
    view = memoryview(data)
    while view:
        done = os.pwrite(fd, view, offset)
        view, offset = view[done:], offset + done


def mark_replaced(path: str) -> None:
    """The process that wrote this recording replaced itself. A state that it gave itself stays."""
    fd = os.open(path, os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
    try:
        if os.pread(fd, 1, layout.LIVE_STATE) == bytes([layout.STATE_RUNNING]):
            write_all(fd, bytes([layout.STATE_REPLACED]), layout.LIVE_STATE)
    finally:
        os.close(fd)


_NO_DESCRIPTOR: Final[dict[str, Any]] = {"trackfd": False} if sys.version_info >= (3, 13) else {}


class RecordingWriter:
    """One file of rows with fixed columns."""

    def __init__(self, path: str, columns: layout.Columns, header: dict[str, Any]) -> None:
        self.path = path
        self.count = 0
        self.failed = False
        self._body = layout.row_struct(columns)
        self.row_size = layout.padded_row_size(self._body.size)
        self._next_chunk = layout.HEADER_SIZE
        self.offset = self.end = 0
        head = layout.header_bytes(columns, header)
        # The header stays mapped for the bytes of the live area.
        self.live = self._reserved(0, 0, layout.HEADER_SIZE, os.O_CREAT | os.O_EXCL)
        # The magic goes last: a header without it was never finished and is not read.
        size = len(layout.MAGIC)
        self.live[size:] = head[size:]
        self.live[:size] = head[:size]
        self.grow()

    def _reserved(self, page: int, begin: int, end: int, flags: int = 0) -> mmap.mmap:
        """Reserve `begin` to `end` of the file, map it from `page` on.

        No descriptor is kept: the script may close it, and its number may then be a file of the script's.
        (Before Python 3.13 a mapping keeps one of its own, which is closed together with the mapping.)
        """
        opened = open_apart(self.path, os.O_RDWR | flags)
        try:
            reserve(opened[-1], begin, end - begin)
            return mmap.mmap(opened[-1], end - page, offset=page, **_NO_DESCRIPTOR)
        finally:
            for fd in opened:
                os.close(fd)

    def append(self, *values: float) -> None:
        self.append_packed(self._body.pack(*values))

    def append_packed(self, body: bytes) -> None:
        """Publish one row that is packed already: body first, sequence number last."""
        if self.offset == self.end:
            if self.failed:
                return
            self.grow()
        offset = self.offset
        self.map[offset : offset + len(body)] = body
        self.count += 1
        self.offset = offset + self.row_size
        layout.SEQUENCE.pack_into(self.map, self.offset - layout.SEQUENCE.size, self.count)

    def set_name(self, slot: int, name: str) -> None:
        """Name a user column; shown by readers, cut to what fits."""
        data = name.encode(errors="replace")[: layout.NAME_BYTES - 1].decode(errors="ignore").encode()
        start = layout.LIVE_NAMES + slot * layout.NAME_BYTES
        self.live[start : start + layout.NAME_BYTES] = data.ljust(layout.NAME_BYTES, b"\0")

    def close(self, state: int = layout.STATE_CLOSED) -> None:
        """Mark the end. The mappings go with the process: others may still hold views."""
        if not self.failed:
            self.live[layout.LIVE_STATE] = state

    def grow(self) -> None:
        """Reserve and map the next chunk; raises OSError and marks the rest as lost when the disk is full."""
        begin = self._next_chunk
        size = CHUNK_BYTES if begin > layout.HEADER_SIZE else FIRST_CHUNK_BYTES
        end = begin + size // self.row_size * self.row_size
        # A mapping starts at a page. A chunk that starts within one shares that page with the chunk before.
        page = begin - begin % mmap.ALLOCATIONGRANULARITY
        try:
            self.map = self._reserved(page, begin, end)
        except OSError:
            self.failed = True
            self.live[layout.LIVE_STATE] = layout.STATE_LOST
            raise
        self.offset, self.end = begin - page, end - page
        self._next_chunk = end
