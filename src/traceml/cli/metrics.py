"""`traceml metrics`: a run for monitoring systems; a process of its own, which `traceml run` starts."""

import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Final

from traceml import __version__
from traceml.cli.main import Parser
from traceml.errors import failsafe, say, say_once
from traceml.monitor.live import LiveRun
from traceml.settings import address_of
from traceml.sinks import metrics

FRESH_S: Final = 1.0
"""A look at the run that is not older than this serves the next scrape too."""
EVERY_S: Final = 10.0


class Watched:
    """The run, read when a scraper asks."""

    def __init__(self, folder: Path) -> None:
        self._look = failsafe("looking at the run", None)(LiveRun(folder).look)
        self._lock = threading.Lock()
        self._looked_s = -FRESH_S
        self._figures: list[metrics.Figure] = []

    def figures(self, fresh: bool = False) -> list[metrics.Figure]:
        with self._lock:
            if fresh or time.monotonic() - self._looked_s >= FRESH_S:
                live = self._look()
                self._figures = metrics.figures_of(live) if live is not None else []
                self._looked_s = time.monotonic()
            return self._figures


def main(words: list[str]) -> int:
    """Serve and send until standard input closes, which is when the run has ended."""
    parser = Parser("traceml metrics", "traceml metrics FOLDER [options]", str(__doc__))
    parser.add_argument("folder")
    parser.add_argument("--prometheus", default="")
    parser.add_argument("--otlp", default="")
    given = parser.parse_args(words)
    folder = Path(given.folder)
    watched, ended = Watched(folder), threading.Event()
    collector = metrics.Collector(given.otlp, os.environ) if given.otlp else None
    if given.prometheus:
        address = address_of(given.prometheus)
        url = metrics.serve_prometheus(
            *address, lambda: metrics.prometheus_text(watched.figures(), folder.name)
        )
        say(f"metrics: {url}")
    threading.Thread(target=_wait_for_end, args=(ended,), daemon=True).start()
    # As for any exporter, this variable says how often, in milliseconds.
    every = os.environ.get("OTEL_METRIC_EXPORT_INTERVAL", "")
    every_s = max(int(every) / 1e3, 0.1) if every.isascii() and every.isdigit() else EVERY_S
    started_ns, host = time.time_ns(), socket.gethostname()
    while collector is not None:
        is_over = ended.wait(every_s)
        figures = watched.figures(fresh=True)
        body = metrics.otlp_request(figures, folder.name, host, started_ns, time.time_ns(), __version__)
        if (problem := collector.post(body)) is not None:
            say_once(f"no metrics reach {collector.url} ({problem}); trying again")
        if is_over:
            return 0
    ended.wait()
    return 0


def _wait_for_end(ended: threading.Event) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    ended.set()
