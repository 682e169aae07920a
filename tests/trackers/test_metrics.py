"""`--prometheus` and `--otlp`: a run in monitoring systems: a real Prometheus, and OTLP's own types."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from tests.running.processes import environment, eventually, traced
from tests.running.scripts import write
from tests.scenarios.preloaded import PreloadedTraceml
from tests.unit import made
from traceml.analyze.summarize import summarize
from traceml.errors import CommandError
from traceml.schema.live import LIVE, Live
from traceml.schema.recorded import RunFacts
from traceml.settings import resolve
from traceml.sinks.metrics import figures_of, prometheus_text

HELD = """
import os
def each(step):
    time.sleep(0.002)
    while step == 30 and not os.path.exists("stop"):
        time.sleep(0.02)
train(40, each)
"""
PROMETHEUS = shutil.which("prometheus")


class Collector:
    """An OTLP receiver, which reads requests with OpenTelemetry's own classes."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.headers: list[dict[str, str]] = []
        collector = self

        class Take(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.headers.append(
                    {"path": self.path, **{k.lower(): v for k, v in self.headers.items()}}
                )
                collector.requests.append(json_format.Parse(body, ExportMetricsServiceRequest()))
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *words: object) -> None:
                """Silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Take)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def newest(self) -> dict[str, list[tuple[dict[str, str], float]]]:
        """The metrics of the last request: attributes and value of each point."""
        (whole,) = self.requests[-1].resource_metrics
        (scope,) = whole.scope_metrics
        return {
            metric.name: [
                ({a.key: a.value.string_value for a in point.attributes}, point.as_double)
                for point in (metric.gauge if metric.HasField("gauge") else metric.sum).data_points
            ]
            for metric in scope.metrics
        }


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


def ask(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        found: str = answer.read().decode()
        return found


@contextmanager
def real_prometheus(folder: Path, target: str) -> Iterator[str]:
    """A Prometheus that scrapes this target; its own address."""
    if PROMETHEUS is None:
        pytest.skip("needs Debian's prometheus; `make prometheus` installs it")
    jobs = [{"job_name": "traceml", "scrape_interval": "1s", "static_configs": [{"targets": [target]}]}]
    (folder / "prometheus.yml").write_text(json.dumps({"scrape_configs": jobs}))  # JSON is YAML too
    with socket.create_server(("127.0.0.1", 0)) as found:
        address = f"127.0.0.1:{found.getsockname()[1]}"
    places = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb"]
    with (folder / "prometheus.log").open("w") as log:
        words = [PROMETHEUS, *places, f"--web.listen-address={address}"]
        running = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        yield f"http://{address}"
    finally:
        running.kill()
        running.wait()


def query(server: str, what: str) -> list[dict[str, Any]]:
    """What Prometheus answers; nothing while it starts."""
    try:
        found: list[dict[str, Any]] = json.loads(ask(f"{server}/api/v1/query?query={quote(what)}"))["data"][
            "result"
        ]
    except (urllib.error.URLError, ConnectionError):
        return []
    return found


def test_a_running_training_is_seen_by_prometheus_and_a_collector(
    tmp_path: Path, collector: Collector
) -> None:
    """Both get phase times, verdict and memory by rank while it trains; at the end the collector gets it."""
    write(tmp_path, HELD)
    words = ["train.py", "--run-name", "r", "--prometheus", "0", "--otlp", collector.url]
    variables = {"OTEL_METRIC_EXPORT_INTERVAL": "500", "OTEL_EXPORTER_OTLP_HEADERS": "x-key=a%20b"}
    with (tmp_path / "err").open("w") as err:
        running = subprocess.Popen(traced(*words), cwd=tmp_path, env=environment(**variables), stderr=err)
    try:
        eventually(lambda: "metrics: http" in (tmp_path / "err").read_text(), "no address", seconds=120)
        address = (tmp_path / "err").read_text().partition("metrics: ")[2].split()[0]
        assert address.startswith("http://127.0.0.1:")
        eventually(lambda: 'phase="forward"' in ask(address), "no phases", seconds=120)
        check_text(ask(address))
        with pytest.raises(urllib.error.HTTPError, match="404"):
            ask(address.replace("/metrics", "/other"))
        check_collector(collector)
        if PROMETHEUS is not None:
            with real_prometheus(tmp_path, address.split("/")[2]) as server:
                what = 'traceml_phase_duration_seconds{run="r",rank="0",phase="step"}'
                eventually(lambda: bool(query(server, what)), "Prometheus has no step time", seconds=120)
                assert float(query(server, what)[0]["value"][1]) > 0.002
                assert query(server, 'up{job="traceml"}')[0]["value"][1] == "1"
        (tmp_path / "stop").touch()
        assert running.wait(120) == 0, (tmp_path / "err").read_text()
    finally:
        running.kill()
        running.wait()
    ((about, _),) = collector.newest()["traceml.run"]
    assert about == {"status": "completed", "state": "finished", "world_size": "1"}
    assert collector.newest()["traceml.steps"] == [({}, 40.0)]


def check_text(text: str) -> None:
    """A scrape is what prometheus_client's own parser reads."""
    found = {family.name: family for family in text_string_to_metric_families(text)}
    assert found["traceml_steps"].type == "counter"
    times = {s.labels["phase"]: s.value for s in found["traceml_phase_duration_seconds"].samples}
    assert times["step"] > times["forward"] > 0
    assert found["traceml_memory_rss_bytes"].samples[0].labels == {"run": "r", "rank": "0"}
    assert found["traceml_memory_rss_bytes"].samples[0].value > 1e7
    assert found["traceml_verdict"].samples[0].labels["diagnosis"]


def check_collector(collector: Collector) -> None:
    """Requests are OTLP, with the user's headers."""
    eventually(
        lambda: len(collector.requests) > 1 and "traceml.phase.duration" in collector.newest(), "no OTLP"
    )
    assert collector.headers[0]["path"] == "/v1/metrics"
    assert collector.headers[0]["x-key"] == "a b"
    (whole,) = collector.requests[-1].resource_metrics
    named = {a.key: a.value.string_value for a in whole.resource.attributes}
    assert (named["service.name"], named["traceml.run"]) == ("traceml", "r")
    (steps,) = [m for m in whole.scope_metrics[0].metrics if m.name == "traceml.steps"]
    assert steps.sum.is_monotonic
    assert steps.sum.aggregation_temporality == 2
    assert {"rank": "0", "phase": "step"} in [
        labels for labels, _ in collector.newest()["traceml.phase.duration"]
    ]


def test_a_busy_port_and_a_silent_receiver_do_not_matter(tmp_path: Path, preloaded: PreloadedTraceml) -> None:
    """Neither keeps the training or its result waiting."""
    write(tmp_path, "train(20)")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        for name, words in {
            "busy": ("--prometheus", str(port)),
            "silent": ("--otlp", f"http://127.0.0.1:{port}"),
        }.items():
            done = preloaded("run", "train.py", "--run-name", name, *words, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            assert (tmp_path / "logs" / name / "final_summary.json").exists()
            if name == "busy":
                line = f"--prometheus 127.0.0.1:{port}: cannot listen there (Address already in use)"
                assert f"traceml: {line}\n" in done.stderr


def test_figures_of_several_ranks() -> None:
    """Each rank has its own values; the verdict names the slow one; skew says how far it is behind."""
    ranks = [
        made.rank(
            made.steps(
                60, forward=10, backward=20 + 40 * n, sync=40 - 40 * n, measured=(*made.ALL_MEASURED, "sync")
            ),
            n,
            world_size=2,
        )
        for n in (0, 1)
    ]
    live = Live(summarize(made.run(*ranks), RunFacts('a "b"\n')), LIVE, steps_per_s=2.0)
    found = {figure.name: figure.values for figure in figures_of(live)}
    times = {(labels["rank"], labels["phase"]): value for labels, value in found["traceml.phase.duration"]}
    assert times["0", "backward"] == pytest.approx(0.02)
    assert times["1", "backward"] == pytest.approx(0.06)
    assert [labels["ranks"] for labels, _ in found["traceml.verdict"]] == ["1"]
    assert {labels["rank"] for labels, _ in found["traceml.memory.rss"]} == {"0", "1"}
    skew = {labels["phase"]: value for labels, value in found["traceml.phase.skew"]}
    assert skew["backward"] > 0.4
    text = prometheus_text(figures_of(live), 'a "b"\n\\')
    (steps,) = next(f for f in text_string_to_metric_families(text) if f.name == "traceml_steps").samples
    assert steps.labels == {"run": 'a "b"\n\\'}


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("prometheus", "web", "whole number"),
        ("prometheus", "99999", "65535"),
        ("otlp", "localhost:4318", "http://"),
        ("otlp", "http://:4318", "http://localhost:4318"),
    ],
)
def test_a_wrong_address_is_one_clear_line(key: str, value: str, reason: str) -> None:
    """The message says what to use."""
    with pytest.raises(CommandError, match=reason):
        resolve({key: value}, {}, environment={})
