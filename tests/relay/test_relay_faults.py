"""Killed ends, cut and slow links: every row arrives once, in order."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from relay_link import Link
from relay_nodes import ENVIRONMENT, Rank, pump_both, steps, until
from relay_peer import Peer

from traceml.monitor.relay.client import RelayClient
from traceml.monitor.relay.server import RelayServer

KEY = ENVIRONMENT["TRACEML_KEY"]
LANDED = "rank-2.node1.42.steps"
ONCE_OR_OFTEN = pytest.mark.parametrize("kills", [1, pytest.param(6, marks=pytest.mark.long)])
SHORT_OR_LONG = pytest.mark.parametrize("cut_s", [0.5, pytest.param(30.0, marks=pytest.mark.long)])


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that waits less for an answer: the same behaviour in less time."""
    monkeypatch.setattr("traceml.monitor.relay.client.ANSWER_S", 0.4)


def grow(rank: Rank, rows: int = 50) -> Callable[[], None]:
    """Work that writes rows while the relay runs."""

    def work() -> None:
        rank.append(rows)
        time.sleep(0.005)

    return work


def further(node0: Path, rows: int) -> Callable[[], bool]:
    """Whether node 0 has more than these."""
    return lambda: len(steps(node0, LANDED)) > rows


@ONCE_OR_OFTEN
def test_killed_client_resumes(kills: int, node0: Path, node1: Path) -> None:
    """A client that is killed and started again neither repeats nor leaves out a row."""
    rank = Rank(node1, 2)
    server = Peer(node0, "node0", 0, "-", "-", key=KEY)
    for _ in range(kills):
        client = Peer(node1, "node0", 1, "-", "-", key=KEY)
        before = len(steps(node0, LANDED))
        until(further(node0, before + 500), grow(rank))
        client.kill()
        rank.append(1000)
    client = Peer(node1, "node0", 1, "-", "-", key=KEY)
    rank.event('{"kind": "end"}')
    rank.writer.close()
    client.finish()
    server.finish()
    assert steps(node0, LANDED) == list(range(rank.writer.count))


@ONCE_OR_OFTEN
def test_killed_node0_resumes(kills: int, node0: Path, node1: Path) -> None:
    """Node 0's end may be killed in the middle of a write: it resumes from what is on its disk."""
    rank = Rank(node1, 2)
    client = Peer(node1, "node0", 1, "-", "-", key=KEY)
    for _ in range(kills):
        server = Peer(node0, "node0", 0, "-", "-", key=KEY)
        before = len(steps(node0, LANDED))
        until(further(node0, before + 500), grow(rank))
        server.kill()
        rank.append(1000)
        assert steps(node0, LANDED) == list(range(len(steps(node0, LANDED))))
    server = Peer(node0, "node0", 0, "-", "-", key=KEY)
    client.finish()
    server.finish()
    assert steps(node0, LANDED) == list(range(rank.writer.count))


@SHORT_OR_LONG
@pytest.mark.parametrize("way", ["silence", "cut"])
@pytest.mark.usefixtures("impatient")
def test_link_cut_and_restored(
    way: str,
    cut_s: float,
    serve: Callable[..., RelayServer],
    relay: Callable[..., RelayClient],
    node0: Path,
    node1: Path,
) -> None:
    """A link that is dead for a while, with or without notice, costs time but no row."""
    server = serve()
    link = Link(server.port)
    client = relay(address=link.address)
    rank = Rank(node1, 2)
    rank.append(10)
    work = pump_both(server, client)
    until(lambda: len(steps(node0, LANDED)) >= 10, work)
    link.silence()
    if way == "cut":
        link.cut()
    ends = time.monotonic() + cut_s
    while time.monotonic() < ends:
        rank.append(20)
        work()
    link.mend()
    until(lambda: len(steps(node0, LANDED)) >= rank.writer.count, work)
    link.close()
    assert steps(node0, LANDED) == list(range(rank.writer.count))


@pytest.mark.usefixtures("impatient")
def test_link_that_breaks_all_the_time(
    serve: Callable[..., RelayServer], relay: Callable[..., RelayClient], node0: Path, node1: Path
) -> None:
    """Connections that break in the middle of frames lead to new ones, not to holes."""
    server = serve()
    link = Link(server.port)
    client = relay(address=link.address)
    rank = Rank(node1, 2)
    work = pump_both(server, client)
    for _ in range(8):
        before = len(steps(node0, LANDED))
        rank.append(20_000)
        until(further(node0, before), work)
        link.cut()
    until(lambda: steps(node0, LANDED) == list(range(rank.writer.count)), work)
    assert link.connections > 4
    link.close()


@pytest.mark.usefixtures("impatient")
def test_slow_link(
    serve: Callable[..., RelayServer], relay: Callable[..., RelayClient], node0: Path, node1: Path
) -> None:
    """A link too slow for a full question in the time for an answer still gets everything across."""
    server = serve()
    link = Link(server.port)
    link.bytes_per_second = 300_000
    client = relay(address=link.address)
    rank = Rank(node1, 2)
    rank.append(30_000)
    work = pump_both(server, client)
    until(lambda: steps(node0, LANDED) == list(range(30_000)), work)
    assert link.connections > 1, "the link was never too slow"
    link.close()


def test_client_that_stood_still_takes_the_answer(
    serve: Callable[..., RelayServer],
    relay: Callable[..., RelayClient],
    node1: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that had no CPU time for long does not throw away an answer that waits for it."""
    server, client = serve(), relay()
    until(lambda: client.connected, pump_both(server, client))
    rank = Rank(node1, 2)
    rank.append(10)
    until(lambda: client.acknowledged(rank.name) == 10, pump_both(server, client))
    rank.append(10)
    before = server.nodes[1].received_bytes

    def client_then_server() -> None:  # so that the last answer waits
        client.pump(0)
        server.pump(0.01)

    until(lambda: server.nodes[1].received_bytes > before, client_then_server)
    monkeypatch.setattr("traceml.monitor.relay.client.ANSWER_S", 0.0)
    until(lambda: bool(client._socket and client._socket.poll(0)))
    client.pump(0)
    assert client.connected
    assert client.acknowledged(rank.name) == 20


@SHORT_OR_LONG
def test_node0_that_stands_still(cut_s: float, node0: Path, node1: Path) -> None:
    """A client waits for a stopped node 0 and delivers everything after that."""
    rank = Rank(node1, 2)
    server = Peer(node0, "node0", 0, "-", "-", key=KEY)
    client = Peer(node1, "node0", 1, "-", "-", key=KEY)
    until(lambda: len(steps(node0, LANDED)) > 100, grow(rank))
    os.kill(server.process.pid, signal.SIGSTOP)
    ends = time.monotonic() + cut_s
    while time.monotonic() < ends:
        grow(rank, 500)()
    os.kill(server.process.pid, signal.SIGCONT)
    client.finish()
    server.finish()
    assert steps(node0, LANDED) == list(range(rank.writer.count))
