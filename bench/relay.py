"""The relay with many nodes: how fast rows reach node 0, and what that costs node 0.

    python bench/relay.py [--nodes 64] [--ranks 8] [--rows 2000] [--rate 20] [--seconds 10]

First, a backlog of `rows` per rank from all nodes at once: rows per second. This machine is the limit,
because one process on the same cores simulates all nodes. Then a steady `rate` of steps per second and
rank: CPU use of node 0.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from traceml.monitor.launch import ThisNode
from traceml.monitor.relay.access import create_key
from traceml.monitor.relay.client import RelayClient
from traceml.monitor.relay.server import RelayServer
from traceml.monitor.relay.store import Limits
from traceml.recording.reader import RecordingReader
from traceml.recording.writer import RecordingWriter
from traceml.schema import catalog

ROW = (0,) * len(catalog.STEP_COLUMNS)


def this_node(index: int, nodes: int) -> ThisNode:
    """Node 0, or one of so many others; node 0's folder is called `node0`."""
    return ThisNode(index, nodes + 1, "node0", None, 0, None)


def serve(run_dir: str, nodes: int, stop: Any) -> None:
    """Node 0."""
    server = RelayServer(this_node(0, nodes), Path(run_dir), {}, Limits())
    while not stop.is_set():
        server.pump(0.1)
    server.close(0)


class Nodes:
    """All other nodes, with their recordings and one relay client each."""

    def __init__(self, place: Path, nodes: int, ranks: int) -> None:
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
            client = RelayClient(this_node(node, nodes), run_dir, {})
            self.clients.append(client)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._pump)
        self._thread.start()

    def append(self, rows: int) -> None:
        """Append this many rows for every rank."""
        for writer in self.writers:
            for _ in range(rows):
                writer.append(*ROW)

    def close(self) -> None:
        """Close all relay clients."""
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
    """How many rows are on the disk of node 0."""
    paths = (node0 / "recording").glob("rank-*.steps")
    return sum(len(RecordingReader(path).rows()) for path in paths)


def until_landed(node0: Path, nodes: Nodes) -> None:
    """Wait until node 0 has all rows."""
    while landed_rows(node0) < sum(w.count for w in nodes.writers):
        time.sleep(0.1)


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured; `bench/scale.py` uses it too."""

    backlog_rows: int
    backlog_s: float
    backlog_cpu_s: float
    steady_rows_per_s: float
    steady_s: float
    steady_cpu_s: float
    rss_bytes: int


def measure(nodes: int, ranks: int, rows: int, rate: int, seconds: int) -> Figures:
    """A backlog of `rows` per rank from all nodes at once, then a steady `rate` for some `seconds`."""
    with tempfile.TemporaryDirectory() as place:
        node0 = Path(place) / "node0"
        (node0 / "recording").mkdir(parents=True)
        create_key(node0, {})  # before the nodes look for it
        stop = multiprocessing.Event()
        process = multiprocessing.Process(target=serve, args=(str(node0), nodes, stop))
        process.start()
        server = psutil.Process(process.pid)
        others = Nodes(Path(place), nodes, ranks)
        others.append(1)
        until_landed(node0, others)

        before, began = sum(server.cpu_times()[:2]), time.monotonic()
        others.append(rows)
        until_landed(node0, others)
        backlog_s, backlog_cpu_s = time.monotonic() - began, sum(server.cpu_times()[:2]) - before
        written = sum(w.count for w in others.writers)

        before, began = sum(server.cpu_times()[:2]), time.monotonic()
        for tenth in range(seconds * 10):
            others.append(max(1, rate // 10))
            time.sleep(max(0.0, began + (tenth + 1) / 10 - time.monotonic()))
        steady_s, steady_cpu_s = time.monotonic() - began, sum(server.cpu_times()[:2]) - before
        steady_rows = sum(w.count for w in others.writers) - written
        rss_bytes = int(server.memory_info().rss)
        until_landed(node0, others)
        others.close()
        stop.set()
        process.join()
    backlog_rows = rows * nodes * ranks
    per_s = steady_rows / steady_s
    return Figures(backlog_rows, backlog_s, backlog_cpu_s, per_s, steady_s, steady_cpu_s, rss_bytes)


def main() -> int:
    """Measure and print."""
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
    found = measure(given.nodes, given.ranks, given.rows, given.rate, given.seconds)
    print(f"backlog: {found.backlog_rows} rows in {found.backlog_s:.1f} s:", end=" ")
    print(f"{found.backlog_rows / found.backlog_s:,.0f} rows/s;", end=" ")
    per_row_us = 1e6 * found.backlog_cpu_s / found.backlog_rows
    print(f"node 0: {found.backlog_cpu_s:.1f} s CPU, {per_row_us:.1f} us per row")
    print(f"steady: {found.steady_rows_per_s:,.0f} rows/s for {found.steady_s:.1f} s;", end=" ")
    share = found.steady_cpu_s / found.steady_s
    print(f"node 0: {100 * share:.0f} % of a core, {found.rss_bytes >> 20} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
