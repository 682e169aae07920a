"""A training in a notebook, in a real Jupyter kernel, and the page of its output in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from selenium.webdriver.common.by import By

from tests.live.browser import browser, problems, requests
from tests.running.processes import environment
from tests.running.scripts import LOOP
from tests.scenarios.preloaded import PreloadedTraceml

EXAMPLES = Path(__file__).parents[2] / "examples" / "trackers"
CELLS = {
    "define": LOOP,
    "named": "import traceml\nwith traceml.run('base') as base:\n    train(30)",
    "again": "with traceml.run('base'):\n    train(20)\n    train(20)",
    "folder": "print(base.folder.name, base.summary['run']['steps']['total'])",
    "fails": "with traceml.run('base'):\n    train(5)\n    1 / 0",
    "empty": "with traceml.run('base'):\n    pass",
    "plain": "train(10)",
    "load": "%load_ext traceml",
    "automatic": "train(25)",
    "other": "x = 1",
    "workers": "for x in DataLoader(torch.randn(40, 8), batch_size=4, num_workers=2):\n"
    "    model(x).sum().backward()\n    optimizer.step()",
    "unload": "%unload_ext traceml",
    "after": "train(10)",
}
"""Each cell by a name. The model and the optimizer are made before anything is recorded."""


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What each cell shows, after all were run in one kernel."""
    folder = tmp_path_factory.mktemp("notebook")
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS.values()]  # type: ignore[no-untyped-call]
    notebook = nbformat.v4.new_notebook(cells=cells)  # type: ignore[no-untyped-call]
    client = NotebookClient(notebook, timeout=240, kernel_name="python3", allow_errors=True)
    client.execute(cwd=str(folder), env=environment())
    for name, cell in zip(CELLS, notebook.cells, strict=True):
        errors = [o.ename for o in cell.outputs if o.output_type == "error"]
        assert errors == (["ZeroDivisionError"] if name == "fails" else []), (name, cell.outputs)
    return {name: cell.outputs for name, cell in zip(CELLS, notebook.cells, strict=True)}


def text_of(outputs: list[Any]) -> str:
    """What was printed."""
    return "".join(o.text for o in outputs if o.output_type == "stream")


def page_of(outputs: list[Any]) -> str:
    """The only rich output of a cell."""
    (shown,) = [o.data for o in outputs if o.output_type == "display_data"]
    assert "Verdict" in shown["text/plain"]  # for viewers without HTML
    html: str = shown["text/html"]
    return html


def test_a_block_shows_its_verdict_and_page(outputs: dict[str, list[Any]]) -> None:
    """Below the cell: the verdict as text, and the page in a frame."""
    assert "completed, 30 steps" in text_of(outputs["named"])
    assert "Verdict" in text_of(outputs["named"])
    assert page_of(outputs["named"]).startswith('<iframe srcdoc="&lt;!doctype html')


def test_a_second_cell_trains_a_run_of_its_own(outputs: dict[str, list[Any]]) -> None:
    """The same name gets a number; the block before is unchanged and its object has the result."""
    assert text_of(outputs["again"]).startswith("TraceML  base-2 ")
    assert "completed, 40 steps" in text_of(outputs["again"])
    assert page_of(outputs["again"])
    assert text_of(outputs["folder"]) == "base 30\n"


def test_an_exception_passes_and_the_result_is_shown(outputs: dict[str, list[Any]]) -> None:
    """The steps before it were recorded."""
    assert "5 steps" in text_of(outputs["fails"])
    assert page_of(outputs["fails"])


def test_a_block_without_training_says_so(outputs: dict[str, list[Any]]) -> None:
    """One line, and no empty page."""
    assert text_of(outputs["empty"]) == "traceml: no training step in this run: train inside the block\n"


def test_the_extension_shows_every_cell_that_trains(outputs: dict[str, list[Any]]) -> None:
    """After %load_ext, a training cell shows its own result, loader workers or not; others show nothing."""
    assert "completed, 25 steps" in text_of(outputs["automatic"])
    assert "completed, 10 steps" in text_of(outputs["workers"])
    assert page_of(outputs["automatic"]) != page_of(outputs["workers"])
    for name in ("plain", "load", "other", "unload", "after"):
        assert outputs[name] == [], name


def test_the_frame_draws_the_page(outputs: dict[str, list[Any]], tmp_path: Path) -> None:
    """In a browser the frame shows the verdict, without an error and without asking for anything."""
    path = tmp_path / "cell.html"
    path.write_text(f"<!doctype html><meta charset=utf-8>{page_of(outputs['named'])}")
    with browser(1000, 900) as driver:
        driver.get(path.as_uri())
        driver.switch_to.frame(driver.find_element(By.TAG_NAME, "iframe"))
        verdict = driver.find_element(By.TAG_NAME, "h1")
        assert verdict.text
        assert problems(driver) == []
        asked = [url for url in requests(driver) if not url.startswith(("file:", "about:", "data:"))]
    assert asked == []


def test_the_example_runs_as_a_script(tmp_path: Path, preloaded: PreloadedTraceml) -> None:
    """Under `traceml run` the block shows that run so far, on standard error, and `load` reads it."""
    done = preloaded("run", str(EXAMPLES / "notebook.py"), "--run-name", "r", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 0
    assert done.stderr.count("Verdict") == 1
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["r"]
