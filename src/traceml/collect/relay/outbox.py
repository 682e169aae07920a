"""The other nodes' side without its socket: which message to send next, what an answer means.

Nothing is kept in memory but numbers: what was not acknowledged is read from the disk again. At
most `window_bytes` are under way at any time, and node 0's answer decides from where a file goes
on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from traceml.collect.relay.names import Kind, parse_name
from traceml.collect.relay.protocol import (
    FRAME_BYTES,
    Answer,
    AnyRequest,
    Live,
    Open,
    Put,
    Status,
    Whole,
)
from traceml.collect.relay.source import LinesSource, RowsSource, WholeSource
from traceml.collect.rundir import MANIFEST, RECORDING
from traceml.recording.reader import UnreadableRecording

MOST_FILES: Final = 1024
LIVE_EVERY_S: Final = 1.0
LATER_S: Final = 2.0


@dataclass(slots=True)
class _Grown:
    """A file of rows or lines under way. `asked` until node 0 has said how far it is."""

    source: RowsSource | LinesSource
    acked: int | None = None
    sent: int = 0
    asked: bool = False
    rewound_at: int = 0
    """Answers to tickets before this one are history."""
    live: bytes | None = None
    live_at_s: float = 0.0
    not_before_s: float = 0.0


@dataclass(slots=True)
class _Replaced:
    """A file that travels as a whole."""

    source: WholeSource
    acked: bytes | None = None
    sent: bytes | None = None
    not_before_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _UnderWay:
    name: str
    size_bytes: int
    reaches: int
    """Where the file ends on node 0 once this is taken; -1 when that says nothing."""
    data: bytes | None = None


class Outbox:
    """All files of one node's run folder on their way to node 0."""

    def __init__(self, run_dir: Path, client: int, window_bytes: int = 2 * FRAME_BYTES) -> None:
        self.live_every_s = LIVE_EVERY_S
        self._run_dir = run_dir
        self._client = client
        self._most_window_bytes = window_bytes
        self._window_bytes = window_bytes
        self._connection = 0
        self._ticket = 0
        self._files: dict[str, _Grown | _Replaced] = {}
        self._under_way: dict[int, _UnderWay] = {}
        self._under_way_bytes = 0
        self._turn = 0
        self._given_up: dict[str, str] = {}

    @property
    def waiting(self) -> bool:
        """Whether an answer is outstanding."""
        return bool(self._under_way)

    @property
    def has_room(self) -> bool:
        """Whether the window lets more bytes under way."""
        return self._room() > 0

    @property
    def given_up(self) -> dict[str, str]:
        """Files that will not get to node 0, and why."""
        return self._given_up

    def acknowledged(self, name: str) -> int:
        """How many rows of this recording node 0 has, as far as is known; other threads may ask."""
        file = self._files.get(name)
        return file.acked or 0 if isinstance(file, _Grown) else 0

    def reconnected(self, connection: int, shrink: bool) -> None:
        """A new connection: whatever was under way is forgotten and every file asked for again.

        `shrink` when the last one died waiting: a slow link gets less at a time.
        """
        self._connection = connection
        self._under_way.clear()
        self._under_way_bytes = 0
        if shrink:
            self._window_bytes = max(4096, self._window_bytes // 4)
        for file in self._files.values():
            if isinstance(file, _Grown):
                file.acked, file.asked, file.live = None, False, None
            else:
                file.sent = file.acked = None

    def look(self) -> None:
        """Find files that are new in the folder."""
        folder = self._run_dir / RECORDING
        found = [self._run_dir / MANIFEST] if (self._run_dir / MANIFEST).exists() else []
        found += folder.iterdir() if folder.is_dir() else []
        for path in found:
            if path.name in self._files or path.name in self._given_up:
                continue
            travel = parse_name(path.name)
            if travel is None or (travel.name == MANIFEST) != (path.parent == self._run_dir):
                continue
            if len(self._files) >= MOST_FILES:
                return
            if travel.kind is Kind.WHOLE:
                self._files[path.name] = _Replaced(WholeSource(path))
            elif travel.kind is Kind.LINES:
                self._files[path.name] = _Grown(LinesSource(path))
            else:
                try:
                    self._files[path.name] = _Grown(RowsSource(path))
                except UnreadableRecording:
                    continue  # its writer has not finished the header yet

    def messages(self, now_s: float) -> Iterator[AnyRequest]:
        """What to send now; stops when the window is full or there is nothing more.

        Files take turns, one message each: a long backlog of one does not keep others waiting.
        """
        names = list(self._files)
        turn, idle = self._turn, 0
        while names and idle < len(names) and self._room() > 0:
            name = names[turn % len(names)]
            turn += 1
            file = self._files.get(name)  # an answer may have ended it meanwhile
            try:
                message = self._next(name, file, now_s) if file is not None else None
            except (OSError, UnreadableRecording) as problem:
                self._give_up(name, str(problem))
                message = None
            if message is None:
                idle += 1
            else:
                idle = 0
                yield message
        self._turn = turn

    def take(self, answer: Answer, now_s: float) -> None:
        """Note what node 0 has. Late answers of earlier connections do not count."""
        if (answer.client, answer.connection) != (self._client, self._connection):
            return
        done = self._under_way.pop(answer.ticket, None)
        if done is None:
            return
        self._under_way_bytes -= done.size_bytes
        if not self._under_way and done.size_bytes >= self._window_bytes // 2:
            self._window_bytes = min(self._most_window_bytes, self._window_bytes * 2)
        file = self._files.get(done.name)
        if file is None or answer.status is Status.UNKNOWN:
            return
        if answer.status is Status.REFUSED:
            self._give_up(done.name, answer.reason)
        elif answer.status is Status.LATER:
            file.not_before_s = now_s + LATER_S
            self._rewind(file, None)
        elif isinstance(file, _Replaced):
            file.acked = done.data
        elif answer.ticket >= file.rewound_at:
            self._take_offset(done, file, answer)

    def all_there(self) -> bool:
        """Whether node 0 has everything that the folder holds at this moment."""
        try:
            self.look()
            return not self._under_way and all(self._is_there(f) for f in self._files.values())
        except OSError:
            return False  # a file is gone: the next message finds out which

    def next_ticket(self) -> int:
        """A number that no earlier request has."""
        self._ticket += 1
        return self._ticket

    def _room(self) -> int:
        return self._window_bytes - self._under_way_bytes

    def _next(self, name: str, file: _Grown | _Replaced, now_s: float) -> AnyRequest | None:
        if now_s < file.not_before_s:
            return None
        who = (self._client, self._connection, self.next_ticket())
        if isinstance(file, _Replaced):
            data = file.source.read()
            if data is None or data == file.sent:
                return None
            file.sent = data
            self._note(_UnderWay(name, len(data), -1, data))
            return Whole(client=who[0], connection=who[1], ticket=who[2], name=name, data=data)
        if file.acked is None:
            if file.asked:
                return None
            file.asked = True
            head = file.source.head
            self._note(_UnderWay(name, len(head), -1))
            return Open(client=who[0], connection=who[1], ticket=who[2], name=name, head=head)
        live = file.source.live()  # before the rows: it must not say more than they do
        data = file.source.read(file.sent, min(FRAME_BYTES, max(self._room(), 4096)))
        if data:
            offset, file.sent = file.sent, file.sent + len(data) // file.source.unit_bytes
            self._note(_UnderWay(name, len(data), file.sent))
            return Put(client=who[0], connection=who[1], ticket=who[2], name=name, offset=offset, data=data)
        if live is None or live == file.live or now_s - file.live_at_s < self.live_every_s:
            return None
        file.live, file.live_at_s = live, now_s
        self._note(_UnderWay(name, len(live), -1))
        return Live(client=who[0], connection=who[1], ticket=who[2], name=name, data=live)

    def _note(self, sent: _UnderWay) -> None:
        self._under_way[self._ticket] = sent
        self._under_way_bytes += sent.size_bytes

    def _take_offset(self, done: _UnderWay, file: _Grown, answer: Answer) -> None:
        if file.acked is None:
            if not file.source.is_same(answer.offset, answer.check):
                self._give_up(done.name, "node 0 has another file of this name")
                return
            file.acked = file.sent = answer.offset
        elif done.reaches >= 0:
            file.acked = answer.offset
            if answer.offset != done.reaches:
                self._rewind(file, answer.offset)

    def _rewind(self, file: _Grown | _Replaced, offset: int | None) -> None:
        if isinstance(file, _Replaced):
            file.sent = file.acked
            return
        file.rewound_at = self._ticket + 1
        file.acked, file.asked, file.live = offset, False, None
        file.sent = offset or 0

    def _is_there(self, file: _Grown | _Replaced) -> bool:
        if isinstance(file, _Replaced):
            data = file.source.read()
            return data is None or data == file.acked
        if file.acked is None:
            return False
        live = file.source.live()
        return (live is None or live == file.live) and not file.source.read(file.acked, 4096)

    def _give_up(self, name: str, reason: str) -> None:
        del self._files[name]
        self._given_up[name] = reason
