"""Old rows are rolled up: folded into blocks of a file beside the recording, then their space is freed.

    rank-0.123.steps    ->  rank-0.123.rollup
    rank-0.123.device   ->  rank-0.123.device-rollup
    system.gauges       ->  system.gauges-rollup: nothing of old samples is kept but their number

The rollup file is the truth about how far it got: `end_row` of its last block. Its order of work makes a
kill at any moment harmless: a block's body, to disk, its sequence number, to disk, and only then the hole.
So a row is in a block or in the recording; one that is in both (killed before the hole) counts as rolled
up, because every reader starts at `end_row`. The training process knows nothing of this.
"""

from __future__ import annotations

import json
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from traceml.collect.punch import punch
from traceml.collect.rundir import RECORDING
from traceml.errors import say
from traceml.recording import format as fmt
from traceml.recording.fold import DEVICE, GAUGES, STEPS, Fold, latest_of_each_step
from traceml.recording.reader import RecordingReader, UnreadableRecording

try:
    import fcntl
except ImportError:  # Windows: nothing is rolled up there
    fcntl = None  # type: ignore[assignment]

KEEP_ROWS: Final = 100_000
"""Newest rows of a rank that stay as they are: 25 MB."""
HEAD_ROWS: Final = 64
"""First rows that stay as well, though they are in the blocks: warm-up is told from them."""
BLOCK_ROWS: Final = 1_000
BLOCKS_A_RUN: Final = 1_000
"""A block is this part of what is rolled up already, so that the blocks of a long run stay few."""
LEAST_ROW_BYTES: Final = 16
EVERY_S: Final = 10.0
SUFFIXES: Final = {".steps": ".rollup", ".device": ".device-rollup", ".gauges": ".gauges-rollup"}
FOLDS: Final = {".steps": STEPS, ".device": DEVICE, ".gauges": GAUGES}
KEEP_TIMES: Final = {".steps": 1, ".device": 2, ".gauges": 5}
"""Of device times more is kept, so that every step that is kept has its own; of gauges as much as is read."""


def rollup_path(recording: Path) -> Path:
    """Where the blocks of this recording are."""
    return recording.with_name(rollup_name(recording.name))


def rollup_name(recording: str) -> str:
    """The same for a file's name."""
    stem, _, kind = recording.rpartition(".")
    return stem + SUFFIXES[f".{kind}"]


def fold_of(recording: Path) -> Fold:
    """How its rows are folded."""
    return FOLDS[recording.suffix]


def read_blocks(recording: Path) -> NDArray[np.void] | None:
    """The blocks of a recording, None when nothing is rolled up."""
    try:
        reader = RecordingReader(rollup_path(recording))
    except FileNotFoundError:
        return None
    blocks = reader.rows()
    if not len(blocks):
        return None
    fold = fold_of(recording)
    if [tuple(pair) for pair in reader.header["columns"]] != list(fold.columns):
        raise UnreadableRecording(f"{reader.path}: other columns than expected")
    return blocks[list(fold.dtype.names or ())].astype(fold.dtype)


def rolled_up(recording: Path) -> np.void | None:
    """One block of everything that is rolled up of this recording."""
    blocks = read_blocks(recording)
    return fold_of(recording).blocks(blocks) if blocks is not None else None


def rolled_up_rows(recording: Path) -> int:
    """How many leading rows of this recording may be gone."""
    blocks = read_blocks(recording) if recording.suffix in SUFFIXES else None
    return int(blocks["end_row"][-1]) if blocks is not None else 0


class Roller:
    """Rolls up the recordings of one run folder, from time to time."""

    def __init__(
        self,
        run_dir: Path,
        keep_rows: int = KEEP_ROWS,
        every_s: float = EVERY_S,
        safe_rows: Callable[[str], int] | None = None,
    ) -> None:
        """`safe_rows` says how many rows of a file are on another machine too; only those are rolled up."""
        self._folder = run_dir / RECORDING
        self._safe_rows = safe_rows
        self._keep_rows = keep_rows
        self._every_s = every_s
        self._due_s = 0.0
        self._files: dict[str, _RolledFile] = {}
        self._refused: set[str] = set()

    def maybe_roll(self, now_s: float) -> int:
        """Roll up if it is time (`now_s` on any clock that goes forward); returns how many rows were."""
        if now_s < self._due_s or fcntl is None:
            return 0
        self._due_s = now_s + self._every_s
        with os.scandir(self._folder) as entries:
            names = [e.name for e in entries if e.name.endswith(tuple(SUFFIXES))]
        return sum(self._roll(name) for name in names if name not in self._refused)

    def _roll(self, name: str) -> int:
        try:
            known = self._files.get(name)
            if known is None:
                path = self._folder / name
                keep = self._keep_rows * KEEP_TIMES[path.suffix]
                if path.stat().st_size < keep * LEAST_ROW_BYTES:
                    return 0
                known = self._files[name] = _RolledFile(path, keep)
            return known.roll(self._safe_rows(name) if self._safe_rows is not None else None)
        except UnreadableRecording as problem:
            self._refused.add(name)
            say(f"old steps are not rolled up: {problem}")
            return 0


class _RolledFile:
    """One recording and its blocks."""

    def __init__(self, source: Path, keep_rows: int) -> None:
        reader = RecordingReader(source)
        self._source = source
        self._dtype = reader.dtype
        self._identity = reader.header.get("identity")
        self._keep_rows = keep_rows
        self._fold = fold_of(source)
        self._punched = 0
        self._most_rows = 0
        self._can_punch = True

    def roll(self, safe_rows: int | None = None) -> int:
        """Fold what is older than the rows to keep; returns how many rows were folded."""
        room = (os.stat(self._source).st_size - fmt.HEADER_SIZE) // self._dtype.itemsize
        self._most_rows = room if safe_rows is None else min(room, safe_rows)
        if self._most_rows < self._punched + self._keep_rows + BLOCK_ROWS:
            return 0
        with _locked(self._blocks_file()) as blocks_fd:
            if blocks_fd is None:
                return 0  # another monitor is at it
            source_fd = os.open(self._source, os.O_RDWR)
            try:
                return self._roll_locked(source_fd, blocks_fd)
            finally:
                os.close(source_fd)

    def _roll_locked(self, source_fd: int, blocks_fd: int) -> int:
        blocks = RecordingReader(rollup_path(self._source))
        done = blocks.rows()
        before = rolled = int(done["end_row"][-1]) if len(done) else 0
        made: list[np.void] = []
        while (folded := self._next_block(source_fd, rolled)) is not None:
            made.append(folded)
            rolled = int(folded["end_row"])
        if made:
            append_blocks(blocks_fd, np.array(made, dtype=self._fold.dtype), len(done), blocks.dtype)
        if rolled > self._punched and self._can_punch:
            size = self._dtype.itemsize
            # The last page of the hole before was left, because rows to keep began in it.
            begin = max(HEAD_ROWS * size, self._punched * size - mmap.PAGESIZE)
            self._can_punch = punch(source_fd, fmt.HEADER_SIZE + begin, fmt.HEADER_SIZE + rolled * size)
        self._punched = rolled
        return rolled - before

    def _next_block(self, source_fd: int, rolled: int) -> np.void | None:
        """The block that follows the first `rolled` rows; None when the rows after it are not enough."""
        count = min(max(BLOCK_ROWS, rolled // BLOCKS_A_RUN), max(self._keep_rows, BLOCK_ROWS))
        last = rolled + count + self._keep_rows - 1
        if last >= self._most_rows or not self._is_published(source_fd, last):
            return None
        rows = np.empty(count + 1, dtype=self._dtype)
        offset = fmt.HEADER_SIZE + rolled * self._dtype.itemsize
        os.preadv(source_fd, [rows.view(np.uint8).data], offset)
        if (rows["sequence"] != np.arange(rolled + 1, rolled + count + 2)).any():
            raise UnreadableRecording(f"{self._source}: rows are missing after row {rolled}")
        counting = rows[:count]
        if self._fold is STEPS:
            counting = latest_of_each_step(counting, int(rows["step"][count]))
        if not len(counting):
            raise UnreadableRecording(f"{self._source}: the same step again and again")
        return self._fold.rows(counting, rolled + count)

    def _is_published(self, source_fd: int, row: int) -> bool:
        at = fmt.HEADER_SIZE + (row + 1) * self._dtype.itemsize - fmt.SEQUENCE.size
        return os.pread(source_fd, fmt.SEQUENCE.size, at) == fmt.SEQUENCE.pack(row + 1)

    def _blocks_file(self) -> Path:
        """The rollup, made if need be: under another name first, so that it has a sound header or is not."""
        path = rollup_path(self._source)
        if path.exists():
            return path
        columns = self._fold.columns
        row_size = fmt.padded_row_size(fmt.row_struct(columns).size)
        header = {"identity": self._identity, "columns": [list(pair) for pair in columns]}
        text = json.dumps(header).encode()
        check = fmt.checksum(row_size, text)
        head = fmt.PREFIX.pack(fmt.MAGIC, fmt.VERSION, fmt.HEADER_SIZE, row_size, len(text), check) + text
        fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(fd, "wb") as file:
            file.write(head.ljust(fmt.HEADER_SIZE, b"\0"))
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        try:
            os.link(temporary, path)  # unlike a rename this never replaces another monitor's
            _sync_folder(path.parent)
        except FileExistsError:
            pass
        finally:
            os.unlink(temporary)
        return path


def append_blocks(fd: int, made: NDArray[np.void], known: int, dtype: np.dtype[np.void]) -> None:
    """Publish blocks after the first `known`: bodies, then sequence numbers, each on disk before the next."""
    rows = np.zeros(len(made), dtype=dtype)
    for name in made.dtype.names or ():
        rows[name] = made[name]
    at = fmt.HEADER_SIZE + known * dtype.itemsize
    _write_at(fd, rows.tobytes(), at)
    os.fdatasync(fd)
    rows["sequence"] = np.arange(known + 1, known + 1 + len(rows))
    for index in range(len(rows)):
        end = at + (index + 1) * dtype.itemsize
        _write_at(fd, rows[index : index + 1].tobytes()[-fmt.SEQUENCE.size :], end - fmt.SEQUENCE.size)
    os.fdatasync(fd)


def _write_at(fd: int, data: bytes, offset: int) -> None:
    while data:
        done = os.pwrite(fd, data, offset)
        data, offset = data[done:], offset + done


def _sync_folder(folder: Path) -> None:
    """A new file's name is on disk only when its folder is."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def _locked(path: Path) -> Iterator[int | None]:
    """The open file, held by this process alone; None when another one has it."""
    fd = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        yield None
        return
    try:
        yield fd
    finally:
        os.close(fd)
