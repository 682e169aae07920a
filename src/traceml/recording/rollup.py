"""Old rows are rolled up: folded into one block in a file beside the recording, then their space is freed.

    rank-0.123.steps    ->  rank-0.123.rollup
    rank-0.123.device   ->  rank-0.123.device-rollup: of old device times, only their number is kept
    system.gauges       ->  system.gauges-rollup: the same of old samples

`end_row` of the block says how many rows are rolled up; nothing else does. A kill at any moment is harmless,
because the new block is on the disk, in place of the old one, before the space of the rows is freed. So a row
is in the block or in the recording. One that is in both (killed before its space was freed) counts as rolled
up, because every reader starts at `end_row`. The training process takes no part in this.
"""

import ctypes
import errno
import mmap
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from traceml.errors import say
from traceml.files import write_atomic
from traceml.recording import layout
from traceml.recording.fold import DROPPED, STEPS, Fold, latest_of_each_step
from traceml.recording.reader import RecordingReader, UnreadableRecording

KEEP_ROWS: Final = 100_000
"""How many of a rank's newest rows stay as they are."""
HEAD_ROWS: Final = 64
"""The first rows stay as well, although they are in the block: warm-up is recognized by them."""
ROWS_AT_ONCE: Final = 1_000
LEAST_ROW_BYTES: Final = 16
EVERY_S: Final = 10.0
_KEEP_SIZE_AND_PUNCH_HOLE: Final = 0x01 | 0x02  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
_NOT_SUPPORTED: Final = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM, errno.ETXTBSY)


class _Kind(NamedTuple):
    suffix: str  # of the file with the block
    fold: Fold
    keep_times: int  # `KEEP_ROWS` times this are kept


KINDS: Final = {
    ".steps": _Kind(".rollup", STEPS, 1),
    ".device": _Kind(".device-rollup", DROPPED, 2),  # more, so that every kept step has its device times
    ".gauges": _Kind(".gauges-rollup", DROPPED, 5),  # as much as a reader holds
}


def rollup_path(recording: str | Path) -> Path:
    """Where the block of this recording is."""
    stem, suffix = os.path.splitext(recording)
    return Path(stem + KINDS[suffix].suffix)


def rolled_up(recording: str | Path) -> np.void | None:
    """One block of everything that is rolled up of this recording."""
    try:
        reader = RecordingReader(rollup_path(recording))
    except FileNotFoundError:
        return None
    fold, blocks = KINDS[os.path.splitext(recording)[1]].fold, reader.rows()
    if not len(blocks):
        return None
    if not set(fold.columns) <= set(reader.header["columns"]):
        raise UnreadableRecording(f"{reader.path}: other columns than expected")
    return fold.blocks(blocks[list(fold.dtype.names or ())].astype(fold.dtype))


def rolled_up_rows(recording: str | Path) -> int:
    """How many leading rows of this recording may be gone."""
    block = rolled_up(recording)
    return int(block["end_row"]) if block is not None else 0


class Roller:
    """Rolls up the recordings of one run folder, from time to time. A folder has one roller."""

    def __init__(
        self,
        run_dir: Path,
        keep_rows: int = KEEP_ROWS,
        every_s: float = EVERY_S,
        safe_rows: Callable[[str], int] | None = None,
        ended: Collection[str] = (),
    ) -> None:
        """`safe_rows` says how many rows of a file are on another machine too; only those are rolled up.

        `ended` has the step files of processes that have ended: their files are looked at once more.
        """
        self._folder = run_dir / layout.FOLDER
        self._safe_rows = safe_rows
        self._keep_rows = keep_rows
        self._every_s = every_s
        self._due_s = 0.0
        self._waits_for: dict[str, int] = {}  # the size from which a file has something to roll up
        self._refused: set[str] = set()
        self._ended = ended

    def maybe_roll(self, now_s: float) -> int:
        """Roll up if it is time (`now_s` on any clock that goes forward); returns how many rows were."""
        if now_s < self._due_s or os.name != "posix":
            return 0
        self._due_s = now_s + self._every_s
        every = os.listdir(self._folder)
        names = [name for name in every if name not in self._refused and name.endswith(tuple(KINDS))]
        over = [n for n in names if n.rpartition(".")[0] + ".steps" in self._ended]
        rolled = 0
        for name in names:
            try:
                rolled += self._roll(name)
            except UnreadableRecording as problem:
                self._refused.add(name)
                say(f"old steps are not rolled up: {problem}")
        if self._safe_rows is None:
            self._refused.update(over)
        return rolled

    def _roll(self, name: str) -> int:
        path = self._folder / name
        keep = self._keep_rows * KINDS[path.suffix].keep_times
        if path.stat().st_size < self._waits_for.get(name, keep * LEAST_ROW_BYTES):
            return 0
        block = rolled_up(path)
        before = int(block["end_row"]) if block is not None else 0
        reader = RecordingReader(path, before)
        most_rows = reader.look()
        if self._safe_rows is not None:
            most_rows = min(most_rows, self._safe_rows(name))
        end = before + max(0, most_rows - keep - before) // ROWS_AT_ONCE * ROWS_AT_ONCE
        if end > before:
            _write_block(reader, path, block, before, end)
        # From the start each time: a killed monitor may have left rows, and freeing again costs nothing.
        freed = (layout.HEADER_SIZE + rows * reader.row_size for rows in (HEAD_ROWS, end))
        with path.open("r+b", buffering=0) as source:
            free_space(source.fileno(), *freed)
        self._waits_for[name] = layout.HEADER_SIZE + (end + keep + ROWS_AT_ONCE) * reader.row_size
        return end - before


def _write_block(reader: RecordingReader, path: Path, block: np.void | None, begin: int, end: int) -> None:
    """Put a block that has these rows too in place of the old one."""
    fold = KINDS[path.suffix].fold
    for first in range(begin, end, ROWS_AT_ONCE):
        rows = reader.copied(first, ROWS_AT_ONCE + 1)
        if len(rows) <= ROWS_AT_ONCE:
            raise UnreadableRecording(f"{path}: rows are missing after row {first}")
        old = rows[:ROWS_AT_ONCE]
        old = latest_of_each_step(old, int(rows["step"][-1])) if fold is STEPS else old
        if not len(old):
            raise UnreadableRecording(f"{path}: one step has more than {ROWS_AT_ONCE} rows")
        more = fold.rows(old, first + ROWS_AT_ONCE)
        block = more if block is None else fold.blocks(block, more)
    assert block is not None
    head = layout.header_bytes(fold.columns, {"identity": reader.header.get("identity")})
    write_atomic(rollup_path(path), head + block.tobytes() + layout.SEQUENCE.pack(1))
    folder = os.open(path.parent, os.O_RDONLY)  # a new file's name is on disk only when its folder is
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _find_fallocate() -> Any:
    try:
        found = ctypes.CDLL(None, use_errno=True).fallocate
    except (OSError, AttributeError, TypeError):
        return None  # not Linux
    found.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return found if ctypes.sizeof(ctypes.c_long) == 8 else None  # offsets are 32 bits wide on small systems


_fallocate: Final = _find_fallocate()


def free_space(fd: int, begin: int, end: int) -> None:
    """Give the whole pages between these offsets back to the disk; the file keeps its size and reads as zeros
    there. Where the system or the disk cannot do it, nothing happens."""
    begin, end = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if end <= begin or _fallocate is None:
        return
    failed = _fallocate(fd, _KEEP_SIZE_AND_PUNCH_HOLE, begin, end - begin) != 0
    if failed and (problem := ctypes.get_errno()) not in _NOT_SUPPORTED:
        raise OSError(problem, os.strerror(problem))
