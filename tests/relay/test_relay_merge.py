"""Bringing a node's folder into node 0's without a network."""

from __future__ import annotations

from pathlib import Path

from relay_nodes import Rank, steps

from traceml.monitor.relay.outbox import merge_node_folder
from traceml.monitor.relay.protocol import Piece
from traceml.monitor.relay.store import Limits, NodeStore
from traceml.recording.lines import EventsTail
from traceml.recording.tail import Tail
from traceml.recording.writer import RecordingWriter

LANDED = "rank-7.node3.42.steps"


def test_merge_completes_what_the_relay_began(node0: Path, node1: Path) -> None:
    """Only the rows that are missing are added, and a second merge adds nothing."""
    rank = Rank(node1, 7)
    rank.append(20_000)
    rank.event('{"kind": "end"}')
    rank.writer.close()
    (node1 / "recording" / "seen-torch").touch()
    data = Path(rank.writer.path).read_bytes()
    store = NodeStore(node0 / "recording", 3, Limits())
    store.take(Piece(rank.name))
    store.take(Piece(rank.name, 0, data=data[: 8192 + 500 * 32]))
    merged = merge_node_folder(node1, node0, 3)
    assert merged.complete
    assert merged.new_bytes == 19_500 * 32 + len('{"kind": "end"}\n')
    assert steps(node0, LANDED) == list(range(20_000))
    assert merge_node_folder(node1, node0, 3).new_bytes == 0
    landed = node0 / "recording" / LANDED.replace(".steps", ".events.jsonl")
    assert [event.kind for event in EventsTail(str(landed)).read()] == ["end"]
    assert Tail(node0).read().seen == {"torch"}


def test_merge_of_a_folder_that_is_not_the_same(node0: Path, node1: Path, tmp_path: Path) -> None:
    """Gauges of another run of the same node are left out with a reason, not mixed in."""
    for folder, first in ((node1, 1), (tmp_path / "again", 2)):
        (folder / "recording").mkdir(parents=True, exist_ok=True)
        path = folder / "recording" / "system.gauges"
        gauges = RecordingWriter(str(path), (("time_ns", "q"),), {"kind": "system"})
        for i in range(5):
            gauges.append(first * 1000 + i)
    assert merge_node_folder(node1, node0, 3).complete
    merged = merge_node_folder(tmp_path / "again", node0, 3)
    assert not merged.complete
    assert merged.new_bytes == 0
    assert list(merged.problems) == ["system.gauges"]


def test_merge_of_an_empty_folder(node0: Path, tmp_path: Path) -> None:
    """A node that recorded nothing adds nothing."""
    merged = merge_node_folder(tmp_path / "nothing", node0, 1)
    assert merged.complete
    assert merged.new_bytes == 0
