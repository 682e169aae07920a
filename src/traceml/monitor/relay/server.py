"""Node 0's end of the relay: one encrypted socket that serves only nodes holding the run's key.

Who a peer is comes from its key in the handshake (ZAP), not from what it says. Frames, queues and files are
bounded, so that the worst a peer can do is to be disconnected.
"""

import contextlib
import itertools
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from traceml.errors import TraceMLError, say_once
from traceml.monitor.launch import ThisNode
from traceml.monitor.relay import access
from traceml.monitor.relay.access import RunKey, create_key
from traceml.monitor.relay.protocol import MESSAGE_BYTES, Question, Status, decode, encode
from traceml.monitor.relay.store import Limits, NodeStore
from traceml.runs.folder import RECORDING

_ZAP_DOMAIN: Final = b"traceml"
_QUEUED_MESSAGES: Final = 4
_KEYS_AT_ONCE: Final = 200
MOST_NODES: Final = 20_000
_BACKLOG: Final = 64
_HANDSHAKE_MS: Final = 5_000
MOST_STRANGERS: Final = 64
"""Connections that have not asked a question yet, as a node does at once."""
_HEARTBEAT_MS: Final = 5_000
SILENT_S: Final = 10.0
"""A node that was not heard for so long is not waited for at the end."""


class RelayServer:
    """Use from one thread."""

    def __init__(
        self,
        node: ThisNode,
        run_dir: Path,
        environment: Mapping[str, str],
        limits: Limits,
        home: Path | None = None,
    ) -> None:
        """`run_dir` is where node 0 records; `home`, if given, is its folder on the shared disk."""
        self._home = home or run_dir
        key = create_key(self._home, environment)
        self.nodes: dict[int, NodeStore] = {}
        """Every node that was heard."""
        self._run_dir = run_dir
        self._limits = limits
        if node.count > MOST_NODES:
            raise TraceMLError(f"{node.count} nodes are more than it serves ({MOST_NODES})")
        self._key = key
        self._unknown = iter(range(1, node.count))  # nodes whose keys are not derived yet, which takes time
        self._node_of: dict[bytes, int] = {}
        self._strangers: dict[int, None] = {}  # descriptors of connections without a question, oldest first
        self._derive_keys()
        self._context: zmq.Context[Any] = zmq.Context()
        try:
            self._zap = self._context.socket(zmq.REP)
            self._zap.bind("inproc://zeromq.zap.01")
            self._socket = self._context.socket(zmq.ROUTER)
            self._protect(key)
            self._connections = self._socket.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
            ips = access.listen_on(node.master_addr)
            self.port = self._bind(ips[0], node.relay_port)
            for ip in ips[1:]:
                self._bind(ip, self.port)
            access.publish(self._home, node.master_addr, ips, self.port, key.server().public)
        except (zmq.ZMQError, OSError):
            self._context.destroy(linger=0)
            raise
        self._poller = zmq.Poller()
        self._poller.register(self._zap, zmq.POLLIN)
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._connections, zmq.POLLIN)

    def pump(self, max_seconds: float) -> None:
        """Serve for this long; at least one waiting message even with 0 seconds."""
        deadline = time.monotonic() + max_seconds
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            ready = dict(self._poller.poll(int(left_s * 1000)))
            if self._connections in ready:
                self._count_connections()
            if self._zap in ready:
                self._admit()
            if self._socket in ready:
                self._serve()
            self._derive_keys()
            if not ready or time.monotonic() > deadline:
                return

    def close(self, drain_seconds: float) -> bool:
        """Wait for nodes that are still sending; True if all that were heard have delivered everything."""
        deadline = time.monotonic() + drain_seconds
        while (now_s := time.monotonic()) < deadline and any(
            node.complete is None and node.heard_at_s > now_s - SILENT_S for node in self.nodes.values()
        ):
            self.pump(min(0.05, deadline - now_s))
        access.withdraw(self._home, self.port)
        self._context.destroy(linger=200)
        return all(node.complete for node in self.nodes.values())

    def _derive_keys(self) -> bool:
        """Some more of the nodes' keys; False once all are known."""
        more = list(itertools.islice(self._unknown, _KEYS_AT_ONCE))
        self._node_of |= {z85.decode(self._key.client(n).public): n for n in more}
        return bool(more)

    def _bind(self, ip: str, port: int | None) -> int:
        self._socket.bind(access.endpoint(ip, port or "*"))
        return int(self._socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])

    def _count_connections(self) -> None:
        """Drop the oldest strangers if there are too many: each takes a descriptor that sampling needs."""
        while self._connections.poll(0):
            event = parse_monitor_message(self._connections.recv_multipart())
            if event["event"] == zmq.EVENT_ACCEPTED:
                self._strangers[event["value"]] = None
            else:
                self._strangers.pop(event["value"], None)
        while len(self._strangers) > MOST_STRANGERS:
            descriptor = next(iter(self._strangers))
            del self._strangers[descriptor]
            self._hang_up(descriptor)

    def _hang_up(self, descriptor: int) -> None:
        """libzmq has no call for this. It closes a connection that it finds ended."""
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
            if connection.getsockname()[1] == self.port:  # else its number is another file's by now
                connection.shutdown(socket.SHUT_RDWR)

    def _protect(self, key: RunKey) -> None:
        relay = self._socket
        relay.curve_server = True
        relay.curve_secretkey = key.server().secret
        relay.zap_domain = _ZAP_DOMAIN
        relay.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        relay.ipv6 = True
        relay.maxmsgsize = MESSAGE_BYTES
        relay.rcvhwm = _QUEUED_MESSAGES
        relay.backlog = _BACKLOG
        relay.handshake_ivl = _HANDSHAKE_MS
        relay.heartbeat_ivl = _HEARTBEAT_MS
        relay.heartbeat_timeout = 3 * _HEARTBEAT_MS

    def _admit(self) -> None:
        """Answer the handshake's question: is this key one of the run's, and whose?"""
        version, request_id, domain, _, _, mechanism, *credentials = self._zap.recv_multipart()
        node_rank = self._node_of.get(credentials[0]) if len(credentials) == 1 else None
        if node_rank is None and self._derive_keys():
            reply = [b"300", b"try again", b"", b""]
        elif node_rank is None or mechanism != b"CURVE" or domain != _ZAP_DOMAIN:
            reply = [b"400", b"no key of this run", b"", b""]
        else:
            reply = [b"200", b"OK", b"%d" % node_rank, b""]
        self._zap.send_multipart([version, request_id, *reply])

    def _serve(self) -> None:
        """One question of one peer; ROUTER lets the peers take turns."""
        frames = self._socket.recv_multipart(copy=False)
        question = decode(frames[1].buffer, Question) if len(frames) == 2 else None
        if question is None:
            return
        self._strangers.pop(int(frames[1].get(zmq.SRCFD)), None)
        node_rank = int(str(frames[1].get("User-Id")))
        if node_rank not in self.nodes:
            self.nodes[node_rank] = NodeStore(self._run_dir / RECORDING, node_rank, self._limits)
        answer = self.nodes[node_rank].answer(question)
        self._socket.send_multipart([frames[0].bytes, encode(answer)])
        for state in answer.states:
            if state.status is Status.LATER:
                say_once(f"relay: cannot store what node {node_rank} sends ({state.reason}); it keeps it")
