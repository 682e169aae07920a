"""The other nodes' end of the relay: finds node 0 and asks one question at a time.

ZeroMQ keeps the connection. If no answer comes, the socket is thrown away, node 0 is looked up again and the
next question is smaller. Meanwhile the rows stay on this node's disk.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import zmq

from traceml.errors import say_once
from traceml.monitor.launch import ThisNode
from traceml.monitor.relay import access, protocol
from traceml.monitor.relay.access import KeyProblem, find_key
from traceml.monitor.relay.outbox import Outbox

LOOK_EVERY_S: Final = 0.25
LOOK_AT_END_S: Final = 0.02
SHOW_UP_EVERY_S: Final = 2.0
"""A node without news asks an empty question, so that node 0 waits for it at the end."""
LATER_S: Final = 2.0
ANSWER_S: Final = 3.0
LEAST_BYTES: Final = 8192
SAY_AFTER_S: Final = 10.0


class RelayClient:
    """Use from one thread, except `acknowledged`."""

    def __init__(
        self, node: ThisNode, run_dir: Path, environment: Mapping[str, str], home: Path | None = None
    ) -> None:
        """`run_dir` is where this node records. Node 0's folder is beside it, or beside `home`."""
        self.connected = self._was_connected = False
        """Whether node 0 answers."""
        self._run_dir = run_dir
        self._node_rank = node.index
        self._shared_dir = (home or run_dir).parent / str(node.run_name)
        self._given: str | None = None
        if node.master_addr is not None and node.relay_port is not None:
            self._given = access.endpoint(node.master_addr, node.relay_port)
        self._environment = environment
        self._outbox = Outbox(run_dir)
        self.acknowledged = self._outbox.acknowledged
        self.given_up = self._outbox.given_up
        self._context: zmq.Context[Any] = zmq.Context()
        self._socket: zmq.Socket[Any] | None = None
        self._untried: list[str] = []
        self._asked = False
        self._most_bytes = protocol.FRAME_BYTES
        self._look_every_s = LOOK_EVERY_S
        self._due_s = 0.0
        self._since_s = self._heard_at_s = time.monotonic()
        """When the last connection or question was begun, and when the last answer came."""

    def pump(self, max_seconds: float) -> None:
        """Ask and listen for this long; 0 does what can be done at once."""
        deadline = time.monotonic() + max_seconds
        while True:
            self._step(time.monotonic())
            left_s = deadline - time.monotonic()
            self._listen(max(0.0, left_s))
            if left_s <= 0:
                return

    def close(self, drain_seconds: float) -> bool:
        """Deliver the rest if that is possible in this time; True if node 0 has everything."""
        deadline = time.monotonic() + drain_seconds
        empty = False
        self._look_every_s = LOOK_AT_END_S
        while time.monotonic() < deadline and not empty and not self._node0_has_ended():
            self.pump(LOOK_AT_END_S)
            empty = self.connected and not self._asked and self._outbox.is_empty()
        complete = empty and not self.given_up
        if (socket := self._socket) is not None and self.connected:
            self._ask(socket, self._outbox.question(complete=complete), time.monotonic())
            while self._asked and time.monotonic() < deadline and socket.poll(0, zmq.POLLOUT):
                self._listen(LOOK_AT_END_S)
        if not complete:
            say_once(
                f"relay: node 0 does not have everything that node {self._node_rank} recorded;"
                f" the rest stays in {self._run_dir}, and `traceml view --merge` on node 0 adds it"
            )
        self._context.destroy(linger=200)
        self._socket, self.connected = None, False
        return complete

    def _node0_has_ended(self) -> bool:
        """Node 0 was there and withdrew its address, so it will not take the rest."""
        if self.connected or not self._was_connected or self._given is not None:
            return False
        return access.read_published(self._shared_dir) is None

    def _step(self, now_s: float) -> None:
        """Connect, ask or hang up, if it is time."""
        self._mention(now_s)
        events = self._socket.poll(0, zmq.POLLIN | zmq.POLLOUT) if self._socket is not None else 0
        if events & zmq.POLLIN:
            return  # the answer is here: it is this thread that was late
        ready = bool(events & zmq.POLLOUT)
        late = now_s - self._since_s > ANSWER_S
        if ready and late and self._asked:
            self._most_bytes = max(LEAST_BYTES, self._most_bytes // 4)  # the link may just be slow
            ready = False
        if not ready and (late or self._asked or self.connected):
            self._hang_up()
        if self._asked or now_s < self._due_s:
            return
        self._due_s = now_s + self._look_every_s
        if self._socket is None:
            self._socket = self._open_socket()
        if self._socket is not None and not ready and self._untried:
            self._socket.connect(self._untried.pop(0))
            self._since_s = now_s
        elif self._socket is not None and ready:
            question = self._outbox.question(self._most_bytes)
            if question.pieces or not self.connected or now_s - self._heard_at_s > SHOW_UP_EVERY_S:
                self._ask(self._socket, question, now_s)

    def _ask(self, socket: zmq.Socket[Any], question: protocol.Question, now_s: float) -> None:
        try:
            socket.send(protocol.encode(question), zmq.NOBLOCK)
        except zmq.Again:
            pass  # the connection has just broken: no answer will come
        self._asked, self._since_s = True, now_s

    def _listen(self, most_s: float) -> None:
        """Wait for an answer, or until it is time to ask."""
        now_s = time.monotonic()
        most_s = min(most_s, self._look_every_s if self._asked else max(0.0, self._due_s - now_s))
        if self._socket is None:
            time.sleep(most_s)
            return
        if not self._socket.poll(int(most_s * 1000)):
            return
        answer = protocol.decode(self._socket.recv(), protocol.Answer)
        status = self._outbox.take(answer) if answer is not None else None
        if status is None:
            return
        now_s = time.monotonic()
        if now_s - self._since_s < ANSWER_S / 4:
            self._most_bytes = min(protocol.FRAME_BYTES, 2 * self._most_bytes)
        self._asked, self._heard_at_s = False, now_s
        self.connected = self._was_connected = True
        if status is protocol.Status.LATER:
            self._due_s = now_s + LATER_S
        elif self._outbox.has_more:
            self._due_s = now_s

    def _hang_up(self) -> None:
        """Look for node 0 again: it may have moved."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._asked = self.connected = False

    def _open_socket(self) -> zmq.Socket[Any] | None:
        """A socket that knows where to try; None while there is no key or no address."""
        try:
            key = find_key(self._shared_dir, self._environment)
        except KeyProblem as problem:
            say_once(f"relay: {problem}")
            return None
        published = access.read_published(self._shared_dir) if self._given is None else None
        if key is None or (self._given is None and published is None):
            return None
        if published is not None and published.public_key.encode() != key.server().public:
            say_once("relay: node 0 has another key or another version of TraceML; nothing is relayed")
            return None
        self._untried = published.endpoints() if published is not None else [str(self._given)]
        socket: zmq.Socket[Any] = self._context.socket(zmq.DEALER)
        socket.curve_publickey, socket.curve_secretkey = key.client(self._node_rank)
        socket.curve_serverkey = key.server().public
        socket.ipv6 = True
        socket.linger = 0
        socket.maxmsgsize = protocol.MESSAGE_BYTES
        socket.immediate = True  # a question goes only where somebody has completed the handshake
        socket.reconnect_ivl_max = 10_000
        return socket

    def _mention(self, now_s: float) -> None:
        if now_s - self._heard_at_s > SAY_AFTER_S:
            say_once(
                f"relay: node 0 cannot be reached from node {self._node_rank}; training goes on and"
                f" the rows stay in {self._run_dir} until it can"
            )
        if self.given_up:
            name, reason = next(iter(self.given_up.items()))
            say_once(f"relay: {name} does not reach node 0: {reason}")
