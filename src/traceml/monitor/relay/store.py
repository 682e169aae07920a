"""What one other node may do to node 0's disk: append to files of its own, byte for byte.

How far a file is, is its size: there is nothing to remember over a restart. Files grow from the front, and a
row's sequence number is its last part, so a reader on node 0 sees a prefix of complete rows. What the bytes
mean is left to that reader, who trusts no file. Used by the relay and by the merge.
"""

import contextlib
import errno
import hashlib
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from traceml.errors import TraceMLError
from traceml.files import replacing
from traceml.monitor.relay.protocol import Answer, Piece, Question, State, Status
from traceml.recording import layout
from traceml.recording.reader import read_at
from traceml.recording.writer import write_all

_RANK: Final = r"rank-[0-9]{1,7}\.[0-9]{1,10}"
_TRAVELS: Final = re.compile(
    r"(?P<mark>seen-[a-z0-9_]{1,32})"
    rf"|(?P<rows>{_RANK}\.(?:steps|device)|(?:system|process)\.gauges)"
    rf"|(?P<lines>{_RANK}\.layers\.jsonl|(?:{_RANK}|monitor|early)\.events\.jsonl)"
)
_NODE: Final = re.compile(r"\.node[0-9]{1,7}(?=\.)")
_CHECKED_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Limits:
    """What one node may take of node 0's disk."""

    files: int = 1024
    node_bytes: int = 64 * 1024**3
    lines_bytes: int = 8 * 1024**2
    """Per event file."""
    keep_free_bytes: int = 64 * 1024**2
    """Always left on the disk: the training on node 0 needs it too."""


class Refusal(TraceMLError):
    """This will never be taken."""


class Landing(NamedTuple):
    """Where a file of a node goes; it holds rows, lines, or nothing (a mark that all nodes share)."""

    name: str
    has_rows: bool
    is_mark: bool


def landing(name: str, node_rank: int | None) -> Landing | None:
    """The place on node 0 of this file of a node, None if it does not travel.

    A name that a peer sends is used only if a pattern matches all of it. It lands with the number of the node
    that the peer proved to be, so a node never reaches files of node 0 or of another node. Without a node
    rank both folders are of one machine: all names stay, also those of other nodes' files.
    """
    found = _TRAVELS.fullmatch(_NODE.sub("", name, count=1) if node_rank is None else name)
    if found is None:
        return None
    is_mark, (stem, _, rest) = found.lastgroup == "mark", name.partition(".")
    stays = is_mark or node_rank is None
    return Landing(name if stays else f"{stem}.node{node_rank}.{rest}", found.lastgroup == "rows", is_mark)


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
        place = landing(piece.name, self._node_rank)
        if place is None:
            return State(Status.REFUSED, reason=f"{piece.name[:40]!r} is not a file that travels")
        path = self._folder / place.name
        try:
            if piece.offset is None and not place.has_rows and not path.exists():
                self._account(path, 0)  # a recording appears together with its header
                path.touch()
            size = path.stat().st_size if path.exists() else 0
            if piece.offset is None:
                return State(Status.OK, size, digest_before(path, place.has_rows, size))
            if piece.offset == size:
                self._append(piece, size, path, place)
                size += len(piece.data)
            return State(Status.OK, size)
        except Refusal as problem:
            return State(Status.REFUSED, reason=str(problem)[:200])
        except OSError as problem:
            return State(Status.LATER, reason=str(problem)[:200])

    def _append(self, piece: Piece, at: int, path: Path, place: Landing) -> None:
        """Write the bytes where the file ends. A new file appears with them: no reader sees half a header."""
        end = at + len(piece.data)
        if place.has_rows and end < layout.HEADER_SIZE:
            raise Refusal(f"{piece.name}: its header is cut off")
        most_bytes = 0 if place.is_mark else self._limits.lines_bytes
        if not place.has_rows and (piece.live is not None or end > most_bytes):
            raise Refusal(f"{piece.name}: more than {most_bytes} bytes of lines")
        if piece.data:
            self._account(path, len(piece.data))
        with contextlib.nullcontext(path) if at or path.exists() else replacing(path) as target:
            fd = os.open(target, os.O_WRONLY | (0 if at else os.O_CREAT), 0o666)
            try:
                write_all(fd, piece.data, at)
                if piece.live is not None:
                    live = piece.live.ljust(layout.HEADER_SIZE - layout.LIVE_OFFSET, b"\0")
                    write_all(fd, live, layout.LIVE_OFFSET)
            finally:
                os.close(fd)
        self.received_bytes += len(piece.data)

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


def digest_before(path: Path, has_rows: bool, offset: int) -> bytes:
    """Of the fixed half of a recording's header, and of the last bytes before `offset`: both ends compute it,
    and so see whether they have the same file."""
    if not offset:
        return b""
    fixed = read_at(path, layout.LIVE_OFFSET, 0) if has_rows else b""
    begin = min(offset, max(layout.HEADER_SIZE if has_rows else 0, offset - _CHECKED_BYTES))
    return hashlib.blake2b(fixed + read_at(path, offset - begin, begin), digest_size=16).digest()
