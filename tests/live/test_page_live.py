"""The page at a server: the list of runs, a run that goes on, and honest words when news stop.

The server here is a stub that says what the test tells it: these tests are about the page alone.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from typing import Any, ClassVar

import msgspec
import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from tests.live import pages
from tests.live.browser import look, problems
from traceml.present.page import page
from traceml.schema.summary import Summary

EVIL = "<img src=x onerror='window.hit=1'>"
RUNS: list[dict[str, Any]] = [
    {"name": EVIL, "verdict": "BALANCED", "severity": "info", "step_ms": 10.0, "steps": 100},
    {"name": "before/1", "verdict": "INPUT-BOUND", "severity": "crit", "step_ms": 40.0, "steps": 100},
]
LOOK: dict[str, Any] = {"quiet_s": 0.0, "since_step": 25, "since_start": False, "steps_per_s": 12.5}


class Stub(BaseHTTPRequestHandler):
    """Streams each message of `messages` to the page as it comes. None ends the stream, False cuts it."""

    messages: ClassVar[Queue[dict[str, Any] | bool | None]] = Queue()
    is_broken: ClassVar[bool] = False
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].removeprefix("/t/token/")
        if path == "":
            self.answer(page(b'{"kind":"live","base":"/t/token/"}'), "text/html")
        elif path == "api/runs":
            usual = {"path": "", "started_at": None, "status": "completed", "exit_code": 0, "problem": None}
            runs = [{**usual, "world_size": 1, "duration_s": 5.0, **run} for run in RUNS]
            self.answer(json.dumps({"runs": runs}).encode(), "application/json")
        elif path == "api/run/none/events":
            self.send_error(404)
        elif self.is_broken:
            self.answer(b'{"error":"the disk is gone"}', "application/json", 500)
        elif path.endswith("/events"):
            self.stream()
        else:
            self.send_error(404)

    def answer(self, body: bytes, kind: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        while isinstance(message := self.messages.get(), dict):
            self.wfile.write(b"data: " + json.dumps(message).encode() + b"\n\n")
            self.wfile.flush()
        if message is None:
            self.wfile.write(b"event: end\ndata:\n\n")

    def log_message(self, format: str, *args: Any) -> None:
        """No lines in the output of the tests."""


@pytest.fixture(scope="module")
def driver() -> Iterator[webdriver.Chrome]:
    with pages.page_browser() as made_driver:
        yield made_driver


@pytest.fixture
def address() -> Iterator[str]:
    Stub.messages, Stub.is_broken = Queue(), False
    server = ThreadingHTTPServer(("127.0.0.1", 0), Stub)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/t/token/"
    Stub.messages.put(False)
    server.shutdown()
    thread.join()
    server.server_close()


def send(state: str, summary: Summary, **more: Any) -> None:
    Stub.messages.put({"live": {**LOOK, **more, "state": state}, "summary": msgspec.to_builtins(summary)})


def until(driver: webdriver.Chrome, selector: str, words: str) -> None:
    """Wait until the element says this."""
    found = (By.CSS_SELECTOR, selector)
    WebDriverWait(driver, 20, 0.05, [Exception]).until(lambda d: words in d.find_element(*found).text)


def test_run_list_leads_to_runs_and_comparisons(driver: webdriver.Chrome, address: str) -> None:
    """Each run is a link; two chosen runs are compared; a name is text, whatever is in it."""
    look(driver, 1400, 1000)
    driver.get(address)
    until(driver, "main", "before/1")
    links = {e.text: e.get_attribute("href") for e in driver.find_elements(By.CSS_SELECTOR, "tbody a")}
    assert set(links) == {EVIL, "before/1"}
    assert str(links["before/1"]).endswith("#/run/before%2F1")
    for box in driver.find_elements(By.CSS_SELECTOR, "input[type=checkbox]"):
        box.click()
    button = driver.find_element(By.CSS_SELECTOR, "a.button").get_attribute("href")
    assert str(button).endswith("/before%2F1")
    assert driver.execute_script("return window.hit") is None
    assert problems(driver) == []


def test_live_run_shows_each_state_in_words(driver: webdriver.Chrome, address: str) -> None:
    """Waiting, live, no news, finished: the page says which, and charts stay where they are."""
    driver.get(address + "#/run/now")
    send("waiting", pages.one_rank(pages.facts("now", "running"), count=0), since_step=None)
    until(driver, ".state", "waiting for the first step")
    going = pages.one_rank(pages.facts("now", "running"))
    send("live", going)
    until(driver, ".state", "live")
    until(driver, ".run .facts", "12.5 steps/s")
    until(driver, ".verdict", "since step 25")
    chart, tall = driver.find_element(By.CSS_SELECTOR, "#step-time .chart canvas"), height(driver)
    send("live", pages.one_rank(pages.facts("now", "running"), count=120, forward=6.0), steps_per_s=9.0)
    until(driver, ".run .facts", "9.0 steps/s")
    assert chart.is_displayed()  # the same element, not a new one
    assert height(driver) == tall
    send("stale", going, quiet_s=42.0)
    until(driver, ".state", "no news for 42.0 s")
    assert "live" not in driver.find_element(By.CSS_SELECTOR, ".state").text
    send("finished", pages.one_rank(pages.facts("now")))
    Stub.messages.put(None)
    until(driver, ".state", "finished")
    assert driver.find_elements(By.CSS_SELECTOR, ".banner") == []


def test_values_at_the_pointer_are_those_of_the_newest_message(
    driver: webdriver.Chrome, address: str
) -> None:
    """A chart that was drawn with new numbers also says them, not those that it was made with."""
    look(driver, 1400, 1000)
    driver.get(address + "#/run/now")
    send("live", pages.one_rank(pages.facts("now", "running")))
    until(driver, ".state", "live")
    send("live", pages.one_rank(pages.facts("now", "running"), forward=60.0), steps_per_s=9.0)
    until(driver, ".run .facts", "9.0 steps/s")
    chart = driver.find_element(By.CSS_SELECTOR, "#step-time .chart .u-over")
    ActionChains(driver).move_to_element(chart).perform()
    until(driver, "#step-time .chart .u-legend", "60.0 ms")


def height(driver: webdriver.Chrome) -> int:
    tall: int = driver.execute_script("return document.documentElement.scrollHeight")
    return tall


def test_lost_connection_never_looks_alive(driver: webdriver.Chrome, address: str) -> None:
    """When the stream breaks the page says so, keeps the old numbers, and goes on once it is back."""
    driver.get(address + "#/run/other")
    going = pages.one_rank(pages.facts("other", "running"))
    send("live", going)
    until(driver, ".state", "live")
    Stub.messages.put(False)
    until(driver, ".state", "no connection")
    until(driver, ".banner", "No connection to TraceML since")
    assert "INPUT-BOUND" in driver.find_element(By.CSS_SELECTOR, ".verdict").text
    send("crashed", pages.one_rank(pages.facts("other", "killed")))
    Stub.messages.put(None)
    until(driver, ".state", "ended early: killed")
    assert driver.find_elements(By.CSS_SELECTOR, ".banner") == []


def test_server_that_fails_never_makes_a_run_look_alive(driver: webdriver.Chrome, address: str) -> None:
    """Answers that are errors are no news: the page says that it has none, and what the server says."""
    driver.get(address + "#/run/broken")
    send("live", pages.one_rank(pages.facts("broken", "running")))
    until(driver, ".state", "live")
    Stub.is_broken = True
    Stub.messages.put(False)
    until(driver, ".state", "no connection")
    WebDriverWait(driver, 20).until(lambda d: any("500" in line for line in problems(d)))  # it tried again
    assert driver.find_element(By.CSS_SELECTOR, ".state").text == "no connection"
    until(driver, ".banner", "the disk is gone")


def test_run_that_is_not_there_is_said_once(driver: webdriver.Chrome, address: str) -> None:
    """A wrong name is no lost connection."""
    driver.get(address + "#/run/none")
    until(driver, "main", "There is no such run.")
    assert driver.find_elements(By.CSS_SELECTOR, ".banner") == []
    problems(driver)  # the browser's own line about the 404
