"""Reads the files of JSON lines as they grow: events, and the sampled steps of deep mode.

Each complete line is read once. A torn or foreign line is skipped alone.
"""

import os
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Annotated, Final, Literal

import msgspec

from traceml.errors import printable
from traceml.files import open_regular, sound
from traceml.recording.reader import bytes_at, json_value
from traceml.schema import catalog as c
from traceml.schema.recorded import LayerSample, RecordedEvent

MOST_EVENTS: Final = 1_000
ALWAYS_KEPT: Final = ("error", "model")
MOST_SAMPLES: Final = 32
"""Held of a rank: the newest."""
LONGEST_TEXT: Final = 300
MOST_LAYERS: Final = 20_000
PIECE_BYTES: Final = 4 * 1024 * 1024
"""How much is read at a time. A longer line is not ours."""
NOT_OURS: Final = (msgspec.MsgspecError, ValueError, TypeError, RecursionError)


class _LinesTail:
    """One file of lines."""

    most_bytes: int
    """Read of the file at once."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._offset = 0

    def _new_lines(self) -> Iterator[list[bytes]]:
        """The complete lines that are new, piece by piece. Beyond `most_bytes`, one piece at a time."""
        if os.stat(self._path).st_size <= self._offset:
            return
        fd = open_regular(self._path)
        try:
            while True:
                data = bytes_at(fd, PIECE_BYTES, self._offset)
                end = data.rfind(b"\n") + 1
                is_last = len(data) < PIECE_BYTES
                # A piece without the end of a line is none of ours.
                self._offset += end if end or is_last else len(data)
                yield data[:end].splitlines()
                if is_last or self._offset > self.most_bytes:
                    return
        finally:
            os.close(fd)


class EventsTail(_LinesTail):
    """The events of a rank or of the monitor. If there are very many, only the notable ones are kept."""

    most_bytes = 16 * 1024 * 1024  # a rank writes at most a few hundred lines of each kind

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._events: list[RecordedEvent] = []

    def read(self) -> list[RecordedEvent]:
        """Everything kept so far, in the order of the file."""
        try:
            for lines in self._new_lines():
                self._events = notable([*self._events, *parse_events(lines)])
        except OSError:
            return []
        return list(self._events)


def parse_events(lines: Sequence[bytes]) -> list[RecordedEvent]:
    """One event per line; incomplete and unknown lines, and those with impossible numbers, are left out."""
    events = []
    for line in lines:
        try:
            events.append(msgspec.convert(sound(json_value(line)), RecordedEvent))
        except NOT_OURS:
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


_Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_Column = Annotated[list[_Number], msgspec.Meta(max_length=MOST_LAYERS)]
_Texts = Annotated[list[str], msgspec.Meta(max_length=MOST_LAYERS)]


class _Table(msgspec.Struct):
    """The names of layers."""

    table: _Number
    paths: _Texts
    types: _Texts
    parameter_bytes: _Column
    parameter_bytes_total: _Column
    hidden: _Column
    clock: Literal["host", "device"] = "host"
    reads_saved: bool = True


class _Sample(msgspec.Struct):
    """A sampled step. It also has columns, with a value for each layer of the table before it."""

    of: _Number
    step: _Number
    every: _Number = 0
    own_ns: _Number = 0
    outside_ns: _Number = msgspec.field(default=0, name="outside")
    outside_bytes: _Number = 0


class LayersTail(_LinesTail):
    """The newest samples of one rank."""

    most_bytes = 256 * 1024 * 1024

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._table: _Table | None = None
        self._samples: deque[LayerSample] = deque(maxlen=MOST_SAMPLES)

    def read(self) -> list[LayerSample]:
        """All that is held, in the order of the file."""
        try:
            for line in chain.from_iterable(self._new_lines()):
                self._take(line)
        except OSError:
            return []
        return list(self._samples)

    def _take(self, line: bytes) -> None:
        try:
            if line.startswith(b'{"table"'):
                table = msgspec.json.decode(line, type=_Table)
                sizes = (table.parameter_bytes, table.parameter_bytes_total, table.hidden)
                fits = {len(table.paths), len(table.types), *map(len, sizes)} == {len(table.paths)}
                self._table = table if fits else None
                for texts in (table.paths, table.types):
                    texts[:] = [printable(text[:LONGEST_TEXT]) for text in texts]
            else:
                self._samples.append(self._sample(line))
        except NOT_OURS:
            return

    def _sample(self, line: bytes) -> LayerSample:
        found, table = msgspec.json.decode(line, type=_Sample), self._table
        raw = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        if table is None or found.of != table.table:
            raise ValueError("its table is missing")
        columns: dict[str, list[int]] = {
            name: msgspec.json.decode(raw[name], type=_Column) for name in c.LAYER_COLUMNS if name in raw
        }
        if any(len(column) != len(table.paths) for column in columns.values()):
            raise ValueError("columns of another table")
        facts = msgspec.structs.asdict(table) | msgspec.structs.asdict(found)
        del facts["table"], facts["of"]
        return LayerSample(columns=columns, **facts)
