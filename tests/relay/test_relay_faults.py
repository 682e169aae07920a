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

from traceml.collect.relay.client import RelayClient
from traceml.collect.relay.server import RelayServer

KEY = ENVIRONMENT["TRACEML_KEY"]
LANDED = "rank-2.node1.42.steps"
CUT_S = 30.0 if os.environ.get("TRACEML_TEST_LONG") else 2.0


def grow(rank: Rank, rows: int = 50) -> Callable[[], None]:
    """Work that writes rows while the relay gets on."""

    def work() -> None:
        rank.append(rows)
        time.sleep(0.005)

    return work


def further(node0: Path, rows: int) -> Callable[[], bool]:
    """Whether node 0 has more than these."""
    return lambda: len(steps(node0, LANDED)) > rows


def test_client_killed_again_and_again(node0: Path, node1: Path) -> None:
    """A relay that is killed and started again neither repeats nor leaves out a row."""
    rank = Rank(node1, 2)
    server = Peer("serve", node0, 2, "-", key=KEY)
    for _ in range(4):
        client = Peer("relay", node1, node0, 1, "-", key=KEY)
        before = len(steps(node0, LANDED))
        until(further(node0, before + 500), grow(rank))
        client.kill()
        rank.append(1000)
    client = Peer("relay", node1, node0, 1, "-", key=KEY)
    rank.event('{"kind": "end"}')
    rank.writer.close()
    assert client.finish()[0] == 0
    assert server.finish()[0] == 0
    assert steps(node0, LANDED) == list(range(rank.writer.count))


def test_server_killed_again_and_again(node0: Path, node1: Path) -> None:
    """Node 0's end may be killed in the middle of a write: it goes on from what is on its disk."""
    rank = Rank(node1, 2)
    client = Peer("relay", node1, node0, 1, "-", key=KEY)
    for _ in range(4):
        server = Peer("serve", node0, 2, "-", key=KEY)
        before = len(steps(node0, LANDED))
        until(further(node0, before + 500), grow(rank))
        server.kill()
        rank.append(1000)
        assert steps(node0, LANDED) == list(range(len(steps(node0, LANDED))))
    server = Peer("serve", node0, 2, "-", key=KEY)
    assert client.finish()[0] == 0
    assert server.finish()[0] == 0
    assert steps(node0, LANDED) == list(range(rank.writer.count))


@pytest.mark.parametrize("way", ["silence", "cut"])
def test_link_cut_and_mended(
    way: str,
    serve: Callable[..., RelayServer],
    relay: Callable[..., RelayClient],
    node0: Path,
    node1: Path,
) -> None:
    """A link that is dead for a while, with or without notice, costs time and no row."""
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
    ends = time.monotonic() + CUT_S
    while time.monotonic() < ends:
        rank.append(20)
        work()
    link.mend()
    until(lambda: len(steps(node0, LANDED)) >= rank.writer.count, work)
    link.close()
    assert steps(node0, LANDED) == list(range(rank.writer.count))


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
        rank.append(6000)
        until(further(node0, before), work)
        link.cut()
    until(lambda: steps(node0, LANDED) == list(range(rank.writer.count)), work)
    assert link.connections > 4
    link.close()


def test_slow_link(
    serve: Callable[..., RelayServer],
    relay: Callable[..., RelayClient],
    node0: Path,
    node1: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A link slower than the client's patience still gets everything over."""
    monkeypatch.setattr("traceml.collect.relay.client.LEAST_PATIENCE_S", 0.4)
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


def test_node0_that_stands_still(node0: Path, node1: Path) -> None:
    """A stopped node 0 makes the client wait within its bounded window; then all goes on."""
    rank = Rank(node1, 2)
    server = Peer("serve", node0, 2, "-", key=KEY)
    client = Peer("relay", node1, node0, 1, "-", key=KEY)
    until(lambda: len(steps(node0, LANDED)) > 100, grow(rank))
    os.kill(server.process.pid, signal.SIGSTOP)
    ends = time.monotonic() + CUT_S
    while time.monotonic() < ends:
        grow(rank, 500)()
    os.kill(server.process.pid, signal.SIGCONT)
    assert client.finish()[0] == 0
    assert server.finish()[0] == 0
    assert steps(node0, LANDED) == list(range(rank.writer.count))
