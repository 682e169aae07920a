"""The other nodes' end of the relay: finds node 0, keeps a connection, sends what is new.

A connection is one socket, one TCP connection and one hello. When it breaks or nothing comes
back, it is thrown away and a new one asks node 0 how far it is. Meanwhile the rows stay where
they are: on this node's disk.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from traceml.collect.relay import address
from traceml.collect.relay.keys import KeyProblem, RunKey, find_key
from traceml.collect.relay.outbox import Outbox
from traceml.collect.relay.protocol import (
    MESSAGE_BYTES,
    PROTOCOL,
    Answer,
    Bye,
    Hello,
    Ping,
    Status,
    decode_answers,
    encode,
    frames,
)
from traceml.errors import say_once

LOOK_EVERY_S: Final = 0.25
PING_EVERY_S: Final = 2.0
RETRY_S: Final = 0.5
MOST_RETRY_S: Final = 2.0
SUPERSEDED_S: Final = 10.0
LEAST_PATIENCE_S: Final = 4.0
MOST_PATIENCE_S: Final = 60.0
HELLO_S: Final = 10.0
SAY_AFTER_S: Final = 10.0
_GONE: Final = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


class RelayClient:
    """`run_dir` is this node's folder; node 0 publishes in `shared_dir`. Use from one thread, but for
    `acknowledged`."""

    def __init__(
        self,
        run_dir: Path,
        node_rank: int,
        *,
        shared_dir: Path | None,
        server_address: str | None = None,
        environment: Mapping[str, str],
    ) -> None:
        if node_rank < 1:
            raise ValueError("node 0 receives, it does not relay")
        self._run_dir = run_dir
        self._node_rank = node_rank
        self._shared_dir = shared_dir
        self._given = address.parse_address(server_address) if server_address else None
        self._environment = environment
        self._client = secrets.randbits(62)
        self._outbox = Outbox(run_dir, self._client)
        self._context: zmq.Context[Any] = zmq.Context()
        self._socket: zmq.Socket[Any] | None = None
        self._monitor: zmq.Socket[Any] | None = None
        self._connection = 0
        self._greeted = False
        self._own_ticket = 0
        """Of the hello, ping or bye that waits for its answer; 0 when none does."""
        self._target = self._good_target = ""
        self._failures = 0
        self._shrink = self._was_full = False
        self._patience_s = LEAST_PATIENCE_S
        now_s = time.monotonic()
        self._apart_since_s: float | None = now_s
        self._next_try_s = self._look_at_s = self._quiet_since_s = now_s

    @property
    def connected(self) -> bool:
        """Whether node 0 answers."""
        return self._greeted

    @property
    def given_up(self) -> dict[str, str]:
        """Files that will not get to node 0, and why."""
        return self._outbox.given_up

    def acknowledged(self, name: str) -> int:
        """How many rows of this recording node 0 has; may be asked from any thread."""
        return self._outbox.acknowledged(name)

    def pump(self, max_seconds: float) -> None:
        """Send and receive for this long; 0 does what can be done at once."""
        deadline = time.monotonic() + max_seconds
        while True:
            now_s = time.monotonic()
            if self._socket is None and now_s >= self._next_try_s:
                self._connect(now_s)
            if self._socket is not None:
                self._receive()
                self._send(now_s)
            self._mention(now_s)
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return
            self._wait(min(left_s, LOOK_EVERY_S))

    def close(self, drain_seconds: float) -> bool:
        """Deliver the rest if that can be done in this time; True when node 0 has everything."""
        deadline = time.monotonic() + drain_seconds
        complete = False
        self._outbox.live_every_s = 0.0
        while time.monotonic() < deadline and not complete and not self._node0_has_ended():
            self.pump(min(0.02, max(0.0, deadline - time.monotonic())))
            self._look_at_s = 0.0
            complete = self._greeted and self._outbox.all_there()
        complete = complete and not self._outbox.given_up
        if self._greeted:
            self._speak(Bye, complete=complete)
            while time.monotonic() < deadline and self._own_ticket and self._socket is not None:
                self._receive()
                self._wait(0.02)
        if not complete:
            say_once(
                f"relay: node 0 does not have all that node {self._node_rank} recorded;"
                f" the rows are in {self._run_dir} and can be merged later"
            )
        self._drop(0.0)
        self._context.destroy(linger=0)
        return complete

    def _node0_has_ended(self) -> bool:
        """It was there and took its address back: nobody will take the rest."""
        if self._greeted or not self._connection or self._given or self._shared_dir is None:
            return False
        return address.read_published(self._shared_dir) is None

    def _connect(self, now_s: float) -> None:
        self._next_try_s = now_s + RETRY_S
        found = self._find()
        if found is None:
            return
        key, targets = found
        pair = key.client(self._node_rank)
        socket = self._context.socket(zmq.DEALER)
        socket.curve_publickey, socket.curve_secretkey = pair.public, pair.secret
        socket.curve_serverkey = key.server().public
        socket.ipv6 = True
        socket.linger = 0
        socket.maxmsgsize = MESSAGE_BYTES
        socket.reconnect_ivl = -1
        socket.connect_timeout = int(LEAST_PATIENCE_S * 1000)
        self._monitor = socket.get_monitor_socket(_GONE)
        self._monitor.linger = 0
        self._target = self._choose(targets)
        socket.connect(self._target)
        self._socket = socket
        self._connection += 1
        self._quiet_since_s = now_s
        self._speak(Hello, protocol=PROTOCOL, node_rank=self._node_rank)

    def _find(self) -> tuple[RunKey, list[str]] | None:
        """The key and where to try; None while there is nothing to go by."""
        try:
            key = find_key(self._shared_dir, self._environment)
        except KeyProblem as problem:
            say_once(f"relay: {problem}")
            return None
        if key is None:
            return None
        if self._given is not None:
            return key, [address.endpoint(*self._given)]
        listening = address.read_published(self._shared_dir) if self._shared_dir else None
        if listening is None:
            return None
        if listening.public_key.encode() != key.server().public:
            say_once("relay: node 0 has another key than this node; nothing is relayed")
            return None
        targets = address.endpoints(listening)
        return (key, targets) if targets else None

    def _choose(self, targets: list[str]) -> str:
        """Every second try goes to where node 0 was last, the others to each address in turn."""
        if self._good_target in targets and self._failures % 2:
            return self._good_target
        return targets[self._failures // (2 if self._good_target else 1) % len(targets)]

    def _receive(self) -> None:
        while self._socket is not None:
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            for answer in decode_answers(frame):
                if answer.connection == self._connection and self._socket is not None:
                    self._take(answer, time.monotonic())
        if self._monitor is not None and self._monitor.poll(0):
            recv_monitor_message(self._monitor)
            self._drop(self._pause_s())

    def _take(self, answer: Answer, now_s: float) -> None:
        # A link that answers slowly gets more time before it counts as dead.
        slow_s = 4 * (now_s - self._quiet_since_s)
        least_s = max(LEAST_PATIENCE_S, 0.9 * self._patience_s, slow_s)
        self._patience_s = min(MOST_PATIENCE_S, least_s)
        self._quiet_since_s = now_s
        if answer.status is Status.UNKNOWN:
            self._drop(SUPERSEDED_S if self._greeted else self._pause_s())
        elif answer.ticket != self._own_ticket:
            self._outbox.take(answer, now_s)
        elif answer.status is Status.REFUSED:
            say_once(f"relay: node 0 refuses this node: {answer.reason}")
            self._drop(SUPERSEDED_S)
        else:
            self._own_ticket = 0
            if not self._greeted:
                self._greeted, self._apart_since_s, self._failures = True, None, 0
                self._good_target = self._target
                self._outbox.reconnected(self._connection, self._shrink)
                self._shrink = self._was_full = False
                self._look_at_s = now_s

    def _send(self, now_s: float) -> None:
        waiting = self._own_ticket != 0 or self._outbox.waiting
        patience_s = self._patience_s if self._greeted else min(self._patience_s, HELLO_S)
        if waiting and now_s - self._quiet_since_s > patience_s:
            self._shrink = self._greeted
            self._patience_s = min(MOST_PATIENCE_S, self._patience_s * (2 if self._greeted else 1))
            self._drop(0.0)
        if not self._greeted:
            return
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + LOOK_EVERY_S
            self._outbox.look()
        elif not (self._was_full and self._outbox.has_room):
            return
        for frame in frames(self._outbox.messages(now_s)):
            if not waiting:
                self._quiet_since_s, waiting = now_s, True
            self._post(frame)
        self._was_full = not self._outbox.has_room
        if not waiting and now_s - self._quiet_since_s > PING_EVERY_S:
            self._quiet_since_s = now_s
            self._speak(Ping)

    def _speak(self, kind: type[Hello | Ping | Bye], **facts: Any) -> None:
        """Send a message of our own, outside of the files."""
        self._own_ticket = self._outbox.next_ticket()
        facts |= {"client": self._client, "connection": self._connection}
        self._post(encode([kind(ticket=self._own_ticket, **facts)]))

    def _post(self, frame: bytes) -> None:
        """Queue it. What does not fit is lost with its connection, like all that gets no answer."""
        if self._socket is not None:
            try:
                self._socket.send(frame, zmq.NOBLOCK)
            except zmq.Again:
                pass

    def _drop(self, pause_s: float) -> None:
        """Throw the connection away and try again after a pause."""
        now_s = time.monotonic()
        self._failures += 1
        self._own_ticket = 0
        self._next_try_s = now_s + pause_s
        if self._greeted:
            self._greeted, self._apart_since_s = False, now_s
        if self._socket is not None:
            self._socket.disable_monitor()
            self._socket.close(linger=0)
        self._socket = self._monitor = None

    def _pause_s(self) -> float:
        return min(MOST_RETRY_S, RETRY_S * (1 + self._failures))

    def _wait(self, most_s: float) -> None:
        """Until something comes in, or a connection may be tried again."""
        if self._socket is None or self._monitor is None:
            time.sleep(max(0.001, min(most_s, self._next_try_s - time.monotonic())))
            return
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)
        poller.poll(int(most_s * 1000) + 1)

    def _mention(self, now_s: float) -> None:
        if self._apart_since_s is not None and now_s - self._apart_since_s > SAY_AFTER_S:
            say_once(
                f"relay: node 0 cannot be reached from node {self._node_rank}; training goes on and"
                f" the rows stay in {self._run_dir} until it can"
            )
        if self._outbox.given_up:
            name, reason = next(iter(self._outbox.given_up.items()))
            say_once(f"relay: {name} does not reach node 0: {reason}")
