"""Node 0's disk: prefixes only, no unfinished files, and room is left."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from relay_nodes import COLUMNS, Rank, make_run, steps

from traceml.monitor.relay.protocol import Piece, Status
from traceml.monitor.relay.store import Limits, NodeStore, digest_before
from traceml.recording import layout
from traceml.recording.reader import RecordingReader

NAME, LANDED = "rank-4.42.steps", "rank-4.node1.42.steps"


def a_recording(place: Path, count: int) -> bytes:
    """A rank's recording: its header and rows of 32 bytes."""
    rank = Rank(make_run(place), 4)
    rank.append(count)
    size = layout.padded_row_size(layout.row_struct(COLUMNS).size)
    return Path(rank.writer.path).read_bytes()[: layout.HEADER_SIZE + count * size]


def opened(node0: Path, data: bytes, name: str = NAME) -> NodeStore:
    """A store that has these bytes of a file."""
    store = NodeStore(node0 / "recording", 1, Limits())
    assert store.take(Piece(name)).offset == 0
    assert store.take(Piece(name, 0, data=data)).offset == len(data)
    return store


def test_a_reader_never_sees_a_torn_row(node0: Path, tmp_path: Path) -> None:
    """While rows are stored, a reader in another thread sees complete rows only."""
    data = a_recording(tmp_path / "source", 60_000)
    store = opened(node0, data[: layout.HEADER_SIZE])
    torn: list[int] = []
    done = threading.Event()

    def read() -> None:
        reader = RecordingReader(node0 / "recording" / LANDED)
        while not done.is_set():
            seen = reader.rows()
            if (seen["value"] != 7 * np.arange(len(seen))).any():
                torn.append(len(seen))

    reading = threading.Thread(target=read)
    reading.start()
    for start in range(layout.HEADER_SIZE, len(data), 32_500):
        store.take(Piece(NAME, start, data=data[start : start + 32_500]))
    done.set()
    reading.join()
    assert not torn
    assert steps(node0, LANDED) == list(range(60_000))


def test_a_write_that_stops_half_way(node0: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fails in the middle of a write leaves a prefix; the rest is taken later, nothing twice."""
    recording = a_recording(tmp_path / "source", 100)
    lines = b"a line\n" * 400
    store = opened(node0, recording[: layout.HEADER_SIZE])
    write = os.pwrite
    seen: list[int] = []
    for name, data in ((NAME, recording), ("rank-4.42.events.jsonl", lines)):
        offset = store.take(Piece(name)).offset
        for good_bytes in (0, 40, 1000, 3200, 3240, 3500, 40):
            left = [good_bytes]

            def tight(fd: int, data: memoryview, offset: int, left: list[int] = left) -> int:
                if not left[0]:
                    raise OSError(errno.ENOSPC, "No space left on device")
                taken = min(left[0], len(data))
                left[0] -= taken
                return write(fd, data[:taken], offset)

            monkeypatch.setattr(os, "pwrite", tight)
            state = store.take(Piece(name, offset, data=data[offset:]))
            monkeypatch.setattr(os, "pwrite", write)
            fits = good_bytes >= len(data[offset:])
            assert state.status is (Status.OK if fits else Status.LATER)
            before, seen = seen, steps(node0, LANDED)
            assert seen == list(range(len(seen)))
            assert len(seen) >= len(before), "rows that readers saw are gone"
            offset = store.take(Piece(name)).offset
        assert store.take(Piece(name, offset, data=data[offset:])).offset == len(data)
    assert steps(node0, LANDED) == list(range(100))
    assert (node0 / "recording" / "rank-4.node1.42.events.jsonl").read_bytes() == lines


def test_room_is_left_on_the_disk(node0: Path, tmp_path: Path) -> None:
    """When node 0's disk is nearly full, nothing is stored and the node is asked to try later."""
    data = a_recording(tmp_path / "source", 10)
    opened(node0, data[: layout.HEADER_SIZE])
    before = {p.name: p.read_bytes() for p in (node0 / "recording").iterdir()}
    store = NodeStore(node0 / "recording", 1, Limits(keep_free_bytes=2**60))
    assert store.take(Piece(NAME)).offset == layout.HEADER_SIZE
    assert store.take(Piece("rank-4.43.steps")).offset == 0
    for piece in (
        Piece(NAME, layout.HEADER_SIZE, data=data[layout.HEADER_SIZE :]),
        Piece("rank-4.43.steps", 0, data=data),
        Piece("seen-torch"),
    ):
        assert store.take(piece).status is Status.LATER
    assert {p.name: p.read_bytes() for p in (node0 / "recording").iterdir()} == before


def test_a_file_that_vanishes_on_node0_is_not_continued(node0: Path, tmp_path: Path) -> None:
    """If somebody removes node 0's copy, the rest is not written after a hole: all of it is sent again."""
    data = a_recording(tmp_path / "source", 10)
    store = opened(node0, data[: layout.HEADER_SIZE])
    (node0 / "recording" / LANDED).unlink()
    rest = Piece(NAME, layout.HEADER_SIZE, data=data[layout.HEADER_SIZE :])
    assert store.take(rest).offset == 0
    assert store.take(Piece(NAME)).offset == 0
    assert list((node0 / "recording").iterdir()) == []


def test_a_copy_that_differs_is_seen(node0: Path, tmp_path: Path) -> None:
    """Node 0's answer has a digest of header and last rows, by which a node knows its own file."""
    data = a_recording(tmp_path / "source", 10)
    original = tmp_path / "source" / "recording" / NAME
    store = opened(node0, data)
    expected = digest_before(original, True, len(data))
    assert store.take(Piece(NAME)).check == expected
    landed = node0 / "recording" / LANDED
    for place in (40, len(data) - 20):
        with landed.open("r+b") as file:
            file.seek(place)
            file.write(b"?")
        assert store.take(Piece(NAME)).check != expected
        landed.write_bytes(data)
    with landed.open("r+b") as file:
        file.seek(layout.LIVE_OFFSET)
        file.write(b"?")  # the live half changes all the time
    assert store.take(Piece(NAME)).check == expected


def test_a_recording_appears_with_its_header(
    node0: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader on node 0 finds no file whose header is still being written: it would refuse it for good."""
    there = []

    def write(fd: int, data: bytes, offset: int) -> None:
        there.append((node0 / "recording" / LANDED).exists())
        os.pwrite(fd, data, offset)

    monkeypatch.setattr("traceml.monitor.relay.store.write_all", write)
    opened(node0, a_recording(tmp_path / "source", 3))
    assert there == [False]
    assert steps(node0, LANDED) == [0, 1, 2]
