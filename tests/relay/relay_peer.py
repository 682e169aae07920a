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

from traceml.collect.relay.client import RelayClient
from traceml.collect.relay.keys import create_key
from traceml.collect.relay.server import RelayServer


def main(words: list[str]) -> int:
    """serve FOLDER NODES PORT | relay FOLDER SHARED NODE ADDRESS; `-` stands for nothing."""
    given = [None if word == "-" else word for word in words[2:]]
    relay: RelayServer | RelayClient
    if words[0] == "serve":
        run_dir = Path(words[1])
        relay = RelayServer(
            run_dir,
            create_key(run_dir, os.environ),
            int(given[0] or 0),
            bind_port=int(given[1]) if given[1] else None,
        )
    else:
        relay = RelayClient(
            Path(words[1]),
            int(given[1] or 0),
            shared_dir=Path(given[0]) if given[0] else None,
            server_address=given[2],
            environment=os.environ,
        )
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    sys.stdout.write("up\n")
    sys.stdout.flush()
    while not stop.is_set():
        relay.pump(0.05)
    return 0 if relay.close(DEADLINE_S / 2) else 3


class Peer:
    """Such a process, seen from a test."""

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
        """SIGKILL: no farewell, no cleaning up."""
        self.process.kill()
        self.process.communicate()

    def finish(self) -> tuple[int, str]:
        """SIGTERM: (exit code, what it said)."""
        self.process.terminate()
        _, said = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, said


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
