"""The table of layers in the text, in the terminal and on the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from selenium.webdriver.common.by import By

from tests.deep import made_layers
from tests.live import pages
from tests.live.browser import problems
from tests.live.screens import screen_of
from tests.unit import made
from traceml.analyze.summarize import summarize
from traceml.monitor.result import encode
from traceml.present.text import render
from traceml.runs.summary_file import read
from traceml.schema.live import Live
from traceml.schema.recorded import RunFacts
from traceml.schema.summary import Summary

MEMORY: dict[str, Any] = {
    "activation_bytes": [0, 100, 2000, 2000, 300],
    "activation_bytes_total": [4400, 100, 2000, 2000, 300],
    "gradient_bytes": [0, 4000, 1000, 1000, 4000],
}


def summary(ranks: int = 1, path: str | None = None, **columns: Any) -> Summary:
    """A run with sampled steps; `path` renames the last layer."""
    samples = [made_layers.sample(step, **MEMORY, **columns) for step in (8, 16, 24, 32)]
    if path is not None:
        samples = [replace(one, paths=[*one.paths[:-1], path]) for one in samples]
    recorded = [made_layers.rank(samples, number, ranks) for number in range(ranks)]
    return summarize(made.run(*recorded), RunFacts("demo", "completed", 0))


def test_text_has_the_top_layers_with_times_and_memory() -> None:
    """Path, type, both passes with their shares, parameters, activations; then the sums."""
    lines = render(summary()).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("Layers "))
    assert lines[at].endswith("4 samples, steps 8 to 32, host clock")
    heads = "Layer Type Forward Share Backward Share Parameters Activations"
    assert lines[at + 1].split() == heads.split()
    assert " ".join(lines[at + 2].split()) == "head Linear 4.00 ms 40.0 % 8.00 ms 40.0 % 4.0 kB 300 B"
    assert " ".join(lines[at + 6].split()) == "(Net) Net - - - - - -"
    said = " ".join(line.strip() for line in lines[at + 7 : at + 10])
    assert "forward 10.0 ms, backward 20.0 ms (0.0 % outside of layers)" in said
    assert "parameters 10.0 kB, gradients 10.0 kB, activations 4.4 kB (0 B outside)" in said
    assert all(len(line) <= 100 for line in lines)


def test_text_of_a_plain_run_has_no_layers() -> None:
    """Without deep mode nothing is said about it."""
    plain = summarize(made.run(made.rank(made.steps(50, forward=10))), RunFacts("demo"))
    assert "Layers" not in render(plain)


def test_long_paths_fit_the_text(tmp_path: Path) -> None:
    """100 columns, whatever the model is called."""
    long = summary(4, "model." + "very_long_name." * 8 + "0", recompute=[0, 0, 1, 1, 0])
    assert all(len(line) <= 100 for line in render(long).splitlines())
    path = tmp_path / "final_summary.json"
    path.write_bytes(encode(long))
    assert read(path).summary.layers == long.layers


def test_terminal_shows_layers_among_the_panels_and_alone() -> None:
    """On a large screen below the gauges, on a small one as a panel of its own; else not at all."""
    found = Live(summary(), "finished")
    large = "\n".join(screen_of(found, (140, 60)))
    assert "Layers" in large
    assert "head" in large
    small = "\n".join(screen_of(found, (90, 30), keys=("tab",) * 4))
    assert "blocks.0" in small
    assert "Ranks" in small
    assert "quit view" in small  # the last line of the screen is still there
    plain = Live(summarize(made.run(made.rank(made.steps(50, forward=10))), RunFacts("demo")), "finished")
    assert "Layers" not in "\n".join(screen_of(plain, (140, 60), keys=("tab",) * 5))


def test_page_shows_the_layers(tmp_path: Path) -> None:
    """A card with all numbers; text from the model goes in as text."""
    evil = "<img src=x onerror='window.hit=1'>"
    with pages.page_browser() as driver:
        driver.get(pages.write(tmp_path, summary(2, evil, recompute=[0, 0, 1, 0, 0])))
        card = driver.find_element(By.ID, "layers")
        assert evil in card.text
        assert "Recompute" in card.text
        assert "Worst rank" in card.text
        assert len(card.find_elements(By.CSS_SELECTOR, "tbody tr")) == 5
        assert driver.execute_script("return window.hit") is None
        assert problems(driver) == []
        plain = summarize(made.run(made.rank(made.steps(50, forward=10))), RunFacts("demo"))
        driver.get(pages.write(tmp_path, plain))
        assert driver.find_elements(By.ID, "layers") == []


def test_json_names_are_kept() -> None:
    """Tools may rely on these."""
    found = msgspec.json.decode(encode(summary()))["layers"]
    layer = found["layers"][0]
    times = "forward_ms forward_total_ms forward_share backward_ms backward_total_ms backward_share share"
    sizes = "parameter_bytes parameter_total_bytes gradient_bytes activation_bytes activation_total_bytes"
    names = f"path type calls {times} recompute_ms {sizes} worst hidden"
    assert set(names.split()) <= set(layer)
    about = "samples every start_step end_step clock ranks forward_ms backward_ms outside_ms cost_share"
    assert set(f"{about} count notes layers".split()) <= set(found)
