"""The recording: whatever happens to the file or its writer, readers get an exact prefix of the rows."""

from __future__ import annotations

import errno
import json
import mmap
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz import examples
from traceml.recording import layout
from traceml.recording import writer as writing
from traceml.recording.reader import Live, RecordingReader, UnreadableRecording, names_of
from traceml.recording.writer import CHUNK_BYTES, RecordingWriter
from traceml.schema import catalog as c

COLUMNS = (("step", "q"), ("share", "d"), ("count", "I"))
ROW_SIZE = layout.padded_row_size(layout.row_struct(COLUMNS).size)
ROWS = 300
ONE_LINE = r"\A[^\n]+\Z"


def values(number: int) -> tuple[int, float, int]:
    """What row `number` holds."""
    return number, number / 7, number % 1000


def state(path: Path) -> int:
    """What the writer of this recording says about itself."""
    return Live.parse(path.read_bytes()[layout.LIVE_OFFSET :]).state


def record(path: Path, rows: int = ROWS) -> Path:
    """A recording of `rows` rows, closed."""
    writer = RecordingWriter(str(path), COLUMNS, {"kind": "test"})
    for number in range(1, rows + 1):
        writer.append(*values(number))
    writer.close()
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a good recording, without the chunk's unused rest."""
    data = record(tmp_path_factory.mktemp("recording") / "good").read_bytes()
    return data[: layout.HEADER_SIZE + (ROWS + 3) * ROW_SIZE]


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """Where a test puts its damaged copy."""
    return tmp_path / "damaged"


def assert_prefix(path: Path, appended: int = ROWS) -> int:
    """What can be read are rows 1..n, exactly as appended; returns n."""
    rows = RecordingReader(path).rows()
    numbers = np.arange(1, len(rows) + 1)
    assert len(rows) <= appended
    assert (rows["step"] == numbers).all()
    assert (rows["share"] == numbers / 7).all()
    assert (rows["count"] == numbers % 1000).all()
    return len(rows)


def try_reading(path: Path) -> tuple[np.ndarray, str]:
    """The rows, or none and the one line that says why."""
    try:
        return RecordingReader(path).rows(), ""
    except UnreadableRecording as problem:
        return np.zeros(0), str(problem)


def test_an_appended_row_can_be_read_at_once(tmp_path: Path) -> None:
    """A row is on record when `append` returns, without a flush or close."""
    writer = RecordingWriter(str(tmp_path / "rows"), COLUMNS, {"kind": "test", "identity": {"rank": 3}})
    reader = RecordingReader(tmp_path / "rows")
    assert len(reader.rows()) == 0
    for number in range(1, 50):
        writer.append(*values(number))
        assert len(reader.rows()) == number
    assert reader.header["identity"] == {"rank": 3}
    assert assert_prefix(tmp_path / "rows") == 49


ALL_COLUMNS = (c.STEP_COLUMNS, c.DEVICE_COLUMNS, c.SYSTEM_COLUMNS, c.PROCESS_COLUMNS)
NINE_PHASES = (*c.STEP_COLUMNS, ("ninth", "q"))


@pytest.mark.parametrize("columns", [*ALL_COLUMNS, NINE_PHASES, COLUMNS])
def test_growing_by_chunks_loses_no_row(tmp_path: Path, columns: layout.Columns) -> None:
    """Rows of any size, even where a chunk ends within a page: none is lost, cut or repeated.

    This holds for a reader that was there all along too.
    """
    writer = RecordingWriter(str(tmp_path / "rows"), columns, {})
    watching = RecordingReader(tmp_path / "rows")
    count = 3 * CHUNK_BYTES // writer.row_size + 5
    for number in range(1, count + 1):
        writer.append(*[number] * len(columns))
        if number % 1000 == 0:
            assert len(watching.rows()) == number
    for rows in (watching.rows(), RecordingReader(tmp_path / "rows").rows()):
        assert all((rows[name] == np.arange(1, count + 1)).all() for name, _ in columns)


def test_a_machine_with_large_pages_records_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bytes
) -> None:
    """Where mappings start at multiples of 64 KiB (some ARM machines) the file has the same bytes."""
    monkeypatch.setattr(mmap, "ALLOCATIONGRANULARITY", 65_536)
    assert record(tmp_path / "rows").read_bytes()[: len(whole)] == whole


@pytest.mark.parametrize("columns", ALL_COLUMNS)
def test_a_row_is_small_and_its_sequence_number_within_one_page(columns: layout.Columns) -> None:
    """At most 256 bytes per step, and a multiple of 8, so that a sequence number is written in one piece."""
    size = layout.padded_row_size(layout.row_struct(columns).size)
    assert size <= 256
    assert size % layout.SEQUENCE.size == 0


@given(cut=st.integers(0, layout.HEADER_SIZE + (ROWS + 3) * ROW_SIZE))
@examples(200)
def test_a_file_cut_anywhere_still_gives_a_prefix(whole: bytes, damaged: Path, cut: int) -> None:
    """A cut inside the header gives one clear line; a cut elsewhere gives every complete row."""
    damaged.write_bytes(whole[:cut])
    if cut < layout.HEADER_SIZE:
        with pytest.raises(UnreadableRecording, match=ONE_LINE):
            RecordingReader(damaged)
    else:
        assert assert_prefix(damaged) == min(ROWS, (cut - layout.HEADER_SIZE) // ROW_SIZE)


@given(start=st.integers(layout.HEADER_SIZE, layout.HEADER_SIZE + (ROWS + 3) * ROW_SIZE))
@examples(200)
def test_a_file_that_lost_its_end_still_gives_a_prefix(whole: bytes, damaged: Path, start: int) -> None:
    """Pages that never reached the disk read as zeros: only complete rows before them are read."""
    damaged.write_bytes(whole[:start] + bytes(len(whole) - start))
    full, torn = divmod(start - layout.HEADER_SIZE, ROW_SIZE)
    number = full + 1
    survives = number.to_bytes(8, "little")[: max(0, torn - (ROW_SIZE - 8))]
    expected = full + (int.from_bytes(survives, "little") == number)
    assert assert_prefix(damaged) == min(expected, ROWS)


@given(row=st.integers(0, ROWS - 1), torn=st.binary(min_size=8, max_size=8))
@examples(100)
def test_a_row_without_its_number_ends_the_prefix(whole: bytes, damaged: Path, row: int, torn: bytes) -> None:
    """A row with another sequence number than expected was never published, nor was any after it."""
    at = layout.HEADER_SIZE + (row + 1) * ROW_SIZE - 8
    damaged.write_bytes(whole[:at] + torn + whole[at + 8 :])
    expected = ROWS if int.from_bytes(torn, "little", signed=True) == row + 1 else row
    assert assert_prefix(damaged) == expected


def names_in(path: Path, slots: int) -> list[str | None]:
    """The names of the user columns of a file."""
    return names_of(path.read_bytes()[layout.LIVE_NAMES :], slots)


def header_bytes(data: bytes) -> int:
    """How many bytes at the start give the rows their meaning."""
    return layout.PREFIX.size + int(layout.PREFIX.unpack_from(data)[4])


FLIP = st.tuples(st.integers(0, 10**6), st.integers(1, 255))


@given(flips=st.lists(FLIP, min_size=1, max_size=6, unique_by=lambda flip: flip[0]))
@examples(400)
def test_a_damaged_header_gives_one_clear_line(
    whole: bytes, damaged: Path, flips: list[tuple[int, int]]
) -> None:
    """No flipped bit of the header goes unnoticed: rows are never read under a wrong name, type or rank."""
    data, size = bytearray(whole), header_bytes(whole)
    for at, mask in flips:
        data[at % size] ^= mask
    if data[:size] == whole[:size]:
        return  # two flips of one byte undid each other
    damaged.write_bytes(data)
    with pytest.raises(UnreadableRecording, match=ONE_LINE) as problem:
        RecordingReader(damaged)
    assert str(damaged) in str(problem.value)


@given(flips=st.lists(FLIP, min_size=1, max_size=6))
@examples(100)
def test_damage_between_header_and_rows_costs_no_row(
    whole: bytes, damaged: Path, flips: list[tuple[int, int]]
) -> None:
    """The live area and the padding may hold anything: every row is read, names are text or None."""
    data, start = bytearray(whole), header_bytes(whole)
    for at, mask in flips:
        data[start + at % (layout.HEADER_SIZE - start)] ^= mask
    damaged.write_bytes(data)
    assert assert_prefix(damaged) == ROWS
    names = names_in(damaged, c.USER_SLOTS)
    assert all(name is None or isinstance(name, str) for name in names)


@given(data=st.binary(max_size=layout.HEADER_SIZE + 4096))
@examples(100)
def test_any_other_file_gives_one_clear_line(damaged: Path, data: bytes) -> None:
    """A file that is not a recording is reported as such."""
    damaged.write_bytes(data)
    with pytest.raises(UnreadableRecording, match=ONE_LINE):
        RecordingReader(damaged)


@given(columns=st.recursive(st.none() | st.integers() | st.text(max_size=3), st.lists, max_leaves=8))
@examples(80)
def test_a_column_list_of_any_shape_gives_one_clear_line(damaged: Path, columns: object) -> None:
    """A header whose columns are nonsense is refused without a traceback."""
    text = json.dumps({"columns": columns}).encode()
    sizes = (layout.HEADER_SIZE, 64, len(text), layout.checksum(64, text))
    head = layout.PREFIX.pack(layout.MAGIC, layout.VERSION, *sizes) + text
    damaged.write_bytes(head.ljust(layout.HEADER_SIZE, b"\0") + bytes(640))
    rows, problem = try_reading(damaged)
    assert len(rows) == 0
    assert problem.count("\n") == 0


def test_a_newer_format_is_reported_with_its_version(whole: bytes, damaged: Path) -> None:
    """The message names both versions, so that users know to upgrade."""
    damaged.write_bytes(whole[:8] + (7).to_bytes(4, "little") + whole[12:])
    with pytest.raises(UnreadableRecording, match=r"version 7, this TraceML reads 1"):
        RecordingReader(damaged)


def test_a_header_that_was_never_finished_is_not_read(tmp_path: Path) -> None:
    """The magic is written last: a writer killed before that leaves a file that is refused."""
    path = record(tmp_path / "rows")
    data = path.read_bytes()
    (tmp_path / "half").write_bytes(bytes(len(layout.MAGIC)) + data[len(layout.MAGIC) :])
    with pytest.raises(UnreadableRecording, match="not a TraceML recording"):
        RecordingReader(tmp_path / "half")


WRITER = """
import sys
from traceml.recording.writer import RecordingWriter
writer = RecordingWriter(sys.argv[1], (("step", "q"), ("share", "d"), ("count", "I")), {})
number = 0
while True:
    number += 1
    writer.append(number, number / 7, number % 1000)
    if number % 64 == 0:
        sys.stdout.write(f"{number}\\n")
        sys.stdout.flush()
"""


@pytest.mark.parametrize("reports", [1, 2, 7, 30, 111, 250])
def test_a_killed_writer_loses_no_appended_row(tmp_path: Path, reports: int) -> None:
    """SIGKILL at any moment leaves every row that the writer had reported, and no incomplete row."""
    path = tmp_path / "rows"
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    ) as child:
        assert child.stdout is not None
        for _ in range(reports):
            child.stdout.readline()
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read().split()
        child.wait()
    known = max([64 * reports, *(int(word) for word in rest[:-1])])
    assert child.returncode == -signal.SIGKILL
    assert assert_prefix(path, appended=10**9) >= known


def test_a_writer_killed_at_its_start_leaves_a_prefix_or_one_line(tmp_path: Path) -> None:
    """Killed while it creates the file: no recording, one clear line, or readable rows."""
    for attempt in range(8):
        path = tmp_path / f"rows-{attempt}"
        with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.DEVNULL) as child:
            while not path.exists():
                assert child.poll() is None
            child.kill()
        rows, problem = try_reading(path)
        assert problem.count("\n") == 0
        if len(rows):
            assert_prefix(path, appended=10**9)


FULL_DISK = """
import resource, signal, sys
from traceml.recording.writer import CHUNK_BYTES, RecordingWriter
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
if sys.argv[2] == "limited":
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * CHUNK_BYTES + 8192,) * 2)
writer = RecordingWriter(sys.argv[1], (("step", "q"), ("share", "d"), ("count", "I")), {})
errors = []
for number in range(1, 200_000):
    try:
        writer.append(number, number / 7, number % 1000)
    except OSError as problem:
        errors.append(problem.errno)
    if errors and number > writer.count + 1000:
        break
writer.close()
print(writer.count, *errors)
"""


def fill(path: Path, how: str) -> subprocess.CompletedProcess[str]:
    """Write rows until the disk is full: a file size limit, or a real file system of 1 MB."""
    if how == "limited":
        return run_python(FULL_DISK, str(path), how)
    # In its own mount namespace, so that nothing stays mounted whatever happens to the test.
    disk = path.with_name("disk")
    disk.mkdir()
    script = 'mount -t tmpfs -o size=1m none "$1" && "$2" -c "$3" "$1/rows" disk && cp "$1/rows" "$4"'
    words = ["unshare", "--mount", "sh", "-c", script, "-", str(disk), sys.executable, FULL_DISK, str(path)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )


def may_mount(folder: Path) -> bool:
    """Whether this user may mount a small file system here."""
    try_it = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", str(folder)]
    return shutil.which("unshare") is not None and subprocess.run(try_it, check=False).returncode == 0


@pytest.mark.parametrize("how", ["limited", "disk"])
def test_a_full_disk_stops_the_writer_with_one_error(tmp_path: Path, how: str) -> None:
    """One OSError and no signal; earlier rows stay, and the state says that later ones are lost."""
    if how == "disk" and not may_mount(tmp_path):
        how = "limited"  # the same promise, as far as it can be tested without the right to mount
    path = tmp_path / "rows"
    done = fill(path, how)
    assert done.returncode == 0, done.stderr
    count, *errors = (int(word) for word in done.stdout.split())
    assert errors == [errno.EFBIG if how == "limited" else errno.ENOSPC]
    assert count >= CHUNK_BYTES // ROW_SIZE
    assert assert_prefix(path, appended=count) == count
    assert state(path) == layout.STATE_LOST


def test_a_disk_that_is_full_from_the_start_raises_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the first chunk cannot be reserved, opening raises the OSError."""
    real = writing.reserve

    def reserve(fd: int, offset: int, length: int) -> None:
        if offset:
            raise OSError(errno.ENOSPC, "no space left on device")
        real(fd, offset, length)

    monkeypatch.setattr(writing, "reserve", reserve)
    with pytest.raises(OSError, match="no space"):
        RecordingWriter(str(tmp_path / "rows"), COLUMNS, {})
    assert assert_prefix(tmp_path / "rows") == 0
    assert state(tmp_path / "rows") == layout.STATE_LOST


def test_space_is_reserved_before_it_is_mapped(tmp_path: Path) -> None:
    """Every byte that rows are written to exists on disk already, so a full disk cannot raise SIGBUS."""
    writer = RecordingWriter(str(tmp_path / "rows"), COLUMNS, {})
    for number in range(1, CHUNK_BYTES // ROW_SIZE + 2):
        writer.append(*values(number))
        room = os.stat(tmp_path / "rows").st_blocks * 512
        assert room >= layout.HEADER_SIZE + number * ROW_SIZE
    assert room >= layout.HEADER_SIZE + CHUNK_BYTES


def test_a_recording_is_never_written_over(tmp_path: Path) -> None:
    """An existing path is refused: two processes can never share a file of rows."""
    record(tmp_path / "rows")
    with pytest.raises(FileExistsError):
        RecordingWriter(str(tmp_path / "rows"), COLUMNS, {})
    assert assert_prefix(tmp_path / "rows") == ROWS


def test_a_header_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    """A header larger than its page is a programming error, and leaves no file."""
    with pytest.raises(ValueError, match="does not fit"):
        RecordingWriter(str(tmp_path / "rows"), COLUMNS, {"more": "x" * 5000})
    assert not (tmp_path / "rows").exists()


def test_names_of_user_columns(tmp_path: Path) -> None:
    """User phase names are read as given, cut to what fits between characters; unused ones are None."""
    writer = RecordingWriter(str(tmp_path / "rows"), COLUMNS, {})
    writer.set_name(0, "augment")
    writer.set_name(2, "ü" * 60)
    names = names_in(tmp_path / "rows", 4)
    assert names == ["augment", None, "ü" * 31, None]


def test_a_name_replaces_a_longer_one(tmp_path: Path) -> None:
    """A column renamed to something shorter shows the new name only."""
    writer = RecordingWriter(str(tmp_path / "rows"), COLUMNS, {})
    writer.set_name(6, "a rather long name of a phase")
    writer.set_name(6, "other phases")
    assert names_in(tmp_path / "rows", 7)[6] == "other phases"


def test_the_state_says_how_the_writer_ended(tmp_path: Path) -> None:
    """Running until it is closed, then closed."""
    writer = RecordingWriter(str(tmp_path / "rows"), COLUMNS, {})
    assert state(tmp_path / "rows") == layout.STATE_RUNNING
    writer.close()
    assert state(tmp_path / "rows") == layout.STATE_CLOSED
