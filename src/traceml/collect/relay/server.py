"""Node 0's end of the relay: one encrypted socket that serves only nodes holding the run's key.

Who a peer is comes from its key in the handshake (ZAP), not from what it says. Frames, queues
and files are bounded, so that the worst a peer can do is to be disconnected.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

import zmq
from zmq.utils import z85

from traceml.collect.relay import address
from traceml.collect.relay.inbox import Inbox, NodeStatus
from traceml.collect.relay.keys import RunKey
from traceml.collect.relay.names import MOST_NODES
from traceml.collect.relay.protocol import (
    MESSAGE_BYTES,
    Answer,
    Limits,
    Status,
    decode_requests,
    encode,
)
from traceml.collect.rundir import RECORDING
from traceml.errors import say_once

_ZAP_ENDPOINT: Final = "inproc://zeromq.zap.01"
_ZAP_DOMAIN: Final = b"traceml"
_QUEUED_MESSAGES: Final = 4
_HANDSHAKE_MS: Final = 10_000
_HEARTBEAT_MS: Final = 5_000
SILENT_S: Final = 10.0
"""A node that was not heard for so long is not waited for at the end."""


class RelayServer:
    """Use from one thread. `run_dir` is node 0's run folder, `nodes` counts node 0, too."""

    def __init__(
        self,
        run_dir: Path,
        key: RunKey,
        nodes: int,
        *,
        bind_host: str = "*",
        bind_port: int | None = None,
        advertise: str | None = None,
        limits: Limits | None = None,
    ) -> None:
        if not 2 <= nodes <= MOST_NODES:
            raise ValueError(f"a relay has 2 to {MOST_NODES} nodes, not {nodes}")
        self._run_dir = run_dir
        self._inbox = Inbox(run_dir / RECORDING, limits or Limits(), time.monotonic)
        self._node_of = {z85.decode(key.client(n).public): n for n in range(1, nodes)}
        self._context: zmq.Context[Any] = zmq.Context()
        try:
            self._zap = self._context.socket(zmq.REP)
            self._zap.linger = 0
            self._zap.bind(_ZAP_ENDPOINT)
            self._socket = self._listen(key)
            self._socket.bind(f"tcp://{bind_host}:{bind_port or '*'}")
            self.port = int(self._socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
            address.publish(run_dir, advertise, self.port, key.server().public)
        except (zmq.ZMQError, OSError):
            self._context.destroy(linger=0)
            raise
        self._poller = zmq.Poller()
        self._poller.register(self._zap, zmq.POLLIN)
        self._poller.register(self._socket, zmq.POLLIN)

    def pump(self, max_seconds: float) -> None:
        """Serve for this long; at least one waiting message even with 0 seconds."""
        deadline = time.monotonic() + max_seconds
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            ready = dict(self._poller.poll(int(left_s * 1000)))
            if self._zap in ready:
                self._admit()
            if self._socket in ready:
                self._serve()
            if not ready or time.monotonic() > deadline:
                return

    def nodes(self) -> dict[int, NodeStatus]:
        """What is known of every node that was heard."""
        return self._inbox.nodes()

    def close(self, drain_seconds: float) -> bool:
        """Wait for nodes that are still sending; True when all that spoke have delivered all."""
        deadline = time.monotonic() + drain_seconds
        while time.monotonic() < deadline and self._someone_sends():
            self.pump(min(0.05, max(0.0, deadline - time.monotonic())))
        address.withdraw(self._run_dir, self.port)
        self._context.destroy(linger=200)
        return all(status.complete for status in self.nodes().values())

    def _listen(self, key: RunKey) -> zmq.Socket[Any]:
        socket: zmq.Socket[Any] = self._context.socket(zmq.ROUTER)
        socket.curve_server = True
        socket.curve_secretkey = key.server().secret
        socket.zap_domain = _ZAP_DOMAIN
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        socket.ipv6 = True
        socket.linger = 0
        socket.maxmsgsize = MESSAGE_BYTES
        socket.rcvhwm = _QUEUED_MESSAGES
        socket.handshake_ivl = _HANDSHAKE_MS
        socket.heartbeat_ivl = _HEARTBEAT_MS
        socket.heartbeat_timeout = 3 * _HEARTBEAT_MS
        return socket

    def _someone_sends(self) -> bool:
        now_s = time.monotonic()
        return any(not s.ended and now_s - s.heard_at_s < SILENT_S for s in self.nodes().values())

    def _admit(self) -> None:
        """Answer the handshake's question: is this key one of the run's, and whose?"""
        frames = self._zap.recv_multipart()
        if len(frames) < 6:
            self._zap.send_multipart([b"1.0", b"", b"500", b"bad request", b"", b""])
            return
        version, request_id, domain, mechanism = frames[0], frames[1], frames[2], frames[5]
        node_rank = self._node_of.get(frames[6]) if len(frames) == 7 else None
        if node_rank is None or mechanism != b"CURVE" or domain != _ZAP_DOMAIN:
            reply = [b"400", b"no key of this run", b"", b""]
        else:
            reply = [b"200", b"OK", b"%d" % node_rank, b""]
        self._zap.send_multipart([version, request_id, *reply])

    def _serve(self) -> None:
        """One frame of one peer; ROUTER lets the peers take turns."""
        frames = self._socket.recv_multipart(copy=False)
        if len(frames) != 2:
            return
        node_rank = int(str(frames[1].get("User-Id")))
        requests = decode_requests(frames[1].buffer)
        answers = [self._inbox.handle(node_rank, request) for request in requests]
        if answers:
            self._socket.send_multipart([frames[0].bytes, encode(answers)])
        _mention(node_rank, answers)


def _mention(node_rank: int, answers: list[Answer]) -> None:
    later = [answer.reason for answer in answers if answer.status is Status.LATER]
    if later:
        say_once(f"relay: cannot store what node {node_rank} sends ({later[0]}); it keeps it")
