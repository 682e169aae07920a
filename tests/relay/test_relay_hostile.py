"""A peer without the key, or with bad intentions, can do nothing."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import zmq
from relay_nodes import ENVIRONMENT, Rank, make_run, pump_both, steps, until

from traceml.errors import TraceMLError
from traceml.monitor.launch import ThisNode
from traceml.monitor.relay import access
from traceml.monitor.relay.access import KeyPair, RunKey
from traceml.monitor.relay.client import RelayClient
from traceml.monitor.relay.protocol import (
    MESSAGE_BYTES,
    Answer,
    Piece,
    Question,
    State,
    Status,
    decode,
    encode,
)
from traceml.monitor.relay.server import MOST_STRANGERS, RelayServer
from traceml.monitor.relay.store import Limits, landing
from traceml.recording import layout
from traceml.recording.reader import RecordingReader
from traceml.recording.tail import Tail
from traceml.recording.writer import RecordingWriter
from traceml.schema import catalog as c

RUN_KEY = RunKey(ENVIRONMENT["TRACEML_KEY"].encode())
TURNED_AWAY = zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
Serve = Callable[..., RelayServer]


def files(run_dir: Path) -> dict[str, bytes]:
    """Everything in node 0's recording folder."""
    return {p.name: p.read_bytes() for p in (run_dir / "recording").iterdir()}


class Intruder:
    """A bare socket that says what it likes."""

    def __init__(self, server: RelayServer, pair: KeyPair | None, server_key: bytes | None = None) -> None:
        self.server = server
        self.context: zmq.Context[Any] = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        if pair is not None:
            self.socket.curve_publickey, self.socket.curve_secretkey = pair.public, pair.secret
            self.socket.curve_serverkey = server_key or RUN_KEY.server().public
        self.monitor = self.socket.get_monitor_socket(TURNED_AWAY)
        self.socket.connect(f"tcp://127.0.0.1:{server.port}")
        self.number = 0

    def is_turned_away(self) -> bool:
        """Ask and see the connection end without an answer."""
        self.socket.send(encode(Question(1, [])))
        until(lambda: bool(self.monitor.poll(0)), lambda: self.server.pump(0.01))
        return not self.socket.poll(0)

    def question(self, *pieces: Piece) -> Answer:
        """One question, one answer."""
        self.number += 1
        self.socket.send(encode(Question(self.number, list(pieces))))
        until(lambda: bool(self.socket.poll(0)), lambda: self.server.pump(0.01))
        found = decode(self.socket.recv(), Answer)
        assert found is not None
        assert found.number == self.number
        return found

    def ask(self, piece: Piece) -> State:
        """What becomes of this piece."""
        (state,) = self.question(piece).states
        return state


@pytest.fixture
def intrude() -> Iterator[Callable[..., Intruder]]:
    """Intruders that leave when the test is over."""
    made: list[Intruder] = []

    def start(*words: Any) -> Intruder:
        made.append(Intruder(*words))
        return made[-1]

    yield start
    for intruder in made:
        intruder.context.destroy(linger=0)


HEAD: Final = layout.HEADER_SIZE


def a_head(rank: int, tmp_path: Path) -> bytes:
    """A sound header."""
    maker = Rank(make_run(tmp_path / f"maker{rank}"), rank)
    return Path(maker.writer.path).read_bytes()[:HEAD]


def rows(first: int, count: int) -> bytes:
    """Rows of 32 bytes with these sequence numbers."""
    return b"".join(bytes(24) + layout.SEQUENCE.pack(first + i) for i in range(count))


def test_wrong_key_gets_and_injects_nothing(
    serve: Serve, intrude: Callable[..., Intruder], node0: Path
) -> None:
    """A stranger's key is turned away in the handshake, even with node 0's public key in hand."""
    server = serve()
    stranger = intrude(server, RunKey(b"another secret, long enough").client(1))
    assert stranger.is_turned_away()
    assert server.nodes == {}
    assert files(node0) == {}


def test_wrong_server_key(serve: Serve, intrude: Callable[..., Intruder]) -> None:
    """A peer that does not know node 0's public key gets no answer either."""
    server = serve()
    other = RunKey(b"another secret, long enough").server().public
    peer = intrude(server, RUN_KEY.client(1), other)
    assert peer.is_turned_away()
    assert server.nodes == {}


def test_no_encryption_at_all(serve: Serve, intrude: Callable[..., Intruder]) -> None:
    """A plain ZeroMQ peer is turned away."""
    server = serve()
    plain = intrude(server, None)
    assert plain.is_turned_away()
    assert server.nodes == {}


def test_node_beyond_the_number_of_nodes(serve: Serve, intrude: Callable[..., Intruder]) -> None:
    """A key of the run for a node that the run does not have is no key."""
    server = serve(nodes=3)
    peer = intrude(server, RUN_KEY.client(3))
    assert peer.is_turned_away()


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        os.urandom(64 * 1024),
        b"\xff" + b"\0" * 8 + b"\x7f" + b"\x03" + b"\0" * 5000,
        # A sound greeting, then a command that claims to be an exabyte long.
        b"\xff" + b"\0" * 8 + b"\x7f\x03\x01CURVE" + b"\0" * 47 + b"\x06" + b"\x0f" * 8,
    ],
)
def test_garbage_on_the_socket(
    garbage: bytes, serve: Serve, relay: Callable[..., RelayClient], node0: Path, node1: Path
) -> None:
    """Bytes that follow no protocol do not disturb those who follow it."""
    server, client = serve(), relay()
    rank = Rank(node1, 1)
    rank.append(100)
    for _ in range(20):
        raw = socket.create_connection(("127.0.0.1", server.port))
        raw.sendall(garbage)
        client.pump(0.01)
        server.pump(0.01)
        raw.close()
    until(lambda: len(steps(node0, "rank-1.node1.42.steps")) == 100, pump_both(server, client))
    assert list(server.nodes) == [1]


def test_huge_frames(
    serve: Serve,
    intrude: Callable[..., Intruder],
    relay: Callable[..., RelayClient],
    node0: Path,
    node1: Path,
) -> None:
    """A frame over the limit ends its sender's connection, even with a key; others go on."""
    server = serve()
    peer = intrude(server, RUN_KEY.client(2))
    assert peer.question().states == []
    peer.socket.send(bytes(64 * MESSAGE_BYTES))
    until(lambda: bool(peer.monitor.poll(0)), lambda: server.pump(0.01))
    client = relay()
    rank = Rank(node1, 1)
    rank.append(100)
    until(lambda: len(steps(node0, "rank-1.node1.42.steps")) == 100, pump_both(server, client))
    assert set(files(node0)) == {"rank-1.node1.42.steps"}


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode({"number": 1, "pieces": [{"name": "x" * 81}]}),
        msgspec.msgpack.encode({"number": -1, "pieces": []}),
        msgspec.msgpack.encode({"number": 1, "pieces": [{"name": "x"}] * 65}),
        msgspec.msgpack.encode([1] * 1000),
        b"\x81" * 2000,
    ],
)
def test_messages_that_are_none(
    frame: bytes, serve: Serve, intrude: Callable[..., Intruder], node0: Path
) -> None:
    """What is not a valid question gets no answer and changes nothing."""
    server = serve()
    peer = intrude(server, RUN_KEY.client(1))
    peer.socket.send(frame)
    peer.socket.send_multipart([frame, frame, frame])
    assert peer.question().states == []
    assert files(node0) == {}


BAD_NAMES = [
    "../escape.steps", "rank-1.1.steps/../../x", "/etc/passwd", "rank-1.1.steps\0", "relay.key",
    "manifest.json",
    "rank-1.node2.42.steps", "system.node2.gauges", "manifest.node2.json", "rank--1.1.steps",
    "rank-1.1.events.jsonl\n", "", ".", "..", "seen-", "seen-../x", "seen-A", "rank-1.1.exe",
    "rank-٣.1.steps", "final_summary.json", "request-1", ".relay-x", "rank-1.42.steps ",
]  # fmt: skip


def test_bad_file_names(serve: Serve, intrude: Callable[..., Intruder], node0: Path) -> None:
    """Only the known names travel: no path, no name of another node, no file of node 0's own."""
    server = serve()
    peer = intrude(server, RUN_KEY.client(1))
    before = sorted(p.name for p in node0.iterdir())
    for name in BAD_NAMES:
        assert landing(name, 1) is None
        assert peer.ask(Piece(name)).status is Status.REFUSED, name
        assert peer.ask(Piece(name, 0, data=b"x\n")).status is not Status.OK, name
    assert files(node0) == {}
    assert sorted(p.name for p in node0.iterdir()) == before


def test_bytes_out_of_range(
    serve: Serve, intrude: Callable[..., Intruder], node0: Path, tmp_path: Path
) -> None:
    """Bytes that do not follow the last one are not taken, and a recording begins with a whole header."""
    server = serve()
    peer = intrude(server, RUN_KEY.client(1))
    name, landed = "rank-1.42.steps", "rank-1.node1.42.steps"
    head = a_head(1, tmp_path)
    assert peer.ask(Piece(name)).offset == 0
    assert peer.ask(Piece(name, 0, data=head[:-1])).status is Status.REFUSED
    assert files(node0) == {}
    assert peer.ask(Piece(name, 0, data=head + rows(1, 3))).offset == HEAD + 96
    before = files(node0)
    for offset in (0, HEAD, HEAD + 95, HEAD + 97, 2**40):
        found = peer.ask(Piece(name, offset, data=rows(4, 2), live=b"stale"))
        assert (found.status, found.offset) == (Status.OK, HEAD + 96)
    assert files(node0) == before
    assert peer.ask(Piece(name, HEAD + 96, data=rows(4, 1))).offset == HEAD + 128
    taken = RecordingReader(node0 / "recording" / landed).rows()
    assert taken["sequence"].tolist() == [1, 2, 3, 4]


def test_nonsense_costs_its_sender_only(
    serve: Serve, intrude: Callable[..., Intruder], node0: Path, tmp_path: Path
) -> None:
    """A node with the key may send a damaged header or rows: that file is set aside with a note."""
    server = serve()
    peer = intrude(server, RUN_KEY.client(1))
    sent = {
        "rank-1.1.steps": bytes(HEAD),
        "rank-1.2.steps": b"\0" + a_head(1, tmp_path)[1:],
        "rank-1.3.steps": a_head(1, tmp_path / "again") + rows(7, 5) + b"x",
    }
    for name, data in sent.items():
        peer.ask(Piece(name))
        assert peer.ask(Piece(name, 0, data=data)).status is Status.OK
    local = RecordingWriter(
        str(node0 / "recording" / "rank-0.9.steps"), c.STEP_COLUMNS, {"identity": {"rank": 0, "pid": 9}}
    )
    local.append(*[1] * len(c.STEP_COLUMNS))
    found = Tail(node0).read()
    assert [len(rank.rows) for rank in found.ranks] == [1]
    assert len(found.problems) == 3


def test_key_decides_which_node_speaks(
    serve: Serve, intrude: Callable[..., Intruder], node0: Path, tmp_path: Path
) -> None:
    """The same name sent by two nodes lands in two files: no node writes into another node's."""
    server = serve()
    for node_rank in (1, 2):
        peer = intrude(server, RUN_KEY.client(node_rank))
        assert peer.ask(Piece("rank-1.42.steps")).offset == 0
        peer.ask(Piece("rank-1.42.steps", 0, data=a_head(1, tmp_path / str(node_rank))))
    assert set(files(node0)) == {"rank-1.node1.42.steps", "rank-1.node2.42.steps"}
    assert sorted(server.nodes) == [1, 2]


def test_quotas(serve: Serve, intrude: Callable[..., Intruder], node0: Path, tmp_path: Path) -> None:
    """A node has a number of files and bytes on node 0's disk, and not one more."""
    limits = Limits(files=4, node_bytes=600_000, lines_bytes=1000)
    server = serve(limits=limits)
    peer = intrude(server, RUN_KEY.client(1))
    lines = "rank-1.42.events.jsonl"
    peer.ask(Piece(lines))
    assert peer.ask(Piece(lines, 0, data=b"x" * 999 + b"\n")).offset == 1000
    assert peer.ask(Piece(lines, 1000, data=b"\n")).status is Status.REFUSED
    assert peer.ask(Piece("seen-torch")).status is Status.OK
    assert peer.ask(Piece("seen-torch", 0, data=b"x")).status is Status.REFUSED
    head = a_head(1, tmp_path)
    for pid in range(3):
        peer.ask(Piece(f"rank-1.{pid}.steps"))
    made = [peer.ask(Piece(f"rank-1.{pid}.steps", 0, data=head)).status for pid in range(3)]
    assert made == [Status.OK, Status.OK, Status.REFUSED]
    assert peer.ask(Piece("seen-numpy")).status is Status.REFUSED
    taken = state = peer.ask(Piece("rank-1.0.steps", HEAD, data=bytes(256_000)))
    while state.status is Status.OK:
        taken, state = state, peer.ask(Piece("rank-1.0.steps", state.offset, data=bytes(256_000)))
    assert state.status is Status.REFUSED
    assert taken.offset == HEAD + 2 * 256_000
    assert sum(len(data) for data in files(node0).values()) <= limits.node_bytes


def test_live_area_is_all_that_live_reaches(
    serve: Serve, intrude: Callable[..., Intruder], node0: Path, tmp_path: Path
) -> None:
    """A live update changes the live half of the header and nothing before or after it."""
    server = serve()
    peer = intrude(server, RUN_KEY.client(1))
    name, path = "rank-1.42.steps", node0 / "recording" / "rank-1.node1.42.steps"
    peer.ask(Piece(name))
    peer.ask(Piece(name, 0, data=a_head(1, tmp_path) + rows(1, 3)))
    before = path.read_bytes()
    assert peer.ask(Piece(name, HEAD + 96, live=b"\xff" * 4096)).status is Status.OK
    after = path.read_bytes()
    assert after[:4096] == before[:4096]
    assert after[8192:] == before[8192:]
    assert after[4096:8192] == b"\xff" * 4096
    peer.ask(Piece("rank-1.42.events.jsonl"))
    assert peer.ask(Piece("rank-1.42.events.jsonl", 0, live=b"x")).status is Status.REFUSED


def test_late_question_undoes_nothing(
    serve: Serve, intrude: Callable[..., Intruder], node0: Path, tmp_path: Path
) -> None:
    """A question that was held up on an old connection does not change the live half."""
    server = serve()
    now, held_up = intrude(server, RUN_KEY.client(1)), intrude(server, RUN_KEY.client(1))
    name, path = "rank-1.42.steps", node0 / "recording" / "rank-1.node1.42.steps"
    now.number = 100
    now.ask(Piece(name))
    now.ask(Piece(name, 0, data=a_head(1, tmp_path), live=b"new"))
    answer = held_up.question(Piece(name, HEAD, live=b"old"))
    assert (answer.states, answer.newest) == ([], 102)
    assert path.read_bytes()[4096:8192] == b"new".ljust(4096, b"\0")


STRANGERS = """
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
held = []
for _ in range(1500):
    held.append(socket.socket())
    held[-1].setblocking(False)
    held[-1].connect_ex(("127.0.0.1", int(sys.argv[1])))
print("connected", flush=True)
sys.stdin.read()
"""


def test_1500_idle_strangers_take_few_descriptors(
    serve: Serve, relay: Callable[..., RelayClient], node0: Path, node1: Path
) -> None:
    """Sampling needs descriptors too. The oldest strangers are dropped, and a node gets through meanwhile."""
    server, client = serve(), relay()
    rank = Rank(node1, 1)
    rank.append(100)
    before = len(os.listdir("/proc/self/fd"))
    crowd = subprocess.Popen(
        [sys.executable, "-c", STRANGERS, str(server.port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert crowd.stdout is not None
    most = 0
    while not select.select([crowd.stdout], [], [], 0)[0]:
        server.pump(0.002)
        most = max(most, len(os.listdir("/proc/self/fd")) - before)
    until(lambda: len(steps(node0, "rank-1.node1.42.steps")) == 100, pump_both(server, client))
    most = max(most, len(os.listdir("/proc/self/fd")) - before)
    crowd.communicate()
    # How many are there at once depends on who gets a core; without a cap it would be all 1,500.
    assert MOST_STRANGERS // 2 < most < 750
    until(lambda: len(os.listdir("/proc/self/fd")) < before + 10, pump_both(server, client))


def test_a_node_is_no_stranger(serve: Serve, intrude: Callable[..., Intruder]) -> None:
    """A node that was heard stays connected, however many strangers come after it."""
    server = serve()
    peer = intrude(server, RUN_KEY.client(1))
    peer.question()
    crowd = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(3 * MOST_STRANGERS)]
    until(lambda: len(server._strangers) == MOST_STRANGERS, lambda: server.pump(0.01))
    assert peer.question().states == []
    assert not peer.monitor.poll(0)
    for connection in crowd:
        connection.close()


def test_keys_of_many_nodes_are_derived_as_time_allows(node0: Path, intrude: Callable[..., Intruder]) -> None:
    """With 3,000 nodes node 0 starts at once, and the last of them is known soon; a million are refused."""
    server = RelayServer(ThisNode(0, 3000, node0.name, None, 0, None), node0, ENVIRONMENT, Limits())
    try:
        assert len(server._node_of) < 1000
        peer = intrude(server, RUN_KEY.client(2999))
        assert peer.question().states == []
        assert list(server.nodes) == [2999]
    finally:
        server.close(0)
    with pytest.raises(TraceMLError, match="more than it serves"):
        RelayServer(ThisNode(0, 999_999, node0.name, None, 0, None), node0, ENVIRONMENT, Limits())


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        (None, ["*"]),
        ("127.0.0.1", ["127.0.0.1"]),
        ("203.0.113.77", ["*"]),
        ("no such host\x1b[31m", ["*"]),
        ("x" * 300, ["*"]),
    ],
)
def test_the_relay_listens_where_other_nodes_look(named: str | None, expected: list[str]) -> None:
    """On the address of node 0's name; everywhere without a name, or if it is of another machine."""
    assert access.listen_on(named) == expected


def test_the_relay_listens_on_the_given_address_only(tmp_path: Path) -> None:
    """A neighbour on another network of this machine finds no port; the published address is right."""
    run = make_run(tmp_path / "run")
    server = RelayServer(ThisNode(0, 2, run.name, "127.0.0.1", 0, None), run, ENVIRONMENT, Limits())
    try:
        published = access.read_published(run)
        assert published is not None
        assert published.hosts == ["127.0.0.1"]
        socket.create_connection(("127.0.0.1", server.port)).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", server.port))
    finally:
        server.close(0)
