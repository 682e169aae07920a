"""The page of a comparison, in a real browser."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from tests.live import pages
from tests.live.browser import look, problems, requests
from tests.running.processes import environment
from traceml.cli.compare import page_data
from traceml.present.compare import lead_rows, more_rows
from traceml.present.page import page
from traceml.schema.comparison import Comparison, Difference, RunRef, Side

DATA = pages.ROOT / "tests" / "data"


@pytest.fixture(scope="module")
def driver() -> Iterator[webdriver.Chrome]:
    with pages.page_browser() as made_driver:
        yield made_driver


@pytest.fixture(scope="module")
def compared(driver: webdriver.Chrome, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Comparison]:
    """The page that `traceml compare --html` writes for two recorded runs, and the comparison in it."""
    folder = tmp_path_factory.mktemp("compare")
    words = ["compare", str(DATA / "slow.json"), str(DATA / "fast.json"), "--html"]
    command = [sys.executable, "-m", "traceml", *words]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=True)
    assert "wrote compare-slow-fast.html" in done.stderr
    found = json.loads((folder / "compare" / "slow_vs_fast.json").read_text())
    return (folder / "compare-slow-fast.html").as_uri(), msgspec.convert(found, Comparison)


def test_comparison_opens_from_disk(driver: webdriver.Chrome, compared: tuple[str, Comparison]) -> None:
    """Verdict, reason and next step come first; the page asks for nothing, at 400 pixels too."""
    address, found = compared
    requests(driver)
    for width in (400, 1400):
        look(driver, width, 1000)
        driver.get(address)
        said = driver.find_element(By.CSS_SELECTOR, ".verdict").text
        assert all(part.replace("`", "") in said for part in (found.verdict, found.why, found.next))
        assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    assert set(requests(driver)) == {address}
    assert problems(driver) == []


def test_tables_are_those_of_the_text(driver: webdriver.Chrome, compared: tuple[str, Comparison]) -> None:
    """The page has the rows of `traceml compare`, with the same words and numbers."""
    address, found = compared
    look(driver, 1400, 1000)
    driver.get(address)
    shown = {}
    for table in driver.find_elements(By.CSS_SELECTOR, "#tables table"):
        rows = table.find_elements(By.CSS_SELECTOR, "tbody tr")
        cells = [tuple(c.text for c in row.find_elements(By.CSS_SELECTOR, "th, td")) for row in rows]
        shown[table.find_element(By.TAG_NAME, "caption").text] = cells
    assert shown == {"Overview": lead_rows(found), **dict(more_rows(found))}


def test_waterfall_leads_from_a_to_b(driver: webdriver.Chrome, compared: tuple[str, Comparison]) -> None:
    """A bar for each phase that explains the change, between the steps of A and B."""
    address, found = compared
    driver.get(address)
    lines = driver.find_elements(By.CSS_SELECTOR, "#waterfall .line .name")
    names = {"input": "Dataloader Fetch", "optimizer": "Optimizer Step"}
    causes = [names.get(cause.phase, cause.label) for cause in found.explained_by]
    assert [line.text for line in lines] == ["A", *causes, "B"]
    assert len(driver.find_elements(By.CSS_SELECTOR, "#waterfall .fall span")) == len(causes) > 0


def test_comparison_without_steps_has_a_page(driver: webdriver.Chrome, tmp_path: Path) -> None:
    """Runs that cannot be compared say so; nothing fails in the page."""
    (tmp_path / "none.json").write_bytes(msgspec.json.encode(pages.one_rank(count=0)))
    words = ["compare", "none.json", str(DATA / "fast.json"), "--html", "out.html"]
    command = [sys.executable, "-m", "traceml", *words]
    subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True)
    driver.get((tmp_path / "out.html").as_uri())
    assert "INCONCLUSIVE" in driver.find_element(By.CSS_SELECTOR, ".verdict").text
    assert problems(driver) == []


def test_text_of_a_comparison_never_becomes_part_of_the_page(
    driver: webdriver.Chrome, compared: tuple[str, Comparison], tmp_path: Path
) -> None:
    """Names, reasons and warnings are shown as they are; nothing in them runs."""
    evil = "</script><img src=x onerror='window.hit=1'>"
    side = Side(evil, [RunRef(evil, evil, status=evil)] * 2)
    found = replace(compared[1], a=side, b=side, why=evil, next=evil, warnings=[evil])
    found = replace(found, differences=[Difference(evil, evil, evil, matters=True)])
    path = tmp_path / "evil.html"
    path.write_bytes(page(page_data(found)))
    driver.get(path.as_uri())
    assert driver.find_element(By.TAG_NAME, "main").text.count(evil) >= 8
    assert driver.execute_script("return window.hit") is None
    assert driver.find_elements(By.CSS_SELECTOR, "main img, main script") == []
    assert problems(driver) == []
