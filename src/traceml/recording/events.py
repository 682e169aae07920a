"""The event lines of one file, read again and again: each complete line once, the notable ones kept."""

from __future__ import annotations

import os
from typing import Final

import msgspec

from traceml.recording.reader import READ_FLAGS, bytes_at
from traceml.schema.recorded import RecordedEvent

MOST_EVENTS: Final = 1_000
ALWAYS_KEPT: Final = ("error", "model")
_decoder: Final = msgspec.json.Decoder(RecordedEvent)


class EventsTail:
    """The events of a rank or of the monitor. If there are very many, only the notable ones are kept."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._offset = 0
        self._size = -1
        self._events: list[RecordedEvent] = []
        self._last_line: list[RecordedEvent] = []

    def read(self) -> list[RecordedEvent]:
        """Everything kept so far, in the order of the file."""
        try:
            size = os.stat(self._path).st_size
            if size != self._size:
                self._pull(size)
                self._size = size
        except OSError:
            return []
        return self._events + self._last_line

    def _pull(self, size: int) -> None:
        fd = os.open(self._path, READ_FLAGS)
        try:
            data = bytes_at(fd, max(size - self._offset, 0), self._offset)
        finally:
            os.close(fd)
        end = data.rfind(b"\n") + 1
        self._offset += end
        self._events = notable([*self._events, *parse_events(data[:end])])
        self._last_line = parse_events(data[end:])  # its writer was killed, or is still writing it


def parse_events(data: bytes) -> list[RecordedEvent]:
    """One event per line; incomplete and unknown lines are left out."""
    events = []
    for line in data.splitlines():
        try:
            events.append(_decoder.decode(line))
        except (msgspec.MsgspecError, ValueError, RecursionError):
            continue
    return events


def notable(events: list[RecordedEvent]) -> list[RecordedEvent]:
    """All of them; of more than a thousand only errors, the newest half and the longest of the rest."""
    if len(events) <= MOST_EVENTS:
        return events
    half = MOST_EVENTS // 2
    older = range(len(events) - half)
    ranked = sorted(older, key=lambda i: (events[i].kind in ALWAYS_KEPT, events[i].duration_ns))
    return [events[i] for i in sorted(ranked[-half // 2 :])] + events[-half:]
