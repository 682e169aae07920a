"""Backward passes that no optimizer has followed yet, as rows that wait in memory.

Optimizers of other libraries, compiled ones and hand-written updates are not seen. The first rows wait,
because they may be micro-batches of a first step that an optimizer ends yet; after a while none will come.
"""

import functools
from typing import Final

from traceml.capture.rows import into_writer, merged, taken_apart
from traceml.capture.slots import ROW
from traceml.capture.switch import Switch
from traceml.recording.writer import RecordingWriter
from traceml.schema import catalog as c

ENOUGH: Final = 16
_FLAGS_AT: Final = [name for name, _ in c.STEP_COLUMNS].index("flags")


class UnendedSteps:
    """Until `are_steps`, each of them may still be a part of the first step."""

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
