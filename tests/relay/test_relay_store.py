"""Node 0's disk: prefixes only, nothing half made, and room is left."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from relay_nodes import COLUMNS, Rank, make_run, steps

from traceml.collect.relay.inbox import Inbox
from traceml.collect.relay.protocol import PROTOCOL, Answer, Hello, Limits, Open, Put, Status
from traceml.collect.relay.store import TEMPORARY, NodeStore
from traceml.recording import format as fmt
from traceml.recording.reader import RecordingReader

NAME, LANDED = "rank-4.42.steps", "rank-4.node1.42.steps"


def a_recording(place: Path, count: int) -> tuple[bytes, bytes]:
    """(fixed half of the header, rows) of a rank's recording."""
    rank = Rank(make_run(place), 4)
    rank.append(count)
    data = Path(rank.writer.path).read_bytes()
    size = fmt.padded_row_size(fmt.row_struct(COLUMNS).size)
    return data[: fmt.LIVE_OFFSET], data[fmt.HEADER_SIZE : fmt.HEADER_SIZE + count * size]


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
    """A disk that fails in the middle of rows leaves a prefix; the same rows are taken again."""
    head, rows = a_recording(tmp_path / "source", 100)
    inbox = Inbox(node0 / "recording", Limits(), lambda: 0.0)
    inbox.handle(1, Hello(client=1, connection=1, protocol=PROTOCOL, node_rank=1))
    inbox.handle(1, Open(client=1, connection=1, name=NAME, head=head))
    put = Put(client=1, connection=1, name=NAME, offset=0, data=rows)
    write = os.pwrite
    for good_bytes in (0, 40, 1000, 3200, 3240, 4000):
        left = [good_bytes]

        def tight(fd: int, data: memoryview, offset: int, left: list[int] = left) -> int:
            if not left[0]:
                raise OSError(errno.ENOSPC, "No space left on device")
            taken = min(left[0], len(data))
            left[0] -= taken
            return write(fd, data[:taken], offset)

        monkeypatch.setattr(os, "pwrite", tight)
        assert inbox.handle(1, put).status is Status.LATER
        monkeypatch.setattr(os, "pwrite", write)
        seen = steps(node0, LANDED)
        assert seen == list(range(len(seen)))
    assert inbox.handle(1, put).offset == 100
    assert steps(node0, LANDED) == list(range(100))


def test_room_is_left_on_the_disk(node0: Path, tmp_path: Path) -> None:
    """When node 0's disk is nearly full, nothing is stored and the node is asked to try later."""
    head, _ = a_recording(tmp_path / "source", 1)
    inbox = Inbox(node0 / "recording", Limits(keep_free_bytes=2**60), lambda: 0.0)
    inbox.handle(1, Hello(client=1, connection=1, protocol=PROTOCOL, node_rank=1))
    answer = inbox.handle(1, Open(client=1, connection=1, name=NAME, head=head))
    assert answer.status is Status.LATER
    assert list((node0 / "recording").iterdir()) == []


def test_leftovers_of_a_killed_node0_go(node0: Path) -> None:
    """A recording that was being made when node 0 was killed leaves no litter."""
    (node0 / "recording" / f"{TEMPORARY}abc").write_bytes(b"half")
    Inbox(node0 / "recording", Limits(), lambda: 0.0)
    assert list((node0 / "recording").iterdir()) == []


def test_another_recording_of_the_same_name(node0: Path, tmp_path: Path) -> None:
    """A file that begins differently from what node 0 has is refused, not mixed with it."""
    head, rows = a_recording(tmp_path / "source", 10)
    first = NodeStore(node0 / "recording", 1, Limits())
    first.open(NAME, head)
    first.append(NAME, 0, rows)
    other = head.replace(b'"pid": 42', b'"pid": 43')
    inbox = Inbox(node0 / "recording", Limits(), lambda: 0.0)
    inbox.handle(1, Hello(client=1, connection=1, protocol=PROTOCOL, node_rank=1))
    assert other != head
    refused = inbox.handle(1, Open(client=1, connection=1, name=NAME, head=other))
    assert refused.status is Status.REFUSED
    assert steps(node0, LANDED) == list(range(10))


def test_late_hello_does_not_take_over(node0: Path) -> None:
    """A hello that was held up on an earlier connection does not end the current one."""
    inbox = Inbox(node0 / "recording", Limits(), lambda: 0.0)

    def hello(connection: int) -> Answer:
        return inbox.handle(1, Hello(client=1, connection=connection, protocol=PROTOCOL, node_rank=1))

    name = "rank-4.42.events.jsonl"
    assert hello(2).status is Status.OK
    assert hello(1).status is Status.UNKNOWN
    assert inbox.handle(1, Open(client=1, connection=2, name=name)).status is Status.OK
    assert inbox.handle(1, Open(client=1, connection=1, name=name)).status is Status.UNKNOWN
