"""Event lines of one file, read again and again: each complete line once, the notable ones kept."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import msgspec

from traceml.collect.rows_tail import READ_FLAGS, bytes_at

MOST_EVENTS: Final = 1_000
ALWAYS_KEPT: Final = ("error", "model")
Event = dict[str, Any]


class EventsTail:
    """The events of a rank or of the monitor. Of very many, the newest, the longest and errors are kept."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._offset = 0
        self._size = -1
        self._events: list[Event] = []
        self._last_line: list[Event] = []

    def read(self) -> list[Event]:
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
        self._last_line = parse_events(data[end:])  # of a killed writer; it may also be growing still


def parse_events(data: bytes) -> list[Event]:
    """One event a line; what is torn or foreign is left out."""
    events = []
    for line in data.splitlines():
        try:
            event = msgspec.json.decode(line)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            continue
        if isinstance(event, dict) and isinstance(event.get("kind"), str):
            events.append(event)
    return events


def notable(events: list[Event]) -> list[Event]:
    """All of them, or of more than a thousand: errors, the newest half, the longest of the rest."""
    if len(events) <= MOST_EVENTS:
        return events
    half = MOST_EVENTS // 2
    older = range(len(events) - half)
    longest = sorted(older, key=lambda i: (events[i]["kind"] in ALWAYS_KEPT, _duration(events[i])))[
        -half // 2 :
    ]
    return [events[i] for i in sorted(longest)] + events[-half:]


def _duration(event: Event) -> int:
    value = event.get("duration_ns")
    return value if isinstance(value, int) else 0


def read_events(path: Path) -> list[Event]:
    """The events of one file, once."""
    return EventsTail(str(path)).read()
