"""Prometheus: the figures in its text format, on an address of this machine."""

import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from traceml.errors import CommandError, printable
from traceml.sinks.figures import Figure, Labels

CONTENT: Final = "text/plain; version=0.0.4; charset=utf-8"
SUFFIXES: Final = {"s": "_seconds", "By": "_bytes", "W": "_watts", "Cel": "_celsius", "1": "", "": ""}
ESCAPES: Final = {"\\": "\\\\", "\n": "\\n", '"': '\\"'}
IDLE_S: Final = 10.0


def render(figures: list[Figure], run: str) -> str:
    """The text of one scrape."""
    lines = []
    for figure in figures:
        name = re.sub(r"[^a-zA-Z0-9_]", "_", figure.name) + SUFFIXES[figure.unit]
        name += "_total" if figure.is_total else "_info" if figure.name == "traceml.run" else ""
        lines.append(f"# HELP {name} {figure.help}")
        lines.append(f"# TYPE {name} {'counter' if figure.is_total else 'gauge'}")
        lines += [f"{name}{_labels({'run': run, **labels})} {value!r}" for labels, value in figure.values]
    return "\n".join(lines) + "\n"


def _labels(labels: Labels) -> str:
    told = (f'{name}="{"".join(ESCAPES.get(ch, ch) for ch in text)}"' for name, text in labels.items())
    return "{" + ",".join(told) + "}"


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """A client that went away is no news."""


def serve(host: str, port: int, text: Callable[[], str]) -> str:
    """Answer scrapes in threads of this process; returns the address."""

    class Answer(BaseHTTPRequestHandler):
        timeout = IDLE_S  # a client that asks nothing is let go

        def do_GET(self) -> None:
            is_known = self.path.partition("?")[0] in ("/", "/metrics")
            body = text().encode() if is_known else b"try /metrics\n"
            self.send_response(200 if is_known else 404)
            self.send_header("Content-Type", CONTENT if is_known else "text/plain")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Standard error belongs to the training."""

    try:
        server = _Server((host, port), Answer)
    except (OSError, OverflowError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise CommandError(f"--prometheus {printable(host)}:{port}: cannot listen there ({reason})") from None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://{host}:{server.server_port}/metrics"
