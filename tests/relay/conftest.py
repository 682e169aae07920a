"""Ends of a relay that are closed when the test is over, whatever happened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from relay_nodes import ENVIRONMENT, make_run
from relay_peer import Peer

from traceml.collect.relay.client import RelayClient
from traceml.collect.relay.keys import create_key
from traceml.collect.relay.protocol import Limits
from traceml.collect.relay.server import RelayServer


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
    """Starts node 0's end; again after the last one was closed."""
    made: list[RelayServer] = []

    def start(nodes: int = 3, port: int | None = None, limits: Limits | None = None) -> RelayServer:
        key = create_key(node0, ENVIRONMENT)
        made.append(RelayServer(node0, key, nodes, bind_port=port, limits=limits))
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
        client = RelayClient(
            run_dir,
            node_rank,
            shared_dir=None if address else node0,
            server_address=address,
            environment=environment,
        )
        made.append(client)
        return client

    yield start
    for client in made:
        client.close(0)
