"""What one other node may do to node 0's disk.

A reader on node 0 always sees a prefix of complete rows, as from a local writer. How far a file is, is always
taken from the file: there is nothing to remember over a restart. Used by the relay and by the merge.
"""

import errno
import hashlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from traceml.errors import TraceMLError
from traceml.files import open_regular
from traceml.monitor.relay.names import Landing, landing
from traceml.monitor.relay.protocol import Answer, Limits, Piece, Question, State, Status
from traceml.recording import layout
from traceml.recording.reader import RecordingReader, UnreadableRecording
from traceml.recording.rollup import rolled_up_rows
from traceml.recording.writer import write_all, write_rows

_DIGEST_BYTES: Final = 4096


class Refusal(TraceMLError):
    """This will never be taken."""


@dataclass(slots=True)
class _Landed:
    """One file on node 0: how far it is, and the size of its rows (1 for lines)."""

    path: Path
    unit_bytes: int
    offset: int
    most_bytes: int


class NodeStore:
    """The files of one other node in node 0's recording folder, and what is known about that node."""

    def __init__(self, folder: Path, node_rank: int | None, limits: Limits) -> None:
        self.received_bytes = 0
        self.heard_at_s = 0.0
        self.complete: bool | None = None
        """Whether node 0 has everything; None until the node has ended."""
        self._newest = 0
        self._folder = folder
        self._node_rank = node_rank
        self._limits = limits
        self._landed: dict[str, _Landed] = {}
        self._unfinished = folder / f".relay-{node_rank}"
        self._unfinished.unlink(missing_ok=True)  # of a node 0 that was killed
        self._names = {path.name for path in self._present()}
        self._used_bytes = self._on_disk()

    def answer(self, question: Question) -> Answer:
        """Do what is asked as far as that is allowed. The caller has checked who asks."""
        self.heard_at_s = time.monotonic()
        if question.number < self._newest:
            return Answer(question.number, self._newest, [])
        self._newest, self.complete = question.number, question.complete
        return Answer(question.number, self._newest, [self.take(piece) for piece in question.pieces])

    def take(self, piece: Piece) -> State:
        """Say how far the file is, after taking what may be taken."""
        try:
            if piece.offset is None:
                return State(Status.OK, *self.open(piece.name, piece.head))
            if piece.name not in self._landed:
                return State(Status.UNKNOWN)
            return State(Status.OK, self.append(piece.name, piece.offset, piece.data, piece.live))
        except Refusal as problem:
            return State(Status.REFUSED, reason=str(problem)[:200])
        except OSError as problem:
            self._landed.pop(piece.name, None)  # of an unfinished write, the disk knows how far it got
            return State(Status.LATER, reason=str(problem)[:200])

    def open(self, name: str, head: bytes) -> tuple[int, bytes]:
        """(rows or bytes that are here, digest of the last of them); makes the file if needed."""
        place = landing(name, self._node_rank)
        if place is None:
            raise Refusal(f"{name[:40]!r} is not a file that travels")
        path = self._folder / place.name
        if not path.exists():
            self._landed.pop(name, None)
            self._account(path, layout.HEADER_SIZE if place.has_rows else 0)
            if place.has_rows:
                self._create(path, place, head)
            path.touch()
        if place.has_rows:
            with path.open("rb") as file:
                if file.read(layout.LIVE_OFFSET) != head:
                    raise Refusal(f"{name}: node 0 has another recording of this name")
        landed = self._landed.get(name)  # nobody else writes it: no need to count again
        if landed is None:
            landed = self._landed[name] = self._look(path, place)
        return landed.offset, digest_before(path, landed.unit_bytes, landed.offset)

    def append(self, name: str, offset: int, data: bytes, live: bytes | None = None) -> int:
        """Take the bytes if they start where the file ends; returns where it ends now."""
        landed = self._landed[name]
        unit = landed.unit_bytes
        if offset != landed.offset:
            return landed.offset
        if unit > 1:
            _check_rows(landed, data)
        elif live is not None or offset + len(data) > landed.most_bytes:
            raise Refusal(f"{name}: more than {landed.most_bytes} bytes of lines")
        if data:
            self._account(landed.path, len(data))
        fd = os.open(landed.path, os.O_WRONLY)
        try:
            if unit > 1:
                write_rows(fd, data, layout.HEADER_SIZE + offset * unit, unit)
            else:
                write_all(fd, data, offset)
            if live is not None:
                write_all(fd, live.ljust(layout.HEADER_SIZE - layout.LIVE_OFFSET, b"\0"), layout.LIVE_OFFSET)
        finally:
            os.close(fd)
        landed.offset += len(data) // unit
        self.received_bytes += len(data)
        return landed.offset

    def _look(self, path: Path, place: Landing) -> _Landed:
        if not place.has_rows:
            most_bytes = 0 if place.is_mark else self._limits.lines_bytes
            return _Landed(path, 1, path.stat().st_size, most_bytes)
        try:
            reader = RecordingReader(path, rolled_up_rows(path))
        except UnreadableRecording as problem:
            raise Refusal(f"{path.name}: damaged on node 0") from problem
        return _Landed(path, reader.row_size, reader.look(), 0)

    def _create(self, path: Path, place: Landing, head: bytes) -> None:
        """Under another name first: a recording appears with a valid header or not at all."""
        try:
            self._unfinished.write_bytes(head.ljust(layout.HEADER_SIZE, b"\0"))
            identity = RecordingReader(self._unfinished).header.get("identity")
            rank = identity.get("rank") if isinstance(identity, dict) else None
            if len(head) != layout.LIVE_OFFSET or (place.rank is not None and rank not in (None, place.rank)):
                raise Refusal(f"{path.name}: its header is cut off or says rank {rank!r:.20}")
            self._unfinished.rename(path)
        except UnreadableRecording as problem:
            raise Refusal(f"{path.name}: not a valid header") from problem
        finally:
            self._unfinished.unlink(missing_ok=True)

    def _account(self, path: Path, more_bytes: int) -> None:
        """Before the disk is touched: may this node take that much more of it? Not now: OSError."""
        if path.name not in self._names and len(self._names) >= self._limits.files:
            raise Refusal(f"node {self._node_rank} has {self._limits.files} files already")
        if self._used_bytes + more_bytes > self._limits.node_bytes:
            self._used_bytes = self._on_disk()  # what was rolled up meanwhile takes no space
        if self._used_bytes + more_bytes > self._limits.node_bytes:
            raise Refusal(f"node {self._node_rank} has used its {self._limits.node_bytes} bytes")
        keep, disk = self._limits.keep_free_bytes, os.statvfs(self._folder)
        if keep and disk.f_bavail * disk.f_frsize < more_bytes + keep:
            raise OSError(errno.ENOSPC, "node 0's disk is nearly full")
        self._names.add(path.name)
        self._used_bytes += more_bytes

    def _present(self) -> list[Path]:
        names = "*" if self._node_rank is None else f"*.node{self._node_rank}.*"
        return [path for path in self._folder.glob(names) if path.is_file()]

    def _on_disk(self) -> int:
        """Bytes that the files take; holes do not count."""
        return sum(path.stat().st_blocks * 512 for path in self._present())


def digest_before(path: Path, unit_bytes: int, offset: int) -> bytes:
    """Of the last row (or last bytes of lines) before `offset`; both ends compute it."""
    end = (layout.HEADER_SIZE if unit_bytes > 1 else 0) + offset * unit_bytes
    length = min(end, unit_bytes if unit_bytes > 1 else _DIGEST_BYTES) if offset else 0
    with os.fdopen(open_regular(path), "rb") as file:
        file.seek(end - length)
        return hashlib.blake2b(file.read(length), digest_size=16).digest()


def _check_rows(landed: _Landed, data: bytes) -> None:
    """Whole rows with the numbers that come next, or nothing."""
    unit = landed.unit_bytes
    count, rest = divmod(len(data), unit)
    if rest:
        raise Refusal(f"{landed.path.name}: {len(data)} bytes are not whole rows of {unit}")
    sequence = np.frombuffer(data, np.uint8).reshape(count, unit)[:, unit - layout.SEQUENCE.size :]
    expected = np.arange(landed.offset + 1, landed.offset + count + 1, dtype="<i8")
    if sequence.tobytes() != expected.tobytes():
        raise Refusal(f"{landed.path.name}: rows out of range")
