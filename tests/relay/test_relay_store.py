"""Node 0's disk: prefixes only, no unfinished files, and room is left."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from relay_nodes import COLUMNS, Rank, make_run, steps

from traceml.monitor.relay.protocol import Limits, Piece, Status
from traceml.monitor.relay.store import NodeStore
from traceml.recording import layout
from traceml.recording.reader import RecordingReader

NAME, LANDED = "rank-4.42.steps", "rank-4.node1.42.steps"


def a_recording(place: Path, count: int) -> tuple[bytes, bytes]:
    """(fixed half of the header, rows) of a rank's recording."""
    rank = Rank(make_run(place), 4)
    rank.append(count)
    data = Path(rank.writer.path).read_bytes()
    size = layout.padded_row_size(layout.row_struct(COLUMNS).size)
    return data[: layout.LIVE_OFFSET], data[layout.HEADER_SIZE : layout.HEADER_SIZE + count * size]


def test_a_reader_never_sees_a_torn_row(node0: Path, tmp_path: Path) -> None:
    """While rows are stored, a reader in another thread sees complete rows only."""
    head, rows = a_recording(tmp_path / "source", 60_000)
    store = NodeStore(node0 / "recording", 1, Limits())
    store.open(NAME, head)
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
    for start in range(0, 60_000, 1000):
        store.append(NAME, start, rows[start * 32 : (start + 1000) * 32])
    done.set()
    reading.join()
    assert not torn
    assert steps(node0, LANDED) == list(range(60_000))


def test_a_write_that_stops_half_way(node0: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fails in the middle of a write leaves a prefix; the rest is taken later, nothing twice."""
    head, rows = a_recording(tmp_path / "source", 100)
    lines = b"a line\n" * 400
    store = NodeStore(node0 / "recording", 1, Limits())
    write = os.pwrite
    seen: list[int] = []
    for name, first, data, unit in ((NAME, head, rows, 32), ("rank-4.42.events.jsonl", b"", lines, 1)):
        offset = store.take(Piece(name, head=first)).offset
        for good_bytes in (0, 40, 1000, 3200, 3240, 3500, 40):
            left = [good_bytes]

            def tight(fd: int, data: memoryview, offset: int, left: list[int] = left) -> int:
                if not left[0]:
                    raise OSError(errno.ENOSPC, "No space left on device")
                taken = min(left[0], len(data))
                left[0] -= taken
                return write(fd, data[:taken], offset)

            monkeypatch.setattr(os, "pwrite", tight)
            state = store.take(Piece(name, offset, data=data[offset * unit :]))
            monkeypatch.setattr(os, "pwrite", write)
            assert state.status is Status.LATER or good_bytes > len(data[offset * unit :])
            before, seen = seen, steps(node0, LANDED)
            assert seen == list(range(len(seen)))
            assert len(seen) >= len(before), "rows that readers saw are gone"
            offset = store.take(Piece(name, head=first)).offset
        assert store.take(Piece(name, offset, data=data[offset * unit :])).offset == len(data) // unit
    assert steps(node0, LANDED) == list(range(100))
    assert (node0 / "recording" / "rank-4.node1.42.events.jsonl").read_bytes() == lines


def test_room_is_left_on_the_disk(node0: Path, tmp_path: Path) -> None:
    """When node 0's disk is nearly full, nothing is stored and the node is asked to try later."""
    head, rows = a_recording(tmp_path / "source", 10)
    roomy = NodeStore(node0 / "recording", 1, Limits())
    roomy.open(NAME, head)
    before = {p.name: p.read_bytes() for p in (node0 / "recording").iterdir()}
    store = NodeStore(node0 / "recording", 1, Limits(keep_free_bytes=2**60))
    assert store.take(Piece(NAME, head=head)).status is Status.OK
    for piece in (Piece(NAME, 0, data=rows), Piece("rank-4.43.steps", head=head), Piece("seen-torch")):
        assert store.take(piece).status is Status.LATER
    assert {p.name: p.read_bytes() for p in (node0 / "recording").iterdir()} == before


def test_leftovers_of_a_killed_node0_go(node0: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording that was being made when node 0 was killed leaves no litter."""
    head, _ = a_recording(tmp_path / "source", 1)

    class Killed(BaseException):
        pass

    def die(*_: object, **__: object) -> None:
        raise Killed

    store = NodeStore(node0 / "recording", 1, Limits())
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", die)
        patch.setattr(Path, "unlink", lambda *_, **__: None)
        with pytest.raises(Killed):
            store.open(NAME, head)
    (left,) = (node0 / "recording").iterdir()
    assert left.name != LANDED
    NodeStore(node0 / "recording", 1, Limits())
    assert list((node0 / "recording").iterdir()) == []


def test_another_recording_of_the_same_name(node0: Path, tmp_path: Path) -> None:
    """A file that begins differently from what node 0 has is refused, not mixed with it."""
    head, rows = a_recording(tmp_path / "source", 10)
    store = NodeStore(node0 / "recording", 1, Limits())
    store.open(NAME, head)
    store.append(NAME, 0, rows)
    other = head.replace(b'"pid": 42', b'"pid": 43')
    assert other != head
    for again in (store, NodeStore(node0 / "recording", 1, Limits())):
        assert again.take(Piece(NAME, head=other)).status is Status.REFUSED
    assert steps(node0, LANDED) == list(range(10))


def test_damaged_recording_on_node0_is_not_continued(node0: Path, tmp_path: Path) -> None:
    """If node 0's own copy is damaged, the file is refused; what is there stays as it is."""
    head, _ = a_recording(tmp_path / "source", 10)
    damaged = head[:40] + b"\0\0\0\0" + head[44:]
    (node0 / "recording" / LANDED).write_bytes(damaged.ljust(layout.HEADER_SIZE, b"\0"))
    store = NodeStore(node0 / "recording", 1, Limits())
    for first in (head, damaged):
        assert store.take(Piece(NAME, head=first)).status is Status.REFUSED
    assert (node0 / "recording" / LANDED).read_bytes()[:4096] == damaged
