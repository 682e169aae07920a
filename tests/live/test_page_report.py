"""The report of one run, opened from disk in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from tests.live import pages
from tests.live.browser import look, problems, requests
from tests.unit import made
from traceml.analyze.summarize import summarize
from traceml.runs.summary_file import read
from traceml.schema import fmt
from traceml.schema.catalog import PHASE_COLOURS, WHITE_TEXT_ON
from traceml.schema.summary import EndedFirst, Environment, Summary

EVIL = "</script><script>window.hit=1</script><img src=x onerror='window.hit=1'><!--\u2028\"'&"


@pytest.fixture(scope="module")
def driver() -> Iterator[webdriver.Chrome]:
    with pages.page_browser() as made_driver:
        yield made_driver


@pytest.fixture(autouse=True)
def _wide(driver: webdriver.Chrome) -> None:
    look(driver, 1400, 1000)


def text_of(driver: webdriver.Chrome, selector: str) -> str:
    return driver.find_element(By.CSS_SELECTOR, selector).text


def test_report_opens_from_disk_alone(driver: webdriver.Chrome, tmp_path: Path) -> None:
    """One file: the page asks for nothing else, and its console stays empty."""
    address = pages.write(tmp_path, pages.one_rank())
    requests(driver)
    driver.get(address)
    assert text_of(driver, "h1") == "demo"
    assert requests(driver) == [address]
    assert problems(driver) == []


def test_report_begins_with_what_is_wrong_and_what_to_do(driver: webdriver.Chrome, tmp_path: Path) -> None:
    """The first card has the verdict, the reason, the place, the cost, the gain and the next step."""
    summary = pages.one_rank()
    first = summary.primary_diagnosis
    driver.get(pages.write(tmp_path, summary))
    said = text_of(driver, ".verdict")
    assert first.kind == "INPUT_BOUND"
    cost = first.evidence["cost_ms"]
    assert isinstance(cost, float)
    for part in (first.status, "critical", first.summary, first.action, "Dataloader Fetch", fmt.ms(cost)):
        assert part in said
    assert fmt.factor(first.potential_speedup) in said
    assert driver.title == "INPUT-BOUND · demo · TraceML"


def test_names_of_the_reading_guide_are_on_the_page(driver: webdriver.Chrome, tmp_path: Path) -> None:
    """Cards, columns and rows are called as in the reading guide."""
    driver.get(pages.write(tmp_path, pages.straggler()))
    said = text_of(driver, "main")
    guide = """Step Time Analysis|Step Memory Analysis|System|Process|Dataloader Fetch|H2D|Forward|Backward
        |Sync|Optimizer Step|Wait*|Step Time|Median|Worst|Worst Rank|Skew (%)|WAIT Share (%)|Gap
        |Dominant split|Median Peak (max/K)|Worst Peak (max/K)|Head/Tail Delta (worst)"""
    assert [name for name in guide.split("|") if name.strip() not in said] == []
    assert "MODEL DIAGNOSTICS" in said.upper()


def test_numbers_look_as_in_the_text(driver: webdriver.Chrome, tmp_path: Path) -> None:
    """Every cell of the step-time table is a number of the summary in the format of the text summary."""
    values: dict[str, Any] = {"input": 0.0123, "forward": 4.5678, "backward": 12_345.0, "optimizer": 70_000.0}
    summary = pages.one_rank(**values)
    driver.get(pages.write(tmp_path, summary))
    heads = [e.text for e in driver.find_elements(By.CSS_SELECTOR, "#step-time .scroll thead th")][1:]
    rows = {
        row.find_element(By.TAG_NAME, "th").text: [c.text for c in row.find_elements(By.TAG_NAME, "td")]
        for row in driver.find_elements(By.CSS_SELECTOR, "#step-time .scroll tbody tr")
    }
    keys = {"Dataloader Fetch": "input_ms", "Forward": "forward_ms", "Backward": "backward_ms"}
    keys |= {"Optimizer Step": "optimizer_ms", "Wait*": "wait_ms", "Step Time": "step_ms", "H2D": "h2d_ms"}
    for head, key in keys.items():
        stat, at = summary.step_time.metrics[key], heads.index(head)
        assert rows["Median"][at] == fmt.ms(stat.median.value)
        assert rows["p95"][at] == fmt.ms(stat.p95)
        assert rows["Share (%)"][at] == (fmt.share(stat.share) if stat.share is not None else "–")


def test_checkpoints_are_marked_in_the_chart(driver: webdriver.Chrome, tmp_path: Path) -> None:
    """The chart of step time says what its letters mean."""
    saved = {"kind": "checkpoint", "step": 30, "time_ns": 2_000_000_000, "duration_ns": 5_000_000, "rank": 0}
    rank = made.rank(made.steps(60, **pages.USUAL), events=[saved])
    driver.get(pages.write(tmp_path, summarize(made.run(rank), pages.facts())))
    assert "C checkpoint" in text_of(driver, "#step-time figcaption")


def test_phase_names_can_be_read_on_their_colours(driver: webdriver.Chrome, tmp_path: Path) -> None:
    """Text on a bar is white or dark as in the terminal, whichever has more contrast."""
    named: dict[str, Any] = {key: 5.0 for key in PHASE_COLOURS if key != "wait"}
    rank = made.rank(made.steps(60, measured=tuple(named), wait=5.0, **named))
    driver.get(pages.write(tmp_path, summarize(made.run(rank), pages.facts())))
    script = """return [...document.querySelectorAll("#step-time .ribbon span")]
        .map((part) => [part.style.background, part.style.color])"""
    found = {ground: ink == "rgb(255, 255, 255)" for ground, ink in driver.execute_script(script)}
    assert found == {rgb(colour): colour in WHITE_TEXT_ON for colour in PHASE_COLOURS.values()}


def rgb(colour: str) -> str:
    return "rgb({}, {}, {})".format(*(int(colour[at : at + 2], 16) for at in (1, 3, 5)))


def test_dark_page_follows_the_system(driver: webdriver.Chrome, tmp_path: Path) -> None:
    """Light text on a dark ground where the system asks for it, without reloading; light again on paper."""
    driver.get(pages.write(tmp_path, pages.one_rank()))
    ground = "return getComputedStyle(document.body).backgroundColor"
    light = driver.execute_script(ground)
    look(driver, 1400, 1000, dark=True)
    dark = driver.execute_script(ground)
    assert brightness(dark) < 60
    assert brightness(light) > 200
    driver.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert driver.execute_script(ground) == light
    driver.execute_script("dispatchEvent(new Event('afterprint'))")
    assert driver.execute_script(ground) == dark
    assert problems(driver) == []


def brightness(colour: str) -> float:
    parts = [float(part) for part in colour.strip("rgba()").split(",")[:3]]
    return sum(parts) / 3


@pytest.mark.parametrize("made_by", [pages.one_rank, pages.straggler], ids=["one rank", "straggler"])
def test_narrow_page_never_scrolls_sideways(
    driver: webdriver.Chrome, tmp_path: Path, made_by: object
) -> None:
    """At 400 pixels only tables scroll, each by itself."""
    look(driver, 400, 900)
    assert callable(made_by)
    driver.get(pages.write(tmp_path, made_by()))
    assert driver.execute_script("return document.documentElement.scrollWidth") <= 400
    assert problems(driver) == []


def test_heatmap_shows_one_slow_rank_of_4096(driver: webdriver.Chrome, tmp_path: Path) -> None:
    """One bright row in the canvas, its name beside it, and the page holds only the table rows in sight."""
    summary = pages.straggler(4096, slow=1234, count=40)
    driver.get(pages.write(tmp_path, summary))
    assert text_of(driver, "table.ranks tbody th").endswith("r1234")
    assert len(driver.find_elements(By.CSS_SELECTOR, "table.ranks tbody tr")) < 60
    label = driver.find_element(By.CSS_SELECTOR, "canvas.heatmap").get_attribute("aria-label")
    assert "r1234" in str(label)
    assert problems(driver) == []
    map_ = summary.series.heatmap
    row = map_.worst_ranks.index(1234)
    script = """
        const canvas = document.querySelector("canvas.heatmap"), ctx = canvas.getContext("2d");
        const tall = canvas.height - 30, rows = arguments[0];
        const column = ctx.getImageData(canvas.width / 2, 6, 1, tall).data;
        const at = (row) => 4 * Math.floor((row + 0.5) * tall / rows);
        return Array.from({length: rows}, (_, row) => column[at(row)] + column[at(row) + 1]);"""
    sums = driver.execute_script(script, len(map_.own_ms))
    others = [value for at, value in enumerate(sums) if at != row]
    assert sums[row] > 2 * max(others)


def test_heatmap_is_read_with_the_keyboard(driver: webdriver.Chrome, tmp_path: Path) -> None:
    """Arrow keys move over cells, and a status line says rank, step and time."""
    driver.get(pages.write(tmp_path, pages.straggler()))
    canvas = driver.find_element(By.CSS_SELECTOR, "canvas.heatmap")
    canvas.send_keys(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
    assert text_of(driver, ".readout") == "r2, step 3: 18.0 ms"


def test_ranks_sort_by_any_column(driver: webdriver.Chrome, tmp_path: Path) -> None:
    """The verdict's rank comes first; a click on a head sorts, another one turns the order round."""
    driver.get(pages.write(tmp_path, pages.straggler()))

    def order() -> list[str]:
        found = driver.find_elements(By.CSS_SELECTOR, "table.ranks tbody th")
        return [cell.text.removeprefix("▸ ") for cell in found]

    assert order() == ["r2", "r0", "r1", "r3"]
    button = driver.find_element(By.XPATH, "//th/button[starts-with(., 'Backward')]")
    button.click()
    assert order()[0] == "r2"
    button.click()
    assert order() == ["r0", "r1", "r3", "r2"]
    head = driver.find_element(By.CSS_SELECTOR, "table.ranks th[aria-sort=ascending]")
    assert head.text.startswith("Backward")


@pytest.mark.parametrize(("ranks", "printed"), [(100, 100), (300, 256)])
def test_printed_report_has_the_rows_that_paper_cannot_scroll_to(
    driver: webdriver.Chrome, tmp_path: Path, ranks: int, printed: int
) -> None:
    """All of 100 ranks are printed, and the first 256 of more; on the screen only the rows in sight exist."""
    driver.get(pages.write(tmp_path, pages.straggler(ranks, slow=7, count=40)))
    rows = "return document.querySelectorAll('table.ranks tbody th').length"
    assert driver.execute_script(rows) < 60
    driver.execute_script("dispatchEvent(new Event('beforeprint'))")
    WebDriverWait(driver, 20).until(lambda d: d.execute_script(rows) == printed)
    assert ("The first 256 ranks are printed." in text_of(driver, "#ranks")) == (ranks > printed)
    driver.execute_script("dispatchEvent(new Event('afterprint'))")
    WebDriverWait(driver, 20).until(lambda d: d.execute_script(rows) < 60)


def evil() -> Summary:
    """Text of an attacker wherever a run can have text."""
    about = pages.facts(EVIL, notes=[EVIL], environment=Environment(host=EVIL, os=EVIL))
    about = replace(about, command=["python", EVIL], status="failed", reason=EVIL)
    rows = made.steps(60, **pages.USUAL, user0=5.0)
    rank = made.rank(rows)
    rank.header["identity"]["host"] = EVIL
    rank.header["process"]["packages"] = {EVIL: EVIL}
    return summarize(made.run(rank, system_rows=made.system()), about)


def test_text_of_a_run_never_becomes_part_of_the_page(driver: webdriver.Chrome, tmp_path: Path) -> None:
    """Names, hosts, arguments, notes and reasons are shown as they are; nothing in them runs or loads."""
    address = pages.write(tmp_path, evil())
    requests(driver)
    driver.get(address)
    shown = " ".join(text_of(driver, "h1").split())
    assert shown == " ".join(EVIL.split())
    assert driver.execute_script("return window.hit") is None
    assert driver.find_elements(By.CSS_SELECTOR, "main img, main script") == []
    assert text_of(driver, "main").count("onerror=") >= 5
    assert requests(driver) == [address]
    assert problems(driver) == []


STATES = {
    "completed": ("finished", "completed"),
    "failed": ("crashed", "failed"),
    "killed": ("crashed", "killed"),
    "interrupted": ("crashed", "interrupted"),
    "running": ("stale", "was running when this was written"),
}


@pytest.mark.parametrize("status", STATES)
def test_report_says_how_the_run_ended(driver: webdriver.Chrome, tmp_path: Path, status: str) -> None:
    """A report is never live, and a run that did not complete says so in words, with the reason."""
    summary = pages.one_rank(pages.facts("demo", status, reason="r1 ended first: killed by SIGKILL"))
    driver.get(pages.write(tmp_path, summary))
    state, words = STATES[status]
    pill = driver.find_element(By.CSS_SELECTOR, ".state")
    assert (pill.get_attribute("class"), pill.text) == (f"state {state}", words)
    ended = driver.find_elements(By.CSS_SELECTOR, ".ended")
    assert bool(ended) == (state == "crashed")
    assert all("r1 ended first: killed by SIGKILL" in element.text for element in ended)


def test_rank_that_ended_first_is_named(driver: webdriver.Chrome, tmp_path: Path) -> None:
    """Even if the reason is only the launcher's, the page says which rank ended first, how and where."""
    summary = pages.straggler()
    ended = EndedFirst(1, 60, "forward", signal="SIGKILL")
    run = replace(summary.run, status="failed", reason="ChildFailedError", exit_code=1)
    run = replace(run, ranks=replace(run.ranks, ended_first=ended))
    driver.get(pages.write(tmp_path, replace(summary, run=run)))
    first, reason = text_of(driver, ".ended").splitlines()
    assert first == "Ended first r1, killed by SIGKILL, after step 60, in forward"
    assert reason == "Ended failed: ChildFailedError (exit code 1)"


def test_run_without_steps_has_a_page(driver: webdriver.Chrome, tmp_path: Path) -> None:
    """NO DATA with its reason, and no empty cards about steps."""
    driver.get(pages.write(tmp_path, pages.one_rank(count=0)))
    assert "NO DATA" in text_of(driver, ".verdict")
    assert driver.find_elements(By.CSS_SELECTOR, "#step-time, #step-memory, #heatmap, #ranks") == []
    assert problems(driver) == []


OLD = sorted((pages.ROOT / "tests" / "data").glob("**/*.json"))


@pytest.mark.parametrize("path", OLD, ids=[path.name for path in OLD])
def test_older_files_have_a_page(driver: webdriver.Chrome, tmp_path: Path, path: Path) -> None:
    """A summary of an earlier version, or of the released tool, is shown as far as it goes."""
    summary = read(path).summary
    driver.get(pages.write(tmp_path, summary))
    assert summary.primary_diagnosis.status in text_of(driver, ".verdict")
    step = summary.step_time.metrics.get("step_ms")
    has_steps = step is not None and step.median.value is not None
    assert len(driver.find_elements(By.CSS_SELECTOR, "#step-time table")) >= has_steps
    assert problems(driver) == []


def test_empty_summary_has_a_page(driver: webdriver.Chrome, tmp_path: Path) -> None:
    """Where everything is missing, nothing fails."""
    driver.get(pages.write(tmp_path, Summary()))
    assert "NO DATA" in text_of(driver, ".verdict")
    assert problems(driver) == []


def test_page_can_be_used_without_seeing_it(driver: webdriver.Chrome, tmp_path: Path) -> None:
    """One h1, a heading for each card, captions and scopes in tables, text for pictures, a live verdict."""
    driver.get(pages.write(tmp_path, pages.straggler()))
    script = """
        const all = (selector) => [...document.querySelectorAll(selector)];
        return {
          h1: all("h1").length,
          cards: all("section.card").filter((card) => !card.querySelector("h2")).length,
          captions: all("main table:not(.u-legend)").filter((table) => !table.caption?.textContent).length,
          scopes: all("main table:not(.u-legend) th").filter((cell) => !cell.scope).length,
          images: all("[role=img]").filter((image) => !image.getAttribute("aria-label")).length,
          pictures: all("canvas").filter((canvas) => !canvas.closest("[role=img]")).length,
          live: all(".verdict [aria-live=polite]").length,
        };"""
    found = driver.execute_script(script)
    assert found == {
        "h1": 1,
        "cards": 0,
        "captions": 0,
        "scopes": 0,
        "images": 0,
        "pictures": 0,
        "live": 1,
    }
