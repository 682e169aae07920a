"""Where the switch writes its rows: into the recording, or apart, to be merged or kept back first."""

import functools
from typing import Final

from traceml.capture.slots import ROW
from traceml.capture.switch import Switch
from traceml.recording.writer import RecordingWriter
from traceml.schema import catalog as c

ENOUGH: Final = 16
_FLAGS_AT: Final = [name for name, _ in c.STEP_COLUMNS].index("flags")


def into_writer(switch: Switch, writer: RecordingWriter, sequence: int) -> None:
    """Rows go where the writer has room for them."""
    switch.rows_into(writer.map, writer.offset, writer.end, writer.row_size, sequence)


def taken_apart(switch: Switch, row_size: int, now: int, flags: int) -> bytes:
    """The row of what was recorded until `now`, in no file. The caller says where the next rows go."""
    scratch = bytearray(row_size)
    switch.rows_into(scratch, 0, row_size, row_size, 0)
    switch.publish(now, flags)
    return bytes(scratch[: ROW.size])


def merged(first: bytes, more: bytes) -> bytes:
    """Two consecutive stretches of one step as one row: times add up, states are the later ones."""
    row = []
    columns = zip(c.STEP_COLUMNS, ROW.unpack(first), ROW.unpack(more), strict=True)
    for (name, _), a, b in columns:
        if name == "begin_ns":
            row.append(a)
        elif name in ("step", "end_ns") or name.endswith("_bytes"):
            row.append(b)
        else:
            row.append(a | b if name == "flags" else a + b)
    return ROW.pack(*row)


def extended(row: bytes, switch: Switch, writer: RecordingWriter, now: int) -> bytes:
    """The last step goes on: another optimizer stepped. A longer row with its number supersedes it."""
    writer.offset, writer.count = switch.row_at, switch.sequence
    switch.step -= 1
    longer = merged(row, taken_apart(switch, writer.row_size, now, 0))
    writer.append_packed(longer)
    into_writer(switch, writer, writer.count)
    return longer


class UnendedSteps:
    """Backward passes that no optimizer has followed yet, as rows that wait in memory.

    Optimizers of other libraries, compiled ones and hand-written updates are not seen. The first rows wait,
    because they may be micro-batches of a first step that an optimizer ends yet; after a while none will
    come, and `are_steps` says so.
    """

    def __init__(self, switch: Switch) -> None:
        self._switch = switch
        self._rows: list[bytes] = []
        self.are_steps = False

    def __len__(self) -> int:
        return len(self._rows)

    def keep(self, writer: RecordingWriter) -> None:
        """What was recorded since the last one is the next one."""
        now = self._switch.clock()
        self._rows.append(taken_apart(self._switch, writer.row_size, now, c.FLAG_STEP_INFERRED))
        into_writer(self._switch, writer, 0)
        if len(self._rows) >= ENOUGH:
            self.publish(writer)

    def publish(self, writer: RecordingWriter) -> None:
        """No optimizer comes: each one is a step."""
        for row in self._rows:
            writer.append_packed(row)
        self._rows, self.are_steps = [], True
        into_writer(self._switch, writer, writer.count)

    def take_as_one(self) -> bytes:
        """An optimizer stepped: all of them were its first step so far, and nothing is inferred."""
        row = list(ROW.unpack(functools.reduce(merged, self._rows)))
        row[_FLAGS_AT] &= ~c.FLAG_STEP_INFERRED
        self._rows = []
        return ROW.pack(*row)
