"""The sampled steps of deep mode, read from their file again and again: each complete line once.

The file of a rank has two kinds of lines: a table with the names of layers, and samples, which have a value
for each layer of the table before them.
"""

from __future__ import annotations

import os
from collections import deque
from typing import Annotated, Final

import msgspec

from traceml.errors import printable
from traceml.files import open_regular
from traceml.recording.reader import bytes_at
from traceml.schema import catalog as c
from traceml.schema.recorded import LayerSample

MOST_SAMPLES: Final = 32
"""Held of a rank: the newest."""
PIECE_BYTES: Final = 4 * 1024 * 1024
MOST_BYTES: Final = 64 * PIECE_BYTES
LONGEST_TEXT: Final = 300
MOST_LAYERS: Final = 20_000

_Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_Column = Annotated[list[_Number], msgspec.Meta(max_length=MOST_LAYERS)]
_Texts = Annotated[list[str], msgspec.Meta(max_length=MOST_LAYERS)]


class _Table(msgspec.Struct):
    table: _Number
    paths: _Texts
    types: _Texts
    parameter_bytes: _Column
    parameter_bytes_total: _Column
    hidden: _Column
    clock: str = "host"
    reads_saved: bool = True


class _Sample(msgspec.Struct):
    of: _Number
    step: _Number
    every: _Number = 0
    own_ns: _Number = 0
    outside: _Number = 0
    outside_bytes: _Number = 0


_tables: Final = msgspec.json.Decoder(_Table)
_samples: Final = msgspec.json.Decoder(_Sample)
_columns: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_column: Final = msgspec.json.Decoder(_Column)


class LayersTail:
    """The newest samples of one rank."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._offset = 0
        self._table: _Table | None = None
        self._samples: deque[LayerSample] = deque(maxlen=MOST_SAMPLES)

    def read(self) -> list[LayerSample]:
        """All that is held, in the order of the file. A torn or foreign line is left out."""
        try:
            if os.stat(self._path).st_size > self._offset:
                self._pull()
        except OSError:
            return []
        return list(self._samples)

    def _pull(self) -> None:
        fd = open_regular(self._path)
        try:
            while self._offset < MOST_BYTES:
                data = bytes_at(fd, PIECE_BYTES, self._offset)
                end = data.rfind(b"\n") + 1
                for line in data[:end].splitlines():
                    self._take(line)
                self._offset += end or (len(data) if len(data) == PIECE_BYTES else 0)
                if len(data) < PIECE_BYTES:
                    return
        finally:
            os.close(fd)

    def _take(self, line: bytes) -> None:
        try:
            if line.startswith(b'{"table"'):
                table = _tables.decode(line)
                sizes = (table.parameter_bytes, table.parameter_bytes_total, table.hidden)
                fits = {len(table.paths), len(table.types), *map(len, sizes)} == {len(table.paths)}
                self._table = table if fits else None
                table.paths, table.types = _sound(table.paths), _sound(table.types)
            else:
                self._samples.append(self._sample(line))
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return

    def _sample(self, line: bytes) -> LayerSample:
        found, raw, table = _samples.decode(line), _columns.decode(line), self._table
        if table is None or found.of != table.table:
            raise ValueError("its table is missing")
        columns: dict[str, list[int]] = {
            name: _column.decode(raw[name]) for name in c.LAYER_COLUMNS if name in raw
        }
        if any(len(column) != len(table.paths) for column in columns.values()):
            raise ValueError("columns of another table")
        return LayerSample(
            step=found.step,
            every=found.every,
            own_ns=found.own_ns,
            clock="device" if table.clock == "device" else "host",
            reads_saved=table.reads_saved,
            outside_ns=found.outside,
            outside_bytes=found.outside_bytes,
            paths=table.paths,
            types=table.types,
            parameter_bytes=table.parameter_bytes,
            parameter_bytes_total=table.parameter_bytes_total,
            hidden=table.hidden,
            columns=columns,
        )


def _sound(texts: list[str]) -> list[str]:
    return [printable(text[:LONGEST_TEXT]) for text in texts]
