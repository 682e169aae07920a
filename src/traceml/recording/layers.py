"""The sampled steps of deep mode, read from their file again and again: each complete line once.

The file of a rank has two kinds of lines: a table with the names of layers, and samples, which have a value
for each layer of the table before them.
"""

from collections import deque
from typing import Annotated, Final, Literal

import msgspec

from traceml.errors import printable
from traceml.recording.events import new_lines
from traceml.schema import catalog as c
from traceml.schema.recorded import LayerSample

MOST_SAMPLES: Final = 32
"""Held of a rank: the newest."""
MOST_BYTES: Final = 256 * 1024 * 1024
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
    clock: Literal["host", "device"] = "host"
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
            for lines, _, end in new_lines(self._path, self._offset, MOST_BYTES):
                self._offset = end
                for line in lines:
                    self._take(line)
        except OSError:
            return []
        return list(self._samples)

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
        of_table = msgspec.structs.asdict(table)
        del of_table["table"]
        return LayerSample(
            step=found.step,
            every=found.every,
            own_ns=found.own_ns,
            outside_ns=found.outside,
            outside_bytes=found.outside_bytes,
            columns=columns,
            **of_table,
        )


def _sound(texts: list[str]) -> list[str]:
    return [printable(text[:LONGEST_TEXT]) for text in texts]
