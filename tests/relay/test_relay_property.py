"""Whatever the network does to the messages, node 0 ends up with the rows, once and in order."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from relay_nodes import Rank, make_run, steps

from traceml.collect.relay.inbox import Inbox
from traceml.collect.relay.outbox import Outbox
from traceml.collect.relay.protocol import (
    PROTOCOL,
    Answer,
    AnyRequest,
    Hello,
    Limits,
    Status,
    decode_answers,
    decode_requests,
    encode,
)

LANDED = ("rank-0.node1.42.steps", "rank-1.node1.42.steps")
ACTIONS = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 1), st.integers(1, 400)),
    st.tuples(st.just("event"), st.integers(0, 1), st.integers(1, 3000)),
    st.tuples(st.just("send"), st.just(0), st.just(0)),
    st.tuples(st.just("deliver"), st.integers(0, 7), st.integers(0, 7)),
    st.tuples(st.just("repeat"), st.integers(0, 7), st.just(0)),
    st.tuples(st.just("lose"), st.integers(0, 7), st.just(0)),
    st.tuples(st.just("reconnect"), st.booleans(), st.just(0)),
    st.tuples(st.just("restart client"), st.just(0), st.just(0)),
    st.tuples(st.just("disk"), st.booleans(), st.just(0)),
    st.tuples(st.just("restart server"), st.just(0), st.just(0)),
)


class World:
    """Two nodes and a network that keeps, repeats, reorders and loses messages as it is told."""

    def __init__(self, place: Path) -> None:
        self.node0, self.node1 = make_run(place / "node0"), make_run(place / "node1")
        self.ranks = [Rank(self.node1, 0), Rank(self.node1, 1)]
        self.requests: list[bytes] = []
        self.answers: list[bytes] = []
        self.clients = self.connections = 0
        self.now_s = 0.0
        self.disk_full = False
        self.restart_server()
        self.restart_client()

    def restart_server(self) -> None:
        self.inbox = Inbox(self.node0 / "recording", Limits(), lambda: self.now_s)

    def restart_client(self) -> None:
        self.clients += 1
        self.outbox = Outbox(self.node1, self.clients, window_bytes=8192)
        self.reconnect(shrink=False)

    def reconnect(self, shrink: bool) -> None:
        self.connections += 1
        self.outbox.reconnected(self.connections, shrink)
        hello = Hello(client=self.clients, connection=self.connections, protocol=PROTOCOL, node_rank=1)
        self.post(hello)

    def post(self, request: AnyRequest) -> None:
        self.requests.append(encode([request]))

    def send(self) -> None:
        self.now_s += 5.0
        self.outbox.look()
        for request in self.outbox.messages(self.now_s):
            self.post(request)

    def handle(self, request: AnyRequest) -> Answer:
        """Node 0, whose disk may be full for a while."""
        if self.disk_full and not isinstance(request, Hello):
            return Answer(
                client=request.client,
                connection=request.connection,
                ticket=request.ticket,
                status=Status.LATER,
            )
        return self.inbox.handle(1, request)

    def deliver(self, request_at: int, answer_at: int) -> None:
        if self.requests:
            (request,) = decode_requests(self.requests.pop(request_at % len(self.requests)))
            self.answers.append(encode([self.handle(request)]))
        if self.answers:
            (answer,) = decode_answers(self.answers.pop(answer_at % len(self.answers)))
            self.outbox.take(answer, self.now_s)

    def settle(self) -> None:
        """The network is well at last: a new connection, messages in order."""
        self.disk_full = False
        self.requests.clear()
        self.answers.clear()
        self.reconnect(shrink=False)
        for _ in range(1000):
            while self.requests or self.answers:
                self.deliver(0, 0)
            if self.outbox.all_there():
                return
            self.send()
        raise AssertionError(f"never done: {self.outbox.given_up}")

    def check_prefix(self) -> None:
        for rank, landed in zip(self.ranks, LANDED, strict=True):
            seen = steps(self.node0, landed)
            assert seen == list(range(len(seen)))
            assert len(seen) <= rank.writer.count


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(ACTIONS, max_size=60))
def test_any_interleaving_ends_with_every_row_once(actions: list[tuple[str, int, int]]) -> None:
    """A prefix at every moment, everything in the end, whatever happened in between."""
    with tempfile.TemporaryDirectory() as place:
        world = World(Path(place))
        for action, which, amount in actions:
            if action == "append":
                world.ranks[which].append(amount)
            elif action == "event":
                world.ranks[which].event("e" * amount)
            elif action == "send":
                world.send()
            elif action == "deliver":
                world.deliver(which, amount)
                world.check_prefix()
            elif action == "repeat" and world.requests:
                world.requests.append(world.requests[which % len(world.requests)])
            elif action == "lose" and world.requests:
                world.requests.pop(which % len(world.requests))
            elif action == "reconnect":
                world.reconnect(bool(which))
            elif action == "disk":
                world.disk_full = bool(which)
            elif action == "restart client":
                world.restart_client()
            elif action == "restart server":
                world.restart_server()
        world.settle()
        assert not world.outbox.given_up
        for number, (rank, landed) in enumerate(zip(world.ranks, LANDED, strict=True)):
            assert steps(world.node0, landed) == list(range(rank.writer.count))
            copy = world.node0 / "recording" / f"rank-{number}.node1.42.events.jsonl"
            assert not rank.events.exists() or copy.read_bytes() == rank.events.read_bytes()
