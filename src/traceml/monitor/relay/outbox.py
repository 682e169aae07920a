"""The other nodes' side without its socket: what to ask next, and what an answer means.

Nothing is kept in memory but numbers: what node 0 has not acknowledged is read from the disk again. There is
at most one question at a time, and node 0's answer decides where the next one goes on.
"""

import itertools
import re
import time
from pathlib import Path
from typing import Final, NamedTuple

from traceml.monitor.relay.protocol import FRAME_BYTES, MOST_PIECES, Answer, Piece, Question, State, Status
from traceml.monitor.relay.store import Limits, NodeStore, digest_before, landing
from traceml.recording import layout
from traceml.recording.reader import RecordingReader, UnreadableRecording, read_at
from traceml.recording.rollup import rolled_up_rows
from traceml.recording.tail import FolderNames
from traceml.runs.folder import RECORDING

_LIVE_BYTES: Final = layout.HEADER_SIZE - layout.LIVE_OFFSET
_STATE: Final = layout.LIVE_STATE - layout.LIVE_OFFSET
FILES_AT_ONCE: Final = 512
QUIET_LOOKS: Final = 3
"""So often a file of a closed recording has nothing new before it is done with."""
_PIECE_BYTES: Final = 512
"""Counted for a piece in addition to what it carries."""
_MOST_QUIET: Final = 100
"""Questions without new bytes before the disk counts as full; asking for all files takes fewer."""


class _SentFile:
    """A file of this node. Raises UnreadableRecording while its header is not finished."""

    def __init__(self, path: Path, has_rows: bool) -> None:
        self._path = path
        self._known: int | None = None  # bytes that node 0 has, as far as is known
        self._live: bytes | None = None
        self.quiet_looks = 0
        self.is_closed = False
        """Whether its writer has closed it, as of the last piece."""
        self._rolled_up = rolled_up_rows(path) if has_rows else 0
        self._reader = RecordingReader(path, self._rolled_up) if has_rows else None

    @property
    def acknowledged(self) -> int:
        """How many rows node 0 has; other threads may ask."""
        known = self._known
        if known is None or self._reader is None:
            return 0
        return max(known - layout.HEADER_SIZE, 0) // self._reader.row_size

    def piece(self, most_bytes: int) -> Piece | None:
        """What node 0 does not have, None if it has everything."""
        begin, live = self._known, None
        if begin is None:
            return Piece(self._path.name)
        if self._reader is None:
            data = read_at(self._path, most_bytes, begin)
            lines = data.rfind(b"\n") + 1
            if lines or len(data) < most_bytes:  # else a part of a line that does not fit
                data = data[:lines]
        else:
            live = read_at(self._path, _LIVE_BYTES, layout.LIVE_OFFSET)  # never ahead of the rows
            live = live.rstrip(b"\0")
            self.is_closed = live[_STATE : _STATE + 1] not in (b"", bytes([layout.STATE_RUNNING]))
            if self.acknowledged < self._rolled_up:
                raise UnreadableRecording(
                    f"node 0 has lost rows after row {self.acknowledged} that are rolled up here"
                )
            end = layout.HEADER_SIZE + self._reader.look() * self._reader.row_size
            data = read_at(self._path, max(0, min(end - begin, most_bytes)), begin)
            if not begin:  # never half a header, and its live half comes with the last row
                fixed = read_at(self._path, layout.LIVE_OFFSET, 0)
                data = fixed + bytes(_LIVE_BYTES) + data[layout.HEADER_SIZE :]
            live = live if begin + len(data) == end and live != self._live else None
        return Piece(self._path.name, begin, data=data, live=live) if data or live is not None else None

    def take(self, piece: Piece, state: State) -> None:
        """Note what node 0 has; ask it again if that is not what was sent."""
        if state.status is Status.REFUSED:
            raise UnreadableRecording(state.reason)
        is_expected = piece.offset is None or state.offset == piece.offset + len(piece.data)
        if state.status is not Status.OK or not is_expected:
            self.forget()
            return
        has_rows = self._reader is not None
        if piece.offset is None and digest_before(self._path, has_rows, state.offset) != state.check:
            raise UnreadableRecording("node 0 has another file of this name")
        self._known = state.offset
        self._live = self._live if piece.live is None else piece.live

    def forget(self) -> None:
        self._known = self._live = None


class Outbox:
    """All files of one node's run folder on their way to node 0."""

    def __init__(
        self, run_dir: Path, node_rank: int | None = 0, files_at_once: int | None = FILES_AT_ONCE
    ) -> None:
        """Of very many files, `files_at_once` are looked at for a question; the others come next."""
        self._node_rank = node_rank
        self._files_at_once = files_at_once
        self.given_up: dict[str, str] = {}
        """Files that will not reach node 0, and why."""
        self.has_more = False
        """Whether the last question had no room for everything."""
        self._folder = run_dir / RECORDING
        self._names = FolderNames(self._folder)
        self._listed: list[str] = []
        self._new: list[str] = []  # listed, but not opened yet
        self._done: dict[str, int] = {}
        """Files of ended processes that node 0 has, with how far they are: never looked at again."""
        self._files: dict[str, _SentFile] = {}
        self._number = time.time_ns()
        self._asked: list[Piece] = []

    def acknowledged(self, name: str) -> int:
        """How many rows of this recording node 0 has, as far as is known; other threads may ask."""
        file = self._files.get(name)
        return file.acknowledged if file is not None else self._done.get(name, 0)

    def question(self, most_bytes: int = FRAME_BYTES, complete: bool | None = None) -> Question:
        """The next question; answers to earlier ones no longer count."""
        self._number += 1
        self._asked = self._pieces(most_bytes, self._files_at_once) if complete is None else []
        return Question(self._number, self._asked, complete)

    def take(self, answer: Answer) -> Status | None:
        """Note what node 0 has: LATER if it had trouble with its disk, None if the answer is an old one."""
        if answer.number != self._number:
            return None
        if answer.newest > self._number:
            # From before a restart, and the clock was set back: it may have undone what we know.
            self._number = answer.newest
            for file in self._files.values():
                file.forget()
            self._done, self._listed = {}, []
        for piece, state in zip(self._asked, answer.states, strict=False):
            try:
                self._files[piece.name].take(piece, state)
            except (OSError, UnreadableRecording) as problem:
                self._give_up(piece.name, problem)
        self._asked = []
        return Status.LATER if any(s.status is Status.LATER for s in answer.states) else Status.OK

    def is_empty(self) -> bool:
        """Whether node 0 has everything that the folder holds now, except what was given up."""
        return not self._pieces(FRAME_BYTES, None)

    def _pieces(self, most_bytes: int, most_files: int | None) -> list[Piece]:
        """As many as fit; files whose turn it was go to the end, so that none waits for a long backlog."""
        self._look()
        pieces: list[Piece] = []
        room = most_bytes
        for name in list(itertools.islice(self._files, most_files)):
            if room <= 0 or len(pieces) == MOST_PIECES:
                break
            file = self._files[name]
            steps = re.sub(r"\.(?:events\.jsonl|layers\.jsonl|device)$", ".steps", name)
            had_ended = file.is_closed or steps in self._done  # its process has said that it is through
            try:
                piece = file.piece(room)
            except (OSError, UnreadableRecording) as problem:
                self._give_up(name, problem)
                continue
            del self._files[name]
            file.quiet_looks = file.quiet_looks + 1 if piece is None and had_ended else 0
            if file.quiet_looks == QUIET_LOOKS:
                self._done[name] = file.acknowledged
                continue
            self._files[name] = file
            if piece is not None:
                pieces.append(piece)
                room -= len(piece.data) + len(piece.live or b"") + _PIECE_BYTES
        full = room <= 0 or len(pieces) == MOST_PIECES
        self.has_more = full or any(piece.offset is None for piece in pieces)
        return pieces

    def _look(self) -> None:
        """Find files that are new in the folder."""
        try:
            names = self._names.look()
        except OSError:
            return  # not there yet
        if names is not self._listed:
            self._listed = names
            self._new = [n for n in names if n not in self._files and n not in self._done]
        waiting, self._new = self._new, []
        for name in waiting:
            place = landing(name, self._node_rank)
            if place is None or name in self.given_up:
                continue
            try:
                self._files[name] = _SentFile(self._folder / name, place.has_rows)
            except (OSError, UnreadableRecording):
                self._new.append(name)  # its writer has not finished the header yet

    def _give_up(self, name: str, problem: Exception) -> None:
        del self._files[name]
        self.given_up[name] = str(problem)


class Merged(NamedTuple):
    """What a merge did."""

    new_bytes: int
    """Rows and event lines that the target did not have."""
    complete: bool
    problems: dict[str, str]
    """File name and why it was left out."""


def merge_node_folder(source: Path, target: Path, node_rank: int | None) -> Merged:
    """Copy what run folder `source` of this node has and run folder `target` does not have.

    Can be repeated, interrupted, and mixed with a relay that carried a part, but not while one runs.
    """
    store = NodeStore(target / RECORDING, node_rank, Limits(keep_free_bytes=0))
    return catch_up(Outbox(source, node_rank, files_at_once=None), store)


def catch_up(outbox: Outbox, store: NodeStore) -> Merged:
    """Everything that the outbox has now goes to the store, without a socket between them."""
    before = new_bytes = store.received_bytes
    quiet = 0
    while quiet < _MOST_QUIET and (question := outbox.question()).pieces:
        outbox.take(store.answer(question))
        quiet = 0 if store.received_bytes > new_bytes else quiet + 1
        new_bytes = store.received_bytes
    return Merged(new_bytes - before, outbox.is_empty() and not outbox.given_up, outbox.given_up)
