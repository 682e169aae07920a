"""What tests of several folders share."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

from tests import fuzz
from tests.scenarios.preloaded import PreloadedTraceml

# Containers often forbid it. Then every worker compiles every test again, and every child all of TraceML.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Helpers that check: without this their failures show no values.
pytest.register_assert_rewrite("tests.examples.promises", "tests.scale.rolled", "tests.transparency.cases")

PRESSURE = Path("/proc/pressure/cpu")
TRIES = 3
STARVED_SHARE = 0.5
repeated: list[str] = []


STACK = {"examples", "frameworks", "guides", "trackers"}
"""Folders of tests with other people's libraries, servers and documents: a third of the time of all tests."""


FIRST = ("scenarios", "running", "transparency", "live", "deep", "relay")
"""Folders whose files take minutes: they begin first, so that no worker has one of them left at the end."""


def pytest_configure(config: pytest.Config) -> None:
    """`make check` leaves out what is thorough: tests with that mark, and most examples of the fuzzers."""
    fuzz.quick = "not thorough" in config.option.markexpr


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that `make test` leaves to `make test-long`, and put the long files first."""
    for item in items:
        if item.path.parent.name in STACK:
            item.add_marker(pytest.mark.stack)
    places = {name: place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(item.path.parent.name, len(FIRST)))


@pytest.fixture(scope="session")
def preloaded() -> Iterator[PreloadedTraceml]:
    """`traceml run` with torch already loaded; see tests/scenarios/preload_server.py."""
    made = PreloadedTraceml()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _ctrl_c_is_not_ignored() -> Iterator[None]:
    """Tests that were started in the background (`make test &`) ignore SIGINT, and children inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """A `timed` test that fails while the machine lacks cores is repeated: the times that it judges were not
    those of the training. With cores to spare the first failure counts, and of three the last always does."""
    if item.get_closest_marker("timed") is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for left in reversed(range(TRIES)):
        began, waited = time.monotonic(), core_wait_s()
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        share = (core_wait_s() - waited) / (time.monotonic() - began)
        if not any(report.failed for report in reports) or share < STARVED_SHARE or not left:
            break
        repeated.append(item.nodeid)
        item._initrequest()  # type: ignore[attr-defined]  # new fixtures
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def core_wait_s() -> float:
    """For how long, since the machine started, some process has waited for a core."""
    try:
        first = PRESSURE.read_text().split("\n", 1)[0]
    except OSError:
        return 0.0
    return int(first.rpartition("total=")[2]) / 1e6


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Workers tell the main process what they repeated."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["repeated"] = repeated


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """A worker has ended."""
    repeated.extend(getattr(node, "workeroutput", {}).get("repeated", []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Repeated tests are listed, so that one that always needs it is seen."""
    for name in repeated:
        terminalreporter.write_line(f"repeated, because the machine lacked cores: {name}")
