"""The real page at the real server, in a real browser. Skipped where there is no browser or no built page."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.live.serving import Server, end, finished, going_on, served
from tests.scenarios.scenario import SRC

browsers = pytest.importorskip("tests.live.browser")
pytestmark = pytest.mark.skipif(
    not (SRC / "traceml" / "present" / "page.html").exists(), reason="the page is not built"
)


def shows(driver: Any, *words: str, gone: str = "") -> None:
    """Wait until the page shows all of these words."""
    from selenium.webdriver.common.by import By

    until, text = time.monotonic() + 30, ""
    while not (all(word in text for word in words) and (not gone or gone not in text)):
        assert time.monotonic() < until, f"{words} not in: {text[:2000]}"
        text = driver.find_element(By.TAG_NAME, "body").text


def at(server: Server, place: str) -> str:
    return f"{server.url.partition('#')[0]}#{place}"


def test_the_page_follows_a_run_and_compares_two(tmp_path: Path) -> None:
    """New steps and the end appear without a reload; list and comparison work. The policy blocks nothing that
    the page needs: no error in the console, and no request to another server."""
    logs = tmp_path / "logs"
    finished(logs, before="slow", after="fast")
    run = going_on(logs, ranks=8)
    with served(tmp_path, "logs/live") as server, browsers.browser() as driver:
        driver.get(server.url)
        shows(driver, "INPUT STRAGGLER", "40 steps")
        run.append(25)
        shows(driver, "65 steps")
        end(run)
        shows(driver, "finished", "INPUT-BOUND")
        driver.get(at(server, "/"))
        shows(driver, "before", "after", "live")
        driver.get(at(server, "/compare/before/after"))
        shows(driver, "IMPROVEMENT")
        assert browsers.problems(driver) == []
        own = f"http://{server.host}:{server.port}{server.base}"
        assert [asked for asked in browsers.requests(driver) if not asked.startswith((own, "data:"))] == []


@pytest.mark.stack
def test_many_tabs_of_one_browser_all_work(tmp_path: Path) -> None:
    """A browser opens six connections to a server; the tenth tab is answered like the first."""
    going_on(tmp_path / "logs", ranks=8)
    with served(tmp_path, "logs/live") as server, browsers.browser() as driver:
        for _ in range(10):
            driver.switch_to.new_window("tab")
            driver.set_page_load_timeout(30)
            driver.get(server.url)
            shows(driver, "INPUT STRAGGLER")


def test_a_server_that_is_gone_is_not_taken_for_a_live_run(tmp_path: Path) -> None:
    """The page says that the connection is lost; a run that had ended by then keeps its final state."""
    run = going_on(tmp_path / "logs", ranks=2)
    with browsers.browser() as driver:
        with served(tmp_path, "logs/live") as server:
            driver.get(server.url)
            shows(driver, "INPUT STRAGGLER")
        shows(driver, "No connection")
        with served(tmp_path, "logs/live") as server:
            driver.get(server.url)
            shows(driver, "40 steps")
            end(run)
            shows(driver, "finished")
        assert_stays(lambda: shows(driver, "finished", gone="No connection"))


def assert_stays(check: Callable[[], None]) -> None:
    """It holds for a while: longer than a page waits before it asks again."""
    until = time.monotonic() + 3
    while time.monotonic() < until:
        check()
