"""The event lines of one file, read again and again: each complete line once, the notable ones kept."""

import os
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from traceml.files import open_regular, sound
from traceml.recording.reader import bytes_at, json_value
from traceml.schema.recorded import RecordedEvent

MOST_EVENTS: Final = 1_000
ALWAYS_KEPT: Final = ("error", "model")
PIECE_BYTES: Final = 4 * 1024 * 1024
"""Read at a time. A longer line is none of ours."""
MOST_BYTES: Final = 16 * 1024 * 1024
"""Read of one file at once. A rank writes at most a few hundred lines of each kind."""


class EventsTail:
    """The events of a rank or of the monitor. If there are very many, only the notable ones are kept."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._offset = 0
        self._events: list[RecordedEvent] = []
        self._last_line: list[RecordedEvent] = []

    def read(self) -> list[RecordedEvent]:
        """Everything kept so far, in the order of the file."""
        try:
            for lines, rest, end in new_lines(self._path, self._offset, MOST_BYTES):
                self._offset = end
                self._events = notable([*self._events, *parse_events(lines)])
                self._last_line = parse_events([rest])
        except OSError:
            return []
        return self._events + self._last_line


def new_lines(path: str, begin: int, most_bytes: int) -> Iterator[tuple[list[bytes], bytes, int]]:
    """The complete lines from this offset on, piece by piece; with what follows them (its writer was killed,
    or is still writing it), and the offset to go on from. Beyond the limit, one piece at a time."""
    if os.stat(path).st_size <= begin:
        return
    fd = open_regular(path)
    try:
        while True:
            data = bytes_at(fd, PIECE_BYTES, begin)
            end = data.rfind(b"\n") + 1
            is_last = len(data) < PIECE_BYTES
            begin += end if end or is_last else len(data)  # a piece without the end of a line is none of ours
            yield data[:end].splitlines(), data[end:], begin
            if is_last or begin > most_bytes:
                return
    finally:
        os.close(fd)


def parse_events(lines: Sequence[bytes]) -> list[RecordedEvent]:
    """One event per line; incomplete and unknown lines, and those with impossible numbers, are left out."""
    events = []
    for line in lines:
        try:
            events.append(msgspec.convert(sound(json_value(line)), RecordedEvent))
        except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
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
