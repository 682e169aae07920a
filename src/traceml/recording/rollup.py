"""Old rows are rolled up: folded into blocks of a file beside the recording, then their space is freed.

    rank-0.123.steps    ->  rank-0.123.rollup
    rank-0.123.device   ->  rank-0.123.device-rollup
    system.gauges       ->  system.gauges-rollup: of old samples, only their number is kept

`end_row` of the last block says how many rows are rolled up; nothing else does. A kill at any moment is
harmless, because the work has a fixed order: a block's body reaches the disk, then its sequence number, and
only then is the space of the rows freed. So a row is in a block or in the recording. One that is in both
(killed before its space was freed) counts as rolled up, because every reader starts at `end_row`.
The training process takes no part in this.
"""

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from traceml.errors import say
from traceml.recording import layout
from traceml.recording.fold import DEVICE, GAUGES, STEPS, Fold, latest_of_each_step
from traceml.recording.free_space import free_space
from traceml.recording.reader import RecordingReader, UnreadableRecording, is_published
from traceml.recording.writer import write_rows

try:
    import fcntl
except ImportError:  # Windows: nothing is rolled up there
    fcntl = None  # type: ignore[assignment]

KEEP_ROWS: Final = 100_000
"""How many of a rank's newest rows stay as they are."""
HEAD_ROWS: Final = 64
"""The first rows stay as well, although they are in the blocks: warm-up is recognized by them."""
BLOCK_ROWS: Final = 1_000
BLOCKS_PER_RUN: Final = 1_000
"""A block is this part of what is rolled up already, so that even a long run has few blocks."""
LEAST_ROW_BYTES: Final = 16
EVERY_S: Final = 10.0


class _Kind(NamedTuple):
    suffix: str  # of the file of blocks
    fold: Fold
    keep_times: int  # `KEEP_ROWS` times this are kept


KINDS: Final = {
    ".steps": _Kind(".rollup", STEPS, 1),
    ".device": _Kind(".device-rollup", DEVICE, 2),  # more, so that every kept step has its device times
    ".gauges": _Kind(".gauges-rollup", GAUGES, 5),  # as much as a reader holds
}


def rollup_path(recording: Path) -> Path:
    """Where the blocks of this recording are."""
    return recording.with_name(rollup_name(recording.name))


def rollup_name(recording: str) -> str:
    """The file name of the blocks of a recording with this file name."""
    stem, _, kind = recording.rpartition(".")
    return stem + KINDS[f".{kind}"].suffix


def read_blocks(recording: Path) -> NDArray[np.void] | None:
    """The blocks of a recording, None when nothing is rolled up."""
    try:
        reader = RecordingReader(rollup_path(recording))
    except FileNotFoundError:
        return None
    blocks = reader.rows()
    if not len(blocks):
        return None
    fold = KINDS[recording.suffix].fold
    if reader.header["columns"] != fold.columns:
        raise UnreadableRecording(f"{reader.path}: other columns than expected")
    return blocks[list(fold.dtype.names or ())].astype(fold.dtype)


def rolled_up(recording: Path) -> np.void | None:
    """One block of everything that is rolled up of this recording."""
    blocks = read_blocks(recording)
    return KINDS[recording.suffix].fold.blocks(blocks) if blocks is not None else None


def rolled_up_rows(recording: Path) -> int:
    """How many leading rows of this recording may be gone."""
    block = rolled_up(recording) if recording.suffix in KINDS else None
    return int(block["end_row"]) if block is not None else 0


class Roller:
    """Rolls up the recordings of one run folder, from time to time."""

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
        self._files: dict[str, _RolledFile] = {}
        self._refused: set[str] = set()
        self._ended = ended

    def maybe_roll(self, now_s: float) -> int:
        """Roll up if it is time (`now_s` on any clock that goes forward); returns how many rows were."""
        if now_s < self._due_s or fcntl is None:
            return 0
        self._due_s = now_s + self._every_s
        suffixes = tuple(KINDS)
        every = os.listdir(self._folder)
        names = [name for name in every if name not in self._refused and name.endswith(suffixes)]
        over = [n for n in names if n.rpartition(".")[0] + ".steps" in self._ended]
        rolled = sum(self._roll(name) for name in names)
        if self._safe_rows is None:
            self._refused.update(over)
            for name in over:
                self._files.pop(name, None)
        return rolled

    def _roll(self, name: str) -> int:
        path = self._folder / name
        keep = self._keep_rows * KINDS[path.suffix].keep_times
        try:
            if name not in self._files:
                if path.stat().st_size < keep * LEAST_ROW_BYTES:
                    return 0
                self._files[name] = _RolledFile(path, keep)
            return self._files[name].roll(self._safe_rows(name) if self._safe_rows is not None else None)
        except UnreadableRecording as problem:
            self._refused.add(name)
            say(f"old steps are not rolled up: {problem}")
            return 0


class _RolledFile:
    """One recording and its blocks."""

    def __init__(self, source: Path, keep_rows: int) -> None:
        self._source = source
        reader = RecordingReader(source)
        self._dtype = reader.dtype
        self._identity = reader.header.get("identity")
        self._keep_rows = keep_rows
        self._fold = KINDS[source.suffix].fold
        self._rolled = 0

    def roll(self, safe_rows: int | None) -> int:
        """Fold what is older than the rows to keep; returns how many rows were folded."""
        most_rows = (os.stat(self._source).st_size - layout.HEADER_SIZE) // self._dtype.itemsize
        if safe_rows is not None:
            most_rows = min(most_rows, safe_rows)
        if most_rows < self._rolled + self._keep_rows + BLOCK_ROWS:
            return 0
        with _locked(self._blocks_file()) as blocks_fd, self._source.open("r+b", buffering=0) as source:
            if blocks_fd is None:
                return 0  # another monitor is at it
            return self._roll_locked(source.fileno(), blocks_fd, most_rows)

    def _roll_locked(self, source_fd: int, blocks_fd: int, most_rows: int) -> int:
        blocks = RecordingReader(rollup_path(self._source))
        done = blocks.rows()
        before = rolled = int(done["end_row"][-1]) if len(done) else 0
        made: list[np.void] = []
        while (block := self._next_block(source_fd, rolled, most_rows)) is not None:
            made.append(block)
            rolled = int(block["end_row"])
        if made:
            append_blocks(blocks_fd, np.array(made, dtype=self._fold.dtype), len(done), blocks.dtype)
        # From the start each time: a killed monitor may have left rows, and freeing again costs nothing.
        first, end = (layout.HEADER_SIZE + rows * self._dtype.itemsize for rows in (HEAD_ROWS, rolled))
        free_space(source_fd, first, end)
        self._rolled = rolled
        return rolled - before

    def _next_block(self, source_fd: int, rolled: int, most_rows: int) -> np.void | None:
        """The block that follows the first `rolled` rows; None when too few rows come after it."""
        count = min(max(BLOCK_ROWS, rolled // BLOCKS_PER_RUN), max(self._keep_rows, BLOCK_ROWS))
        last = rolled + count + self._keep_rows - 1
        if last >= most_rows or not is_published(source_fd, last, self._dtype.itemsize):
            return None
        rows = np.empty(count + 1, dtype=self._dtype)
        os.preadv(source_fd, [rows.view(np.uint8).data], layout.HEADER_SIZE + rolled * self._dtype.itemsize)
        if (rows["sequence"] != np.arange(rolled + 1, rolled + count + 2)).any():
            raise UnreadableRecording(f"{self._source}: rows are missing after row {rolled}")
        counting = rows[:count]
        if self._fold is STEPS:
            counting = latest_of_each_step(counting, int(rows["step"][count]))
        if not len(counting):
            raise UnreadableRecording(f"{self._source}: one step has more than {count} rows")
        return self._fold.rows(counting, rolled + count)

    def _blocks_file(self) -> Path:
        """The file of blocks. It is made under another name first, so that it never has half a header."""
        path = rollup_path(self._source)
        if path.exists():
            return path
        temporary = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)  # the user's umask applies
        with os.fdopen(fd, "wb") as file:
            file.write(layout.header_bytes(self._fold.columns, {"identity": self._identity}))
            file.flush()
            os.fsync(fd)
        try:
            with suppress(FileExistsError):
                os.link(temporary, path)  # unlike a rename this never replaces another monitor's
        finally:
            os.unlink(temporary)
        _sync_folder(path.parent)
        return path


def append_blocks(fd: int, made: NDArray[np.void], known: int, dtype: np.dtype[np.void]) -> None:
    """Publish blocks after the first `known`."""
    rows = np.zeros(len(made), dtype=dtype)
    for name in made.dtype.names or ():
        rows[name] = made[name]
    rows["sequence"] = np.arange(known + 1, known + 1 + len(rows))
    at = layout.HEADER_SIZE + known * dtype.itemsize
    write_rows(fd, rows.tobytes(), at, dtype.itemsize, durable=True)


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
    with path.open("r+b", buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield file.fileno()
