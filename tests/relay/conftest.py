"""Ends of a relay that are closed after the test, whatever happened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from relay_nodes import ENVIRONMENT, make_run
from relay_peer import Peer

from traceml.monitor.launch import ThisNode
from traceml.monitor.relay.client import RelayClient
from traceml.monitor.relay.server import RelayServer
from traceml.monitor.relay.store import Limits


@pytest.fixture
def node0(tmp_path: Path) -> Path:
    """Node 0's run folder."""
    return make_run(tmp_path / "node0")


@pytest.fixture
def node1(tmp_path: Path) -> Path:
    """Node 1's run folder."""
    return make_run(tmp_path / "node1")


@pytest.fixture(autouse=True)
def _no_process_stays() -> Iterator[None]:
    """Processes of a test that failed end with it."""
    yield
    while Peer.running:
        process = Peer.running.pop().process
        process.kill()
        process.communicate()


@pytest.fixture
def serve(node0: Path) -> Iterator[Callable[..., RelayServer]]:
    """Starts node 0's end, also a second time after the first was closed."""
    made: list[RelayServer] = []

    def start(
        nodes: int = 3,
        port: int | None = None,
        limits: Limits = Limits(),  # noqa: B008 - frozen
    ) -> RelayServer:
        node = ThisNode(0, nodes, node0.name, None, 0, port)
        made.append(RelayServer(node, node0, ENVIRONMENT, limits))
        return made[-1]

    yield start
    for server in made:
        server.close(0)


@pytest.fixture
def relay(node0: Path, node1: Path) -> Iterator[Callable[..., RelayClient]]:
    """Starts another node's end."""
    made: list[RelayClient] = []

    def start(
        run_dir: Path = node1,
        node_rank: int = 1,
        address: str | None = None,
        environment: dict[str, str] = ENVIRONMENT,
    ) -> RelayClient:
        host, _, port = (address or "").partition(":")
        node = ThisNode(node_rank, 3, node0.name, host or None, 0, int(port) if port else None)
        made.append(RelayClient(node, run_dir, environment))
        return made[-1]

    yield start
    for client in made:
        client.close(0)
