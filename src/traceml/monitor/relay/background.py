"""Starts this machine's end of the relay and runs it in a thread, so that the monitor never waits for it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from traceml.errors import TraceMLError, failsafe
from traceml.monitor.launch import ThisNode

if TYPE_CHECKING:  # imported only by a run on several machines
    from traceml.monitor.relay.client import RelayClient
    from traceml.monitor.relay.server import RelayServer

DRAIN_S: Final = 10.0
MOST_LISTED: Final = 8
THREADS: Final = 8
"""Two per ZeroMQ context and one of ours, with room to spare: libzmq aborts where it cannot start its own."""
MOST_DESCRIPTORS: Final = 65_536
_TURN_S: Final = 0.25
_GRACE_S: Final = 5.0


class Relay:
    """A run on one machine has none. Trouble here never touches training."""

    def __init__(self, node: ThisNode, folder: Path, home: Path, environment: Mapping[str, str]) -> None:
        self._node = node
        self._server: RelayServer | None = None
        self._client: RelayClient | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if node.count > 1:
            failsafe("the relay between machines", None)(self._start)(folder, home, environment)

    def safe_rows(self, name: str) -> int:
        """How many rows of this recording of ours node 0 has as well."""
        return self._client.acknowledged(name) if self._client is not None else 0

    def close(self) -> list[str]:
        """Deliver, or wait for, the rest; on node 0, say which nodes' rows are missing."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join(DRAIN_S + _GRACE_S)
        if self._server is None:
            return []
        heard, notes = self._server.nodes, []
        silent = [k for k in range(1, self._node.count) if k not in heard]
        partly = [k for k, store in heard.items() if not store.complete]
        for what, nodes in (("Nothing came from", silent), ("Not every row came from", partly)):
            more = f" and {len(nodes) - MOST_LISTED} more" if len(nodes) > MOST_LISTED else ""
            listed = ", ".join(map(str, nodes[:MOST_LISTED])) + more
            if nodes:
                notes.append(f"{what} node {listed}: `traceml view --merge` adds what is on its disk.")
        return notes

    def _start(self, folder: Path, home: Path, environment: Mapping[str, str]) -> None:
        if not can_start_threads(THREADS):
            raise TraceMLError("the process limit leaves no threads for it")
        raise_descriptor_limit()
        from traceml.monitor.relay.client import RelayClient
        from traceml.monitor.relay.server import RelayServer
        from traceml.monitor.relay.store import Limits

        if self._node.is_first:
            self._server = RelayServer(self._node, folder, environment, Limits(), home)
        else:
            self._client = RelayClient(self._node, folder, environment, home)
        self._thread = threading.Thread(target=self._run, name="traceml-relay", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        end = self._server or self._client
        assert end is not None
        failsafe("relaying between nodes", None)(self._pump)(end)
        failsafe("ending the relay", False)(end.close)(DRAIN_S)

    def _pump(self, end: RelayServer | RelayClient) -> None:
        while not self._stop.is_set():
            end.pump(_TURN_S)


def raise_descriptor_limit() -> None:
    """For this process and what it starts from now on; the command has been started with its own limit."""
    try:
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if 0 <= soft < MOST_DESCRIPTORS:
            most = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (ImportError, OSError, ValueError):
        pass


def can_start_threads(count: int) -> bool:
    """Try it, with as many at the same time: libzmq ends the whole process if one of its own cannot."""
    enough = threading.Event()
    started = []
    try:
        for _ in range(count):
            thread = threading.Thread(target=enough.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError:
        return False
    finally:
        enough.set()
        for thread in started:
            thread.join()
    return True
