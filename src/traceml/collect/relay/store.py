"""What one other node's relay may do to node 0's disk.

A reader on node 0 sees a prefix of complete rows at every moment, as from a local writer: bodies
are written with empty sequence numbers first, then again with them. How far a file is, is always
taken from the file: after a restart nothing has to be remembered. Used by the relay's receiving
end and by the merge.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from traceml.collect.relay.names import Kind, TravelName, landed_pattern, parse_name
from traceml.collect.relay.protocol import Limits
from traceml.collect.rollup import rolled_up_rows
from traceml.collect.rundir import write_atomic
from traceml.errors import TraceMLError
from traceml.recording import format as fmt
from traceml.recording.reader import RecordingReader, UnreadableRecording
from traceml.recording.writer import CHUNK_BYTES, reserve

TEMPORARY: Final = ".relay-"
_CHECK_BYTES: Final = 4096
_MOST_MARKS: Final = 64


class Refusal(TraceMLError):
    """This will never be taken."""


class DiskTight(TraceMLError):
    """This may be taken later, when there is room again."""


class NotOpened(TraceMLError):
    """Bytes for a file that was never asked for: the sender thinks of a node 0 before a restart."""


@dataclass(slots=True)
class _Landed:
    """One file on node 0: how far it is, and the size of its rows (1 for lines)."""

    path: Path
    unit_bytes: int
    offset: int
    size_bytes: int


class NodeStore:
    """The files of one other node in node 0's recording folder."""

    def __init__(self, folder: Path, node_rank: int, limits: Limits) -> None:
        self._folder = folder
        self._node_rank = node_rank
        self._limits = limits
        self._landed: dict[str, _Landed] = {}
        self._names = {p.name for p in self._present()}
        self._used_bytes = self._on_disk()
        self._marks = 0

    def _present(self) -> list[Path]:
        return [p for p in self._folder.glob(landed_pattern(self._node_rank)) if p.is_file()]

    def _on_disk(self) -> int:
        return sum(_disk_bytes(p.stat()) for p in self._present())

    def open(self, name: str, head: bytes) -> tuple[int, bytes]:
        """(rows or bytes that are here, digest of the last of them); makes the file if need be."""
        travel = _known(name)
        if travel.kind is Kind.WHOLE:
            raise Refusal(f"{name} travels as a whole")
        path = self._folder / travel.on_node0(self._node_rank)
        if travel.kind is Kind.LINES:
            landed = self._open_lines(path)
        else:
            landed = self._open_rows(path, travel, head, self._landed.get(name))
        self._landed[name] = landed
        return landed.offset, check_before(path, landed.unit_bytes, landed.offset)

    def append(self, name: str, offset: int, data: bytes) -> int:
        """Take the bytes if they start where the file ends; returns where it ends now."""
        landed = self._opened(name)
        if offset != landed.offset or not data:
            return landed.offset
        if landed.unit_bytes > 1:
            self._append_rows(landed, data)
        else:
            self._append_lines(landed, data)
        return landed.offset

    def set_live(self, name: str, data: bytes) -> int:
        """Replace the live half of a recording's header."""
        landed = self._opened(name)
        if landed.unit_bytes == 1 or len(data) > fmt.HEADER_SIZE - fmt.LIVE_OFFSET:
            raise Refusal(f"{name} has no such live area")
        fd = os.open(landed.path, os.O_WRONLY)
        try:
            _write_at(fd, data.ljust(fmt.HEADER_SIZE - fmt.LIVE_OFFSET, b"\0"), fmt.LIVE_OFFSET)
        finally:
            os.close(fd)
        return landed.offset

    def put_whole(self, name: str, data: bytes) -> int:
        """Replace a small file; a mark stays empty."""
        travel = _known(name)
        if travel.kind is not Kind.WHOLE:
            raise Refusal(f"{name} does not travel as a whole")
        path = self._folder / travel.on_node0(self._node_rank)
        if travel.name.startswith("seen-"):
            if data or (not path.exists() and self._marks >= _MOST_MARKS):
                raise Refusal(f"{name}: a mark is empty, and there are at most {_MOST_MARKS}")
            self._marks += 0 if path.exists() else 1
            path.touch()
            return 0
        self._account(path, len(data))
        write_atomic(path, data)
        return len(data)

    def _open_lines(self, path: Path) -> _Landed:
        if not path.exists():
            self._account(path, 0)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644))
        size = path.stat().st_size
        return _Landed(path, 1, size, size)

    def _open_rows(self, path: Path, travel: TravelName, head: bytes, known: _Landed | None) -> _Landed:
        if not path.exists():
            known = None
            self._account(path, fmt.HEADER_SIZE + CHUNK_BYTES)
            self._create_rows(path, travel, head)
        with path.open("rb") as file:
            if file.read(fmt.LIVE_OFFSET) != head:
                raise Refusal(f"{travel.name}: node 0 has another recording of this name")
        if known is not None:
            return known  # nobody else writes it: no need to count the rows again
        try:
            reader = RecordingReader(path, rolled_up_rows(path))
        except UnreadableRecording as problem:
            raise Refusal(f"{travel.name}: damaged on node 0") from problem
        reader.rows()
        return _Landed(path, reader.row_size, reader.count, path.stat().st_size)

    def _create_rows(self, path: Path, travel: TravelName, head: bytes) -> None:
        """Under another name first: a recording appears with a sound header or not at all."""
        if len(head) != fmt.LIVE_OFFSET:
            raise Refusal(f"{travel.name}: a header has {fmt.LIVE_OFFSET} bytes")
        fd, temporary = tempfile.mkstemp(dir=self._folder, prefix=TEMPORARY)
        try:
            try:
                reserve(fd, 0, fmt.HEADER_SIZE + CHUNK_BYTES)
                _write_at(fd, head, 0)
                os.fchmod(fd, 0o644)
            finally:
                os.close(fd)
            try:
                identity = RecordingReader(Path(temporary)).header.get("identity")
            except UnreadableRecording as problem:
                raise Refusal(f"{travel.name}: no sound header") from problem
            rank = identity.get("rank") if isinstance(identity, dict) else None
            if travel.rank is not None and rank not in (None, travel.rank):
                raise Refusal(f"{travel.name}: its header says rank {rank!r:.20}")
            os.rename(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise

    def _append_rows(self, landed: _Landed, data: bytes) -> None:
        unit = landed.unit_bytes
        count, rest = divmod(len(data), unit)
        if rest:
            raise Refusal(f"{landed.path.name}: {len(data)} bytes are no whole rows of {unit}")
        blank = bytearray(data)
        sequence = np.frombuffer(blank, np.uint8).reshape(-1, unit)[:, unit - fmt.SEQUENCE.size :]
        expected = np.arange(landed.offset + 1, landed.offset + count + 1, dtype="<i8")
        if sequence.tobytes() != expected.tobytes():
            raise Refusal(f"{landed.path.name}: rows out of range")
        sequence[:] = 0
        start = fmt.HEADER_SIZE + landed.offset * unit
        grow = max(0, start + len(data) - landed.size_bytes)
        grow = -(-grow // CHUNK_BYTES) * CHUNK_BYTES
        self._account(landed.path, grow)
        fd = os.open(landed.path, os.O_WRONLY)
        try:
            if grow:
                reserve(fd, landed.size_bytes, grow)
                landed.size_bytes += grow
            _write_at(fd, blank, start)
            _write_at(fd, data, start)
        finally:
            os.close(fd)
        landed.offset += count

    def _append_lines(self, landed: _Landed, data: bytes) -> None:
        if landed.offset + len(data) > self._limits.lines_bytes:
            raise Refusal(f"{landed.path.name}: more than {self._limits.lines_bytes} bytes of events")
        self._account(landed.path, len(data))
        fd = os.open(landed.path, os.O_WRONLY)
        try:
            _write_at(fd, data, landed.offset)
        finally:
            landed.offset = landed.size_bytes = os.fstat(fd).st_size  # of a torn write, too
            os.close(fd)

    def _opened(self, name: str) -> _Landed:
        landed = self._landed.get(name)
        if landed is None:
            raise NotOpened(name)
        return landed

    def _account(self, path: Path, more_bytes: int) -> None:
        """Before the disk is touched: is there room for this, for this node?"""
        if path.name not in self._names:
            if len(self._names) >= self._limits.files:
                raise Refusal(f"node {self._node_rank} has {self._limits.files} files already")
            self._names.add(path.name)
        if self._used_bytes + more_bytes > self._limits.node_bytes:
            self._used_bytes = self._on_disk()  # what was rolled up meanwhile takes no space
        if self._used_bytes + more_bytes > self._limits.node_bytes:
            raise Refusal(f"node {self._node_rank} has used its {self._limits.node_bytes} bytes")
        if more_bytes and hasattr(os, "statvfs"):
            disk = os.statvfs(self._folder)
            if disk.f_bavail * disk.f_frsize < more_bytes + self._limits.keep_free_bytes:
                raise DiskTight("node 0's disk is nearly full")
        self._used_bytes += more_bytes


def check_before(path: Path, unit_bytes: int, offset: int) -> bytes:
    """A digest of the last row (or last bytes of lines) before `offset`; both ends compute it."""
    length = unit_bytes if unit_bytes > 1 else _CHECK_BYTES
    end = (fmt.HEADER_SIZE if unit_bytes > 1 else 0) + offset * unit_bytes
    start = max(0, end - length) if offset else end
    with path.open("rb") as file:
        file.seek(start)
        return hashlib.blake2b(file.read(end - start), digest_size=16).digest()


def _disk_bytes(found: os.stat_result) -> int:
    """The space that a file takes, holes not counted; its length where the system does not say."""
    blocks = getattr(found, "st_blocks", None)
    return found.st_size if blocks is None else blocks * 512


def remove_leftovers(folder: Path) -> None:
    """Temporary files of a node 0 that was killed in the middle of making a recording."""
    for path in folder.glob(TEMPORARY + "*"):
        path.unlink(missing_ok=True)


def _known(name: str) -> TravelName:
    travel = parse_name(name)
    if travel is None:
        raise Refusal(f"{name[:40]!r} is no file that travels")
    return travel


def _write_at(fd: int, data: bytes | bytearray, offset: int) -> None:
    """All of it, or OSError."""
    view = memoryview(data)
    while view:
        done = os.pwrite(fd, view, offset)
        view, offset = view[done:], offset + done
