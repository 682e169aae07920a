"""The relay between two ends, undisturbed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from relay_nodes import DEADLINE_S, Rank, live, make_run, pump_both, steps, until

from traceml.monitor.launch import ThisNode
from traceml.monitor.relay.background import Relay as RelayThread
from traceml.monitor.relay.client import RelayClient
from traceml.monitor.relay.server import RelayServer
from traceml.monitor.relay.store import Limits
from traceml.recording.layout import STATE_CLOSED
from traceml.recording.lines import EventsTail
from traceml.recording.reader import RecordingReader
from traceml.recording.tail import Tail
from traceml.recording.writer import RecordingWriter

Serve = Callable[..., RelayServer]
Relay = Callable[..., RelayClient]


def test_rows_arrive_in_order_while_they_are_written(
    serve: Serve, relay: Relay, node0: Path, node1: Path
) -> None:
    """Every look of a reader on node 0 sees a prefix of the rows, and in the end all of them."""
    server, client = serve(), relay()
    rank = Rank(node1, 3)
    work = pump_both(server, client)

    def write_and_pump() -> None:
        if rank.writer.count < 20_000:
            rank.append(137)
        work()
        seen = steps(node0, "rank-3.node1.42.steps")
        assert seen == list(range(len(seen)))

    until(lambda: len(steps(node0, "rank-3.node1.42.steps")) >= 20_000, write_and_pump)
    until(lambda: steps(node0, "rank-3.node1.42.steps") == list(range(rank.writer.count)), work)


def test_everything_of_a_rank_arrives(serve: Serve, relay: Relay, node0: Path, node1: Path) -> None:
    """Events, device rows, gauges, live state, names and marks travel too; nothing else does."""
    server, client = serve(), relay()
    rank, device = Rank(node1, 5), Rank(node1, 5, ending="device")
    gauges = RecordingWriter(
        str(node1 / "recording" / "system.gauges"), (("time_ns", "q"),), {"kind": "system"}
    )
    gauges.append(77)
    rank.append(3)
    device.append(2)
    rank.event(json.dumps({"kind": "checkpoint", "step": 1}))
    rank.writer.set_name(0, "augment")
    rank.writer.close()
    (node1 / "recording" / "seen-torch").touch()
    (node1 / "recording" / "request-1").write_text("stays")
    landed = node0 / "recording"

    def all_there() -> bool:
        path = landed / "rank-5.node1.42.steps"
        return path.exists() and live(path)[0].state == STATE_CLOSED

    until(all_there, pump_both(server, client))
    until(lambda: (landed / "seen-torch").exists(), pump_both(server, client))
    until(lambda: (landed / "rank-5.node1.42.events.jsonl").exists(), pump_both(server, client))
    until(
        lambda: bool(EventsTail(str(landed / "rank-5.node1.42.events.jsonl")).read()),
        pump_both(server, client),
    )
    assert live(landed / "rank-5.node1.42.steps")[1] == "augment"
    assert steps(node0, "rank-5.node1.42.device") == [0, 1]
    assert Tail(node0).read().seen == {"torch"}
    assert RecordingReader(landed / "system.node1.gauges").rows()["time_ns"].tolist() == [77]
    assert not list(landed.glob("request-*"))
    assert (landed / "seen-torch").read_bytes() == b""


def test_landed_bytes_are_those_of_the_node(serve: Serve, relay: Relay, node0: Path, node1: Path) -> None:
    """A relayed recording equals its original byte for byte, as far as it is published."""
    server, client = serve(), relay()
    rank = Rank(node1, 0)
    rank.append(5000)
    until(lambda: len(steps(node0, "rank-0.node1.42.steps")) == 5000, pump_both(server, client))
    there = (node1 / "recording" / rank.name).read_bytes()
    here = (node0 / "recording" / "rank-0.node1.42.steps").read_bytes()
    length = min(len(here), len(there))
    assert here[:length] == there[:length]
    assert not here[length:].strip(b"\0")


def test_same_rank_and_process_id_on_two_nodes(
    serve: Serve, relay: Relay, node0: Path, node1: Path, tmp_path: Path
) -> None:
    """Nodes that repeat a rank and a process id (containers do) keep files of their own."""
    node2 = make_run(tmp_path / "node2")
    local = Rank(node0, 0)
    local.append(1)
    one, two = Rank(node1, 0), Rank(node2, 0)
    one.append(10)
    two.append(20)
    server, clients = serve(), [relay(node1, 1), relay(node2, 2)]
    work = pump_both(server, *clients)
    until(lambda: len(steps(node0, "rank-0.node1.42.steps")) == 10, work)
    until(lambda: len(steps(node0, "rank-0.node2.42.steps")) == 20, work)
    assert steps(node0, local.name) == [0]


def this_node(index: int, run_name: str) -> ThisNode:
    """One of two nodes with a shared folder."""
    return ThisNode(index, 2, run_name, None, 0, None)


def test_close_delivers_the_rest(tmp_path: Path) -> None:
    """The monitor's own relay: rows of the last moment arrive, node 0 waits for them and misses nothing."""
    run_dirs = [make_run(tmp_path / name) for name in ("r", "r.node1")]
    ends = [RelayThread(this_node(i, "r"), run_dir, run_dir, {}) for i, run_dir in enumerate(run_dirs)]
    rank = Rank(run_dirs[1], 1)
    until(lambda: bool(list(run_dirs[0].glob("recording/rank-1.node1.*"))))
    ending = ThreadPoolExecutor().submit(ends[0].close)
    rank.append(40_000)
    rank.writer.close()
    assert ends[1].close() == []
    assert ending.result(DEADLINE_S) == []
    assert ends[1].safe_rows(rank.name) == 40_000
    assert steps(run_dirs[0], "rank-1.node1.42.steps") == list(range(40_000))
    assert not (run_dirs[0] / "relay.json").exists()


def test_node0_says_what_is_missing(tmp_path: Path) -> None:
    """A node that never came is named in node 0's notes, with the command that adds its rows."""
    run_dir = make_run(tmp_path / "r")
    (note,) = RelayThread(this_node(0, "r"), run_dir, run_dir, {}).close()
    assert note.startswith("Nothing came from node 1: `traceml view --merge`")


def test_server_waits_for_a_node_that_is_still_sending(
    serve: Serve, relay: Relay, node0: Path, node1: Path
) -> None:
    """Node 0's end of the run waits until another node has said that it is done."""
    server, client = serve(), relay()
    rank = Rank(node1, 1)
    until(lambda: bool(server.nodes), pump_both(server, client))
    ended = threading.Thread(target=server.close, args=(30,))
    ended.start()
    rank.append(2000)
    until(lambda: len(steps(node0, "rank-1.node1.42.steps")) == 2000, lambda: client.pump(0.01))
    assert ended.is_alive()
    assert client.close(30)
    ended.join(30)
    assert server.nodes[1].complete


def test_node0_unreachable(
    relay: Relay, node1: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without node 0 nothing raises or waits, one line says so once, and the rows stay on disk."""
    monkeypatch.setattr("traceml.monitor.relay.client.SAY_AFTER_S", 0.05)
    monkeypatch.setattr("traceml.errors._said", set())
    client = relay(address="127.0.0.1:9")
    rank = Rank(node1, 1)
    rank.append(10)
    began = time.monotonic()
    while time.monotonic() - began < 1.0:
        client.pump(0.01)
    assert not client.connected
    assert capsys.readouterr().err.count("cannot be reached") == 1
    assert steps(node1, rank.name) == list(range(10))
    assert not client.close(0.1)
    assert str(node1) in capsys.readouterr().err


def test_client_may_start_first(serve: Serve, relay: Relay, node0: Path, node1: Path) -> None:
    """A node that is up before node 0 finds key and address when they appear."""
    client = relay(environment={})
    rank = Rank(node1, 1)
    rank.append(10)
    client.pump(0.05)
    server = RelayServer(this_node(0, node0.name), node0, {}, Limits())
    until(lambda: len(steps(node0, "rank-1.node1.42.steps")) >= 10, pump_both(server, client))
    server.close(0)
    assert steps(node0, "rank-1.node1.42.steps") == list(range(10))


def test_close_after_node0_has_ended(serve: Serve, relay: Relay, node1: Path) -> None:
    """A node that ends after node 0 does not use up its time waiting for it."""
    server, client = serve(), relay()
    until(lambda: client.connected, pump_both(server, client))
    server.close(0)
    rank = Rank(node1, 1)
    rank.append(10)
    began = time.monotonic()
    assert not client.close(DEADLINE_S)
    assert time.monotonic() - began < DEADLINE_S / 2


def test_node_without_news_is_still_heard(
    serve: Serve, relay: Relay, node1: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node with nothing to send shows that it is there, so that node 0 waits for it at the end."""
    monkeypatch.setattr("traceml.monitor.relay.client.SHOW_UP_EVERY_S", 0.1)
    server, client = serve(), relay()
    work = pump_both(server, client)
    until(lambda: client.connected, work)
    first = server.nodes[1].heard_at_s
    until(lambda: server.nodes[1].heard_at_s > first + 0.3, work)


def test_full_disk_on_node0_is_waited_out(
    serve: Serve,
    relay: Relay,
    node0: Path,
    node1: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While node 0's disk is full the rows stay on their node, which is said once; later they arrive."""
    monkeypatch.setattr("traceml.monitor.relay.client.LATER_S", 0.1)
    monkeypatch.setattr("traceml.errors._said", set())
    server, client = serve(limits=Limits(keep_free_bytes=2**60)), relay()
    rank = Rank(node1, 1)
    rank.append(1000)
    heard: set[float] = set()

    def work() -> None:
        pump_both(server, client)()
        heard.update(node.heard_at_s for node in server.nodes.values())

    until(lambda: len(heard) > 3, work)
    assert capsys.readouterr().err.count("disk is nearly full") == 1
    assert list((node0 / "recording").iterdir()) == []
    server.close(0)
    server = serve()
    until(lambda: steps(node0, "rank-1.node1.42.steps") == list(range(1000)), work)
    assert client.given_up == {}
