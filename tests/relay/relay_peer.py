"""One end of a relay as a process of its own, to be killed. Ends with its result on SIGTERM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import ClassVar

from relay_nodes import DEADLINE_S

from traceml.monitor.launch import ThisNode
from traceml.monitor.relay.client import RelayClient
from traceml.monitor.relay.server import RelayServer
from traceml.monitor.relay.store import Limits


def main(words: list[str]) -> int:
    """FOLDER, the run's name, the node's rank, node 0's host and port; `-` stands for nothing."""
    run_dir, run_name = Path(words[0]), words[1]
    host, port = (None if word == "-" else word for word in words[3:])
    node = ThisNode(int(words[2]), 2, run_name, host, 0, int(port) if port else None)
    relay: RelayServer | RelayClient
    if node.is_first:
        relay = RelayServer(node, run_dir, os.environ, Limits())
    else:
        relay = RelayClient(node, run_dir, os.environ)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    sys.stdout.write("up\n")
    sys.stdout.flush()
    while not stop.is_set():
        relay.pump(0.05)
    return 0 if relay.close(DEADLINE_S / 2) else 3


class Peer:
    """Such a process, as a test sees it."""

    running: ClassVar[list[Peer]] = []

    def __init__(self, *words: object, prefix: tuple[str, ...] = (), key: str | None = None) -> None:
        environment = {**os.environ, "TRACEML_KEY": key or ""}
        self.process = subprocess.Popen(
            [*prefix, sys.executable, __file__, *map(str, words)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        Peer.running.append(self)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "up\n"

    def kill(self) -> None:
        """SIGKILL: no chance to say or clean up anything."""
        self.process.kill()
        self.process.communicate()

    def finish(self) -> None:
        """SIGTERM: it ends once everything is delivered."""
        self.process.terminate()
        _, said = self.process.communicate(timeout=DEADLINE_S)
        assert self.process.returncode == 0, said


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
