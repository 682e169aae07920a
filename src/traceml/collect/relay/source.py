"""A node's own files, read for the relay: only what is published, a bounded piece at a time."""

from __future__ import annotations

from pathlib import Path

from traceml.collect.relay.protocol import WHOLE_BYTES
from traceml.collect.relay.store import check_before
from traceml.collect.rollup import rolled_up_rows
from traceml.recording import format as fmt
from traceml.recording.reader import RecordingReader, UnreadableRecording


class RowsSource:
    """A recording. Raises UnreadableRecording while its header is not finished.

    Its first rows may be rolled up: node 0 had them by then, and does not ask for them again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rolled_up = rolled_up_rows(path)
        self._reader = RecordingReader(path, self._rolled_up)
        self.unit_bytes = self._reader.rows().dtype.itemsize
        with path.open("rb") as file:
            self.head = file.read(fmt.LIVE_OFFSET)

    def read(self, offset: int, most_bytes: int) -> bytes:
        """Published rows from this one on; their numbers are looked at before they are copied."""
        rows, begin = self._reader.rows(), offset - self._rolled_up
        if begin < 0:
            raise UnreadableRecording(
                f"node 0 has lost rows after row {offset} that are rolled up in {self._path.name}"
            )
        return rows[begin : begin + max(1, most_bytes // self.unit_bytes)].tobytes()

    def live(self) -> bytes | None:
        """The live half of the header without trailing zeros."""
        with self._path.open("rb") as file:
            file.seek(fmt.LIVE_OFFSET)
            return file.read(fmt.HEADER_SIZE - fmt.LIVE_OFFSET).rstrip(b"\0")

    def is_same(self, offset: int, check: bytes) -> bool:
        """Whether this file has what node 0 has."""
        self._reader.rows()
        if offset > self._reader.count:
            return False
        return check_before(self._path, self.unit_bytes, offset) == check


class LinesSource:
    """Appended lines; a line that is being written is not there yet."""

    unit_bytes = 1
    head = b""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, offset: int, most_bytes: int) -> bytes:
        """Complete lines; of a line that fits no message, a piece."""
        with self._path.open("rb") as file:
            file.seek(offset)
            data = file.read(most_bytes)
        end = data.rfind(b"\n") + 1
        return data if not end and len(data) == most_bytes else data[:end]

    def live(self) -> bytes | None:
        """Lines have none."""
        return None

    def is_same(self, offset: int, check: bytes) -> bool:
        """Whether this file has what node 0 has."""
        if offset > self._path.stat().st_size:
            return False
        return check_before(self._path, 1, offset) == check


class WholeSource:
    """A small file that is replaced as a whole."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> bytes | None:
        """What it holds; None when it is gone or too large to travel."""
        try:
            with self._path.open("rb") as file:
                data = file.read(WHOLE_BYTES + 1)
        except OSError:
            return None
        return data if len(data) <= WHOLE_BYTES else None
