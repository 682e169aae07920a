"""The relay with many nodes: how fast rows reach node 0, and what that costs node 0.

    python bench/relay.py [--nodes 64] [--ranks 8] [--rows 2000] [--rate 20] [--seconds 10]

First a backlog of `rows` a rank from all nodes at once: rows a second, limited by this machine,
because one process on the same cores simulates all nodes. Then a steady `rate` of steps a second a
rank: CPU of node 0.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from traceml.collect.relay.client import RelayClient
from traceml.collect.relay.keys import create_key
from traceml.collect.relay.server import RelayServer
from traceml.recording.reader import RecordingReader
from traceml.recording.writer import RecordingWriter
from traceml.schema import catalog

ROW = (0,) * len(catalog.STEP_COLUMNS)


def serve(run_dir: str, nodes: int, stop: Any) -> None:
    """Node 0."""
    path = Path(run_dir)
    server = RelayServer(path, create_key(path, os.environ), nodes + 1)
    while not stop.is_set():
        server.pump(0.1)
    server.close(0)


class Nodes:
    """All other nodes: their recordings, and one relay each, in a few threads."""

    def __init__(self, place: Path, node0: Path, nodes: int, ranks: int) -> None:
        self.writers: list[RecordingWriter] = []
        self.clients: list[RelayClient] = []
        for node in range(1, nodes + 1):
            run_dir = place / f"node{node}"
            (run_dir / "recording").mkdir(parents=True)
            for local in range(ranks):
                rank = node * ranks + local
                stem = run_dir / "recording" / f"rank-{rank}.{1000 + local}.steps"
                header = {"identity": {"rank": rank, "node_rank": node}}
                self.writers.append(RecordingWriter(str(stem), catalog.STEP_COLUMNS, header))
            client = RelayClient(run_dir, node, shared_dir=node0, environment={})
            self.clients.append(client)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._pump)
        self._thread.start()

    def append(self, rows: int) -> None:
        """So many rows for every rank."""
        for writer in self.writers:
            for _ in range(rows):
                writer.append(*ROW)

    def close(self) -> None:
        """End all relays."""
        self._stop.set()
        self._thread.join()
        for client in self.clients:
            client.close(5)

    def _pump(self) -> None:
        while not self._stop.is_set():
            for client in self.clients:
                client.pump(0)
            time.sleep(0.002)


def landed_rows(node0: Path) -> int:
    """Rows that node 0 has, from the sequence numbers on its disk."""
    paths = (node0 / "recording").glob("rank-*.steps")
    return sum(len(RecordingReader(path).rows()) for path in paths)


def until_landed(node0: Path, nodes: Nodes) -> None:
    """Wait until node 0 has every row that was written."""
    while landed_rows(node0) < sum(w.count for w in nodes.writers):
        time.sleep(0.1)


def main() -> int:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (
        ("nodes", 64),
        ("ranks", 8),
        ("rows", 2000),
        ("rate", 20),
        ("seconds", 10),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        node0 = Path(place) / "node0"
        (node0 / "recording").mkdir(parents=True)
        create_key(node0, {})
        stop = multiprocessing.Event()
        process = multiprocessing.Process(target=serve, args=(str(node0), given.nodes, stop))
        process.start()
        server = psutil.Process(process.pid)
        nodes = Nodes(Path(place), node0, given.nodes, given.ranks)
        nodes.append(1)
        until_landed(node0, nodes)

        before, began = sum(server.cpu_times()[:2]), time.monotonic()
        nodes.append(given.rows)
        until_landed(node0, nodes)
        took_s, cpu_s = time.monotonic() - began, sum(server.cpu_times()[:2]) - before
        rows = given.rows * len(nodes.writers)
        print(f"backlog: {rows} rows in {took_s:.1f} s: {rows / took_s:,.0f} rows/s;", end=" ")
        print(f"node 0: {cpu_s:.1f} s CPU, {1e6 * cpu_s / rows:.1f} us a row")

        before, began = sum(server.cpu_times()[:2]), time.monotonic()
        for second in range(given.seconds * 10):
            nodes.append(max(1, given.rate // 10))
            time.sleep(max(0.0, began + (second + 1) / 10 - time.monotonic()))
        took_s, cpu_s = time.monotonic() - began, sum(server.cpu_times()[:2]) - before
        rows = sum(w.count for w in nodes.writers) - rows - len(nodes.writers)
        print(f"steady: {rows / took_s:,.0f} rows/s for {took_s:.1f} s;", end=" ")
        print(f"node 0: {100 * cpu_s / took_s:.0f} % of a core, {server.memory_info().rss >> 20} MiB")
        until_landed(node0, nodes)
        nodes.close()
        stop.set()
        process.join()
    return 0


if __name__ == "__main__":
    sys.exit(main())
