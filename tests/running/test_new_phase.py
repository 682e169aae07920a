"""A phase that is added to the catalogue, with a patch that measures it, needs no other change."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.running.scripts import write
from tests.scenarios.scenario import SRC

STEPS = 1_500
SLOW_MS = 2
TRAINING = f"""
def slowly():
    time.sleep({SLOW_MS / 1e3})
    yield from model.parameters()

train({STEPS}, lambda step: step % 10 or torch.nn.utils.parameters_to_vector(slowly()))
"""
ROLL_UP = """
import sys
from pathlib import Path
from traceml.recording.rollup import Roller
print(Roller(Path(sys.argv[1]), keep_rows=200, every_s=0).maybe_roll(0.0))
"""


def edit(path: Path, pattern: str, replacement: str) -> None:
    """Replace what must be there exactly once."""
    text, count = re.subn(pattern, replacement, path.read_text(), flags=re.MULTILINE)
    assert count == 1, pattern
    path.write_text(text)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources with a ninth phase: one row and one name in the catalogue, and its patch."""
    copied = tmp_path_factory.mktemp("tree")
    shutil.copytree(SRC / "traceml", copied / "traceml", ignore=shutil.ignore_patterns("__pycache__"))
    catalogue = copied / "traceml" / "schema" / "catalog.py"
    edit(
        catalogue,
        r'^(    Phase\("checkpoint",.*\n)',
        r'\1    Phase("packing", "Packing", "other", "a test"),\n',
    )
    edit(catalogue, r"^(INPUT, .*), CHECKPOINT =", r"\1, CHECKPOINT, PACKING =")
    patch = 'Patch("torch.nn.utils", "parameters_to_vector", w.phase(c.PACKING), c.PACKING),'
    patches = copied / "traceml" / "capture" / "patches.py"
    edit(patches, r'^(    Patch\("torch.nn.utils.clip_grad", "clip_grad_norm_".*)', rf"\1\n    {patch}")
    return copied


@pytest.mark.parametrize("pure_python", ["0", "1"])
def test_a_ninth_phase_is_recorded_folded_and_shown(tree: Path, tmp_path: Path, pure_python: str) -> None:
    """Both switches record it, the summary and its text show it, and rolling up old steps keeps its total."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "TRACEML_PURE_PYTHON": pure_python}

    def python(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    write(tmp_path, TRAINING)
    python("-m", "traceml", "run", "--run-name", "nine", "train.py")
    folder = tmp_path / "logs" / "nine"
    summary = json.loads((folder / "final_summary.json").read_text())
    assert summary["run"]["steps"]["total"] == STEPS
    metrics = {key: stat["average"] or 0.0 for key, stat in summary["step_time"]["metrics"].items()}
    assert metrics["packing_ms"] >= SLOW_MS / 10
    text = (folder / "final_summary.txt").read_text()
    assert "packing" in text.lower(), text
    rolled_up = int(python("-c", ROLL_UP, str(folder)))
    assert rolled_up >= 1_000
    (folder / "final_summary.json").unlink()  # so that `view` makes it again, now from blocks and rows
    again = json.loads(python("-m", "traceml", "view", "--json", str(folder)))
    assert again["run"]["totals"] == summary["run"]["totals"]
    assert again["run"]["totals"]["packing_s"] >= STEPS / 10 * SLOW_MS / 1e3
