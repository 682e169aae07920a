"""Every row of one recording, a piece at a time: for exports, whose memory must not grow with the run."""

from collections.abc import Iterator
from pathlib import Path

from traceml.recording.fold import latest_of_each_step
from traceml.recording.reader import RecordingReader, Rows
from traceml.recording.rollup import rolled_up_rows
from traceml.recording.rows_tail import PIECE_ROWS


class RecordingPieces(RecordingReader):
    """A recording of a run that has ended, crashed or is going on: the rows that are there now."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, rolled_up_rows(path))
        self.first = self.count
        """Rows before this one are rolled up."""

    def pieces(self, last: int | None = None) -> Iterator[Rows]:
        """The rows, without superseded ones; of very many only the `last`."""
        end = self.look()
        at = self.first if last is None else max(self.first, end - last)
        has_steps = "step" in (self.dtype.names or ())
        while at < end:
            rows = self.rows(at, min(PIECE_ROWS, end - at) + 1)
            if not len(rows):
                rolled = rolled_up_rows(self.path)
                if rolled <= at:
                    return  # damaged from here on
                at = rolled  # rolled up while we read
                continue
            body, after = rows[: end - at][:PIECE_ROWS], rows[PIECE_ROWS:]
            at += len(body)
            yield (
                latest_of_each_step(body, int(after["step"][0]) if len(after) else None)
                if has_steps
                else body
            )
