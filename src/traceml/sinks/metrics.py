"""The figures of a run for monitoring systems: as Prometheus text, and as OTLP/HTTP JSON for a collector.

Names and units are OpenTelemetry's, in base units; the Prometheus names follow from them.
"""

import json
import re
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import unquote

from traceml.errors import CommandError, printable
from traceml.schema.catalog import METRICS
from traceml.schema.live import Live
from traceml.schema.summary import Section

Labels = dict[str, str]
UNITS: Final = {
    "ms": ("s", 1e-3),
    "bytes": ("By", 1.0),
    "percent": ("1", 1e-2),
    "w": ("W", 1.0),
    "c": ("Cel", 1.0),
}
"""Of a metric in the catalogue: the base unit, and the factor to it."""
TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
SUFFIXES: Final = {"s": "_seconds", "By": "_bytes", "W": "_watts", "Cel": "_celsius", "1": "", "": ""}
ESCAPES: Final = {"\\": "\\\\", "\n": "\\n", '"': '\\"'}
IDLE_S: Final = 10.0
OTLP_PATH: Final = "/v1/metrics"
CUMULATIVE: Final = 2
POST_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Figure:
    """One metric with all its values at this moment."""

    name: str
    unit: str  # UCUM: s, By, 1, W, Cel, or empty
    help: str
    values: list[tuple[Labels, float]]
    is_total: bool = False  # it only grows


def figures_of(live: Live) -> list[Figure]:
    """Every figure that is known."""
    summary, run, primary = live.summary, live.summary.run, live.summary.primary_diagnosis
    about = {"status": run.status, "state": live.state, "world_size": str(run.world_size)}
    verdict = {"diagnosis": primary.status, "severity": primary.severity, "phase": primary.phase or ""}
    verdict["ranks"] = ",".join(map(str, primary.ranks))
    times = [
        ({"rank": rank, "phase": key.removesuffix("_ms")}, value * 1e-3)
        for rank, member in summary.step_time.ranks.items()
        for key, value in member.metrics.items()
        if value is not None and key.endswith("_ms")
    ]
    skews = [
        ({"phase": key.removesuffix("_ms")}, metric.skew)
        for key, metric in summary.step_time.metrics.items()
        if metric.skew is not None and key.endswith("_ms")
    ]
    duration = "Mean time per step of each rank in each phase; phase `step` is the whole step."
    skew = "How far the worst rank is above the median rank, as a share of the median rank."
    speedup = "How many times as fast the run could be."
    found = [
        Figure("traceml.run", "", "Always 1; its labels say which run this is.", [(about, 1.0)]),
        Figure("traceml.steps", "", "Completed steps.", _one(float(run.steps.total or 0)), is_total=True),
        Figure("traceml.quiet", "s", "Time since the last completed step.", _one(live.quiet_s)),
        Figure("traceml.steps_per_second", "", "Recent steps per second.", _one(live.steps_per_s)),
        Figure("traceml.verdict", "", "1 for the current diagnosis.", [(verdict, 1.0)]),
        Figure("traceml.potential_speedup", "1", speedup, _one(primary.potential_speedup)),
        Figure("traceml.phase.duration", "s", duration, times),
        Figure("traceml.phase.skew", "1", skew, skews),
        *_by_member("traceml.memory", summary.step_memory, "rank"),
        *_by_member("traceml.process", summary.process, "rank"),
        *_by_member("traceml.system", summary.system, "node"),
    ]
    return [figure for figure in found if figure.values]


def _one(value: float | None) -> list[tuple[Labels, float]]:
    return [] if value is None else [({}, value)]


def _by_member(prefix: str, section: Section, label: str) -> Iterator[Figure]:
    """One figure per metric, with a value for each rank or node."""
    members = section.ranks if label == "rank" else section.nodes
    for metric in METRICS:
        is_here = prefix.endswith(f".{metric.section.removeprefix('step_')}")
        if not is_here or metric.unit not in UNITS:
            continue
        unit, factor = UNITS[metric.unit]
        name = f"{prefix}.{metric.key.removesuffix('_bytes').removesuffix('_percent')}"
        name = name.removesuffix("_c").removesuffix("_w") + (".ratio" if metric.unit == "percent" else "")
        values = [
            ({label: key}, value * factor)
            for key, member in members.items()
            if (value := member.metrics.get(metric.key)) is not None
        ]
        yield Figure(name, unit, f"{metric.label}: {metric.help}.", values)


def prometheus_text(figures: list[Figure], run: str) -> str:
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


def serve_prometheus(host: str, port: int, text: Callable[[], str]) -> str:
    """Answer scrapes in threads of this process; returns the address."""

    class Answer(BaseHTTPRequestHandler):
        timeout = IDLE_S  # a client that asks nothing is let go

        def do_GET(self) -> None:
            is_known = self.path.partition("?")[0] in ("/", "/metrics")
            body = text().encode() if is_known else b"try /metrics\n"
            self.send_response(200 if is_known else 404)
            self.send_header("Content-Type", TEXT if is_known else "text/plain")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Standard error belongs to the training."""

    try:
        server = _Server((host, port), Answer)
    except OSError as problem:
        where = f"{printable(host)}:{port}"
        raise CommandError(f"--prometheus {where}: cannot listen there ({problem.strerror})") from None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://{host}:{server.server_port}/metrics"


def otlp_request(
    figures: list[Figure], run: str, host: str, started_ns: int, now_ns: int, version: str
) -> bytes:
    """One export request."""
    resource = {"service.name": "traceml", "traceml.run": run, "host.name": host}
    metrics = [_metric(figure, str(started_ns), str(now_ns)) for figure in figures]
    scope = {"scope": {"name": "traceml", "version": version}, "metrics": metrics}
    whole = {"resource": {"attributes": _attributes(resource)}, "scopeMetrics": [scope]}
    return json.dumps({"resourceMetrics": [whole]}).encode()


def _metric(figure: Figure, started_ns: str, now_ns: str) -> dict[str, Any]:
    when = {"timeUnixNano": now_ns} | ({"startTimeUnixNano": started_ns} if figure.is_total else {})
    data: dict[str, Any] = (
        {"aggregationTemporality": CUMULATIVE, "isMonotonic": True} if figure.is_total else {}
    )
    data["dataPoints"] = [
        {"attributes": _attributes(labels), **when, "asDouble": value} for labels, value in figure.values
    ]
    about = {"name": figure.name, "unit": figure.unit, "description": figure.help}
    return {**about, "sum" if figure.is_total else "gauge": data}


def _attributes(labels: Labels) -> list[dict[str, Any]]:
    return [{"key": key, "value": {"stringValue": value}} for key, value in labels.items()]


class Collector:
    """Where OTLP requests go."""

    def __init__(self, url: str, environment: Mapping[str, str]) -> None:
        """Headers, such as a key, come from OTEL_EXPORTER_OTLP_HEADERS, as for any exporter."""
        self.url = url if url.partition("?")[0].endswith(OTLP_PATH) else url.rstrip("/") + OTLP_PATH
        given = environment.get("OTEL_EXPORTER_OTLP_HEADERS", "").split(",")
        pairs = (entry.partition("=") for entry in given if "=" in entry)
        self._headers = {name.strip(): unquote(value.strip()) for name, _, value in pairs}

    def post(self, body: bytes) -> str | None:
        """Send it; what went wrong, if anything."""
        headers = {"Content-Type": "application/json", **self._headers}
        request = urllib.request.Request(self.url, body, headers)  # noqa: S310 - http and https only
        try:
            with urllib.request.urlopen(request, timeout=POST_S) as answer:  # noqa: S310
                answer.read(1 << 16)
        except (OSError, ValueError) as problem:
            return printable(str(getattr(problem, "reason", None) or problem))[:200]
        return None
