"""Old steps are rolled up on the other nodes too, once node 0 has them; no row is lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from relay_nodes import pump_both, until
from tests.scale.rolled import ROW_BYTES, LongRank, check_totals, read_one

from traceml.monitor.relay.client import RelayClient
from traceml.monitor.relay.outbox import merge_node_folder
from traceml.monitor.relay.protocol import Piece
from traceml.monitor.relay.server import RelayServer
from traceml.monitor.relay.store import Limits, NodeStore
from traceml.recording import layout
from traceml.recording.rollup import Roller, rolled_up_rows

KEEP = 2_000
LANDED = "rank-0.node1.7.steps"
Serve = Callable[..., RelayServer]
Relay = Callable[..., RelayClient]


def test_only_what_node_0_has_is_rolled_up(tmp_path: Path) -> None:
    """Rows that node 0 has not acknowledged stay, however many there are."""
    rank = LongRank(tmp_path)
    rank.append(20_000)
    acknowledged = 0
    roller = Roller(tmp_path, KEEP, every_s=0, safe_rows=lambda name: acknowledged)
    assert roller.maybe_roll(0.0) == 0
    acknowledged = 5_500
    assert roller.maybe_roll(1.0) == 3_000
    acknowledged = 0  # a new connection: not known yet
    assert roller.maybe_roll(2.0) == 0
    check_totals(read_one(tmp_path), rank)


def test_a_long_run_stays_small_on_its_node_and_whole_on_node_0(
    serve: Serve, relay: Relay, node0: Path, node1: Path
) -> None:
    """With the roller beside the relay, and the client replaced halfway, every row arrives once."""
    server, client = serve(), relay()
    rank = LongRank(node1)
    most = 0
    for at in range(12):
        if at == 6:  # as after a restart of the node's monitor
            client.close(0)
            client = relay()
        rank.append(5_000)
        work = pump_both(server, client)
        until(lambda: client.acknowledged(rank.name) == rank.rows, work)  # noqa: B023
        Roller(node1, KEEP, every_s=0, safe_rows=client.acknowledged).maybe_roll(float(at))
        most = max(most, rank.disk_bytes())
    assert client.given_up == {}
    assert rolled_up_rows(rank.path) >= 50_000
    assert most < 9_000 * ROW_BYTES
    check_totals(read_one(node1), rank)
    found = read_one(node0)
    check_totals(found, rank)
    assert found.rows["step"].tolist() == list(range(1, 60_001))


def test_merge_brings_the_rest_of_a_rolled_up_recording(node0: Path, node1: Path) -> None:
    """If the relay carried a part, and that was rolled up here, the merge adds the rest."""
    rank = LongRank(node1)
    rank.append(12_000)
    data = rank.path.read_bytes()
    store = NodeStore(node0 / "recording", 1, Limits())
    store.take(Piece(rank.name))
    store.take(Piece(rank.name, 0, data=data[: layout.HEADER_SIZE + 9_000 * ROW_BYTES]))
    Roller(node1, KEEP, every_s=0, safe_rows=lambda name: 9_000).maybe_roll(0.0)
    assert rolled_up_rows(rank.path) == 7_000
    merged = merge_node_folder(node1, node0, 1)
    assert merged.complete
    assert merged.new_bytes == 3_000 * ROW_BYTES
    check_totals(read_one(node0), rank)


def test_rolled_up_rows_that_node_0_lost_are_reported(node0: Path, node1: Path) -> None:
    """Rolled-up rows cannot be sent again: that is reported, and this node's own totals stay exact."""
    rank = LongRank(node1)
    rank.append(12_000)
    Roller(node1, KEEP, every_s=0, safe_rows=lambda name: 12_000).maybe_roll(0.0)
    shutil.rmtree(node0 / "recording")
    (node0 / "recording").mkdir()
    merged = merge_node_folder(node1, node0, 1)
    assert not merged.complete
    assert "rolled up" in merged.problems[rank.name]
    check_totals(read_one(node1), rank)


def test_the_limit_of_a_node_counts_what_its_files_take(node0: Path, tmp_path: Path) -> None:
    """On node 0 rolled-up rows take no space: a node that sends for weeks is not refused for it."""
    source = LongRank(tmp_path / "source")
    source.append(30_000)
    data = source.path.read_bytes()
    store = NodeStore(node0 / "recording", 1, Limits(node_bytes=16_000 * ROW_BYTES))
    at = store.take(Piece(source.name)).offset
    roller = Roller(node0, KEEP, every_s=0)
    while at < len(data):
        at = store.take(Piece(source.name, at, data=data[at:][: 3_000 * ROW_BYTES])).offset
        roller.maybe_roll(float(at))
    check_totals(read_one(node0), source)
