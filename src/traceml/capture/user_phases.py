"""The user's own phases: names to slots. Names beyond the slots share the last one."""

from traceml.recording.writer import RecordingWriter
from traceml.schema import catalog as c


class UserPhases:
    """Hands out slots and writes their names into the recording, as soon as there is one."""

    def __init__(self) -> None:
        self.slots: dict[str, int] = {}
        self._writer: RecordingWriter | None = None

    def slot(self, name: str) -> int:
        """The slot of this name."""
        found = self.slots.get(name)
        if found is None:
            used = len(set(self.slots.values()))
            found = self.slots[name] = c.FIRST_USER + min(used, c.USER_SLOTS - 1)
            self._write(name, found)
        return found

    def use(self, writer: RecordingWriter) -> None:
        """The recording is open: names given so far go into it."""
        self._writer = writer
        for name, slot in self.slots.items():
            self._write(name, slot)

    def _write(self, name: str, slot: int) -> None:
        index = slot - c.FIRST_USER
        shared = index == c.USER_SLOTS - 1 and len(self.slots) > c.USER_SLOTS
        if self._writer is not None:
            self._writer.set_name(index, "other phases" if shared else name)
