"""Summaries for pages, made by hand: from recordings of no training, through the real analysis."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver

from tests.live.browser import browser
from tests.unit import made
from traceml.analyze.summarize import summarize
from traceml.monitor.result import report
from traceml.present.page import PAGE
from traceml.schema.recorded import RunFacts
from traceml.schema.summary import Summary

ROOT = Path(__file__).resolve().parents[2]
PARALLEL = ("input", "forward", "backward", "sync", "optimizer", "validation", "checkpoint", "no_grad")
USUAL: dict[str, Any] = {"input": 1.0, "forward": 4.0, "backward": 4.0, "optimizer": 1.0}


def build() -> None:
    """Make sure that the page is there and current; skip where it cannot be built."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "web" / "build.py")], capture_output=True, text=True, check=False
    )
    if done.returncode or not PAGE.exists():
        pytest.skip(f"needs the built page: {done.stderr.strip()[-200:]}")


@contextmanager
def page_browser() -> Iterator[webdriver.Chrome]:
    """A browser, once the page is built."""
    build()
    with browser() as driver:
        yield driver


def facts(name: str = "demo", status: str = "completed", **more: Any) -> RunFacts:
    """What the monitor knows about the run."""
    return RunFacts(
        name, status, 0, begin_ns=0, end_ns=10_000_000_000, cores=4, command=["python", "train.py"], **more
    )


def one_rank(about: RunFacts | None = None, count: int = 100, **phases: Any) -> Summary:
    """A training of one rank; slow input unless `phases` says otherwise."""
    rows = made.steps(count, **{**USUAL, "input": 30.0, **phases})
    gauges = {"system_rows": made.system(), "process_rows": made.process()}
    return summarize(made.run(made.rank(rows), **gauges), about or facts())


def straggler(ranks: int = 4, slow: int = 2, count: int = 60, final: bool = True) -> Summary:
    """Ranks that wait for one of them, whose backward pass takes three times as long."""
    usual = made.steps(count, measured=PARALLEL, **{**USUAL, "sync": 8.0})
    late = made.steps(count, measured=PARALLEL, **{**USUAL, "backward": 12.0, "sync": 0.05})
    found = [made.rank(late if r == slow else usual, r, world_size=ranks) for r in range(ranks)]
    return summarize(made.run(*found), facts(), final)


def write(folder: Path, summary: Summary, name: str = "report.html") -> str:
    """The report of this summary on disk; its address."""
    path = folder / name
    path.write_bytes(report(summary))
    return path.as_uri()
