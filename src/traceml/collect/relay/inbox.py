"""Node 0's side without its socket: one request of a known node in, one answer out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from traceml.collect.relay.protocol import (
    PROTOCOL,
    Answer,
    AnyRequest,
    Bye,
    Hello,
    Limits,
    Live,
    Open,
    Ping,
    Put,
    Status,
    Whole,
)
from traceml.collect.relay.store import DiskTight, NodeStore, NotOpened, Refusal, remove_leftovers


@dataclass(slots=True)
class NodeStatus:
    """What node 0 knows of another node's relay."""

    heard_at_s: float
    """Monotonic clock."""
    received_bytes: int = 0
    ended: bool = False
    """It said that its run is over."""
    complete: bool = False
    """And that node 0 has all of it."""
    refusals: int = 0
    last_refusal: str | None = None


@dataclass(slots=True)
class _Peer:
    store: NodeStore
    status: NodeStatus
    client: int = -1
    connection: int = -1


class Inbox:
    """The store and the current connection of every node."""

    def __init__(self, folder: Path, limits: Limits, clock_s: Callable[[], float]) -> None:
        self._folder = folder
        self._limits = limits
        self._clock_s = clock_s
        self._peers: dict[int, _Peer] = {}
        remove_leftovers(folder)

    def nodes(self) -> dict[int, NodeStatus]:
        """Every node that was ever heard of, by its rank. May be called from another thread."""
        return {rank: peer.status for rank, peer in list(self._peers.items())}

    def handle(self, node_rank: int, request: AnyRequest) -> Answer:
        """Do what is asked as far as it may be done. The caller has made sure who is asking."""
        peer = self._peers.get(node_rank)
        if peer is None:
            store = NodeStore(self._folder, node_rank, self._limits)
            peer = self._peers[node_rank] = _Peer(store, NodeStatus(self._clock_s()))
        peer.status.heard_at_s = self._clock_s()
        if isinstance(request, Hello):
            return _greet(peer, node_rank, request)
        if (request.client, request.connection) != (peer.client, peer.connection):
            return _answer(request, Status.UNKNOWN)
        try:
            return self._take(peer, request)
        except NotOpened:
            return _answer(request, Status.UNKNOWN)
        except Refusal as problem:
            peer.status.refusals += 1
            peer.status.last_refusal = str(problem)
            return _answer(request, Status.REFUSED, reason=str(problem))
        except (DiskTight, OSError) as problem:
            return _answer(request, Status.LATER, reason=str(problem))

    def _take(self, peer: _Peer, request: AnyRequest) -> Answer:
        store, offset, check = peer.store, 0, b""
        if isinstance(request, Open):
            offset, check = store.open(request.name, request.head)
        elif isinstance(request, Put):
            before = store.append(request.name, request.offset, b"")
            offset = store.append(request.name, request.offset, request.data)
            peer.status.received_bytes += len(request.data) if offset > before else 0
        elif isinstance(request, Live):
            offset = store.set_live(request.name, request.data)
        elif isinstance(request, Whole):
            offset = store.put_whole(request.name, request.data)
        elif isinstance(request, Bye):
            peer.status.ended, peer.status.complete = True, request.complete
        else:
            assert isinstance(request, Ping)
        return _answer(request, Status.OK, offset=offset, check=check)


def _greet(peer: _Peer, node_rank: int, hello: Hello) -> Answer:
    """The latest connection of the latest client is served, a late hello of an earlier one not."""
    if hello.protocol != PROTOCOL or hello.node_rank != node_rank:
        what = f"protocol {hello.protocol}, node {hello.node_rank}"
        peer.status.refusals += 1
        peer.status.last_refusal = f"node {node_rank} claims: {what}"
        return _answer(hello, Status.REFUSED, reason=f"this is node {node_rank}, not {what}")
    if hello.client == peer.client and hello.connection < peer.connection:
        return _answer(hello, Status.UNKNOWN)
    peer.client, peer.connection = hello.client, hello.connection
    peer.status.ended = peer.status.complete = False
    return _answer(hello, Status.OK)


def _answer(
    request: AnyRequest, status: Status, *, offset: int = 0, check: bytes = b"", reason: str = ""
) -> Answer:
    return Answer(
        client=request.client,
        connection=request.connection,
        ticket=request.ticket,
        status=status,
        offset=offset,
        check=check,
        reason=reason[:200],
    )
