"""Whatever the network does to the messages, node 0 ends up with the rows, once and in order."""

from __future__ import annotations

import tempfile
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from relay_nodes import Rank, live, make_run, steps
from tests.fuzz import examples

from traceml.monitor.relay.outbox import Outbox
from traceml.monitor.relay.protocol import Answer, Question, State, Status, decode, encode
from traceml.monitor.relay.store import Limits, NodeStore

NAMES = ("rank-0.node1.42", "rank-1.node1.42")
NOTHING = st.just(0)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 1), st.integers(1, 400)),
        st.tuples(st.just("event"), st.integers(0, 1), st.integers(1, 3000)),
        st.tuples(st.just("live"), st.integers(0, 1), NOTHING),
        st.tuples(st.just("ask"), st.just(8192), NOTHING),
        st.tuples(st.just("deliver"), st.integers(0, 7), st.integers(0, 7)),
        st.tuples(st.just("repeat"), st.integers(0, 7), NOTHING),
        st.tuples(st.just("lose"), st.integers(0, 7), NOTHING),
        st.tuples(st.just("disk"), st.booleans(), NOTHING),
        st.tuples(st.just("restart_client"), st.integers(-5, 5), NOTHING),
        st.tuples(st.just("restart_server"), NOTHING, NOTHING),
    ),
    max_size=60,
)


class World:
    """Two nodes and a network that keeps, repeats, reorders and loses messages."""

    def __init__(self, place: Path) -> None:
        self.node0, self.node1 = make_run(place / "node0"), make_run(place / "node1")
        self.ranks = [Rank(self.node1, 0), Rank(self.node1, 1)]
        self.clock_ns = 10**9
        self.disk_full = False
        self.restart_server(0, 0)
        self.restart_client(0, 0)

    def restart_server(self, *_: int) -> None:
        """Its connections end with it: nothing sent before reaches the next one."""
        self.requests: list[bytes] = []
        self.answers: list[bytes] = []
        self.store = NodeStore(self.node0 / "recording", 1, Limits())

    def restart_client(self, clock_step: int, _: int) -> None:
        """Its questions may still arrive, their answers do not; its clock may have been set back."""
        self.answers.clear()
        self.clock_ns += 3 * clock_step
        with patch("time.time_ns", lambda: self.clock_ns):
            self.outbox = Outbox(self.node1)

    def append(self, which: int, count: int) -> None:
        self.ranks[which].append(count)

    def event(self, which: int, length: int) -> None:
        self.ranks[which].event("e" * length)

    def live(self, which: int, _: int) -> None:
        """The live half says how many rows there are."""
        writer = self.ranks[which].writer
        writer.set_name(0, str(writer.count))

    def disk(self, full: int, _: int) -> None:
        self.disk_full = bool(full)

    def ask(self, most_bytes: int, _: int) -> None:
        self.requests.append(encode(self.outbox.question(most_bytes)))

    def repeat(self, at: int, _: int) -> None:
        if self.requests:
            self.requests.append(self.requests[at % len(self.requests)])

    def lose(self, at: int, _: int) -> None:
        if self.requests:
            self.requests.pop(at % len(self.requests))

    def deliver(self, request_at: int, answer_at: int) -> None:
        if self.requests:
            question = decode(self.requests.pop(request_at % len(self.requests)), Question)
            assert question is not None
            if self.disk_full:
                states = [State(Status.LATER) for _ in question.pieces]
                self.answers.append(encode(Answer(question.number, question.number, states)))
            else:
                self.answers.append(encode(self.store.answer(question)))
        if self.answers:
            answer = decode(self.answers.pop(answer_at % len(self.answers)), Answer)
            assert answer is not None
            self.outbox.take(answer)
        self.check_prefix()

    def settle(self) -> None:
        """The network is well at last: each question gets its answer."""
        self.disk_full = False
        self.requests.clear()
        self.answers.clear()
        for _ in range(1000):
            self.ask(8192, 0)
            self.deliver(0, 0)
            if self.outbox.is_empty():
                return
        raise AssertionError(f"never done: {self.outbox.given_up}")

    def check_prefix(self) -> None:
        for rank, name in zip(self.ranks, NAMES, strict=True):
            seen = steps(self.node0, f"{name}.steps")
            assert seen == list(range(len(seen)))
            assert rank.writer.count >= len(seen) >= self.outbox.acknowledged(rank.name)
            path = self.node0 / "recording" / f"{name}.steps"
            said = live(path)[1] if path.exists() else None
            assert len(seen) >= int(said or 0), "the live half is ahead of the rows"


def check(actions: list[tuple[str, int, int]]) -> None:
    """A prefix at every moment, everything in the end."""
    with tempfile.TemporaryDirectory() as place:
        world = World(Path(place))
        for action, first, second in actions:
            getattr(world, action)(first, second)
        world.settle()
        assert not world.outbox.given_up
        for rank, name in zip(world.ranks, NAMES, strict=True):
            assert steps(world.node0, f"{name}.steps") == list(range(rank.writer.count))
            header = (world.node0 / "recording" / f"{name}.steps").read_bytes()[:8192]
            assert header == Path(rank.writer.path).read_bytes()[:8192]
            copy = world.node0 / "recording" / f"{name}.events.jsonl"
            assert not rank.events.exists() or copy.read_bytes() == rank.events.read_bytes()


@examples(30)
@given(ACTIONS)
def test_any_interleaving_ends_with_every_row_once(actions: list[tuple[str, int, int]]) -> None:
    """Lost, repeated, late messages, restarts and a full disk: a prefix always, everything in the end."""
    check(actions)


@pytest.mark.long
@examples(2000, derandomize=False)
@given(ACTIONS)
def test_many_interleavings_end_with_every_row_once(actions: list[tuple[str, int, int]]) -> None:
    """The same with many more of them."""
    check(actions)
