"""OpenTelemetry: the figures as OTLP/HTTP JSON, posted to a collector."""

import json
import urllib.request
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from traceml.errors import CommandError, printable
from traceml.sinks.figures import Figure, Labels

PATH: Final = "/v1/metrics"
CUMULATIVE: Final = 2
TIMEOUT_S: Final = 2.0


def encode(figures: list[Figure], run: str, host: str, started_ns: int, now_ns: int, version: str) -> bytes:
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


class Receiver:
    """A collector, known by its address."""

    def __init__(self, url: str, environment: Mapping[str, str]) -> None:
        """Headers, such as a key, come from OTEL_EXPORTER_OTLP_HEADERS, as for any exporter."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise CommandError(f"--otlp: invalid value {printable(url)[:60]!r}; use http://host:4318")
        self.url = url if parts.path.endswith(PATH) else url.rstrip("/") + PATH
        given = environment.get("OTEL_EXPORTER_OTLP_HEADERS", "").split(",")
        pairs = (entry.partition("=") for entry in given if "=" in entry)
        self._headers = {name.strip(): unquote(value.strip()) for name, _, value in pairs}

    def post(self, body: bytes) -> str | None:
        """Send it; what went wrong, if anything."""
        headers = {"Content-Type": "application/json", **self._headers}
        request = urllib.request.Request(self.url, body, headers)  # noqa: S310 - http and https only
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
                answer.read(1 << 16)
        except (OSError, ValueError) as problem:
            return printable(str(getattr(problem, "reason", None) or problem))[:200]
        return None
