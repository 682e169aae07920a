"""Real frameworks, untouched scripts: steps, micro-batches, evaluation, checkpoints in the right phases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.scenario import really, traceml

SCRIPTS = Path(__file__).parent / "scripts"
pytestmark = pytest.mark.framework


def run(folder: Path, script: str, *words: str) -> dict[str, Any]:
    """The summary of one framework run of 41 steps of 2 micro-batches of 4 samples."""
    done = traceml(
        "run", str(SCRIPTS / script), "--run-name", "r", "--", *words, cwd=folder, env={"HF_HUB_OFFLINE": "1"}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads((folder / "logs" / "r" / "final_summary.json").read_text())
    assert found["run"]["steps"]["total"] == 41
    assert found["environment"]["micro_batches"] == 2
    assert found["environment"]["batch_size"] == 8
    return found


def mean(found: dict[str, Any], metric: str) -> float:
    """A step's mean of this metric."""
    return float(found["step_time"]["metrics"][metric]["median"]["value"])


@pytest.mark.parametrize("script", ["hf_trainer.py", "lightning_fit.py"])
def test_a_slow_dataset_is_input_bound(tmp_path: Path, script: str) -> None:
    """5 ms a sample, 8 samples a step: INPUT-BOUND with 40 ms of input."""
    found = run(tmp_path, script, "5", "0", "0")
    assert found["primary_diagnosis"]["status"] == "INPUT-BOUND"
    took = really(tmp_path, 40, found, "input")
    assert 0.98 * took <= mean(found, "input_ms") <= 1.2 * took + 1.5
    kinds = {e["kind"] for e in found["events"]}
    assert {"checkpoint", "epoch_start"} <= kinds


@pytest.mark.parametrize("script", ["hf_trainer.py", "lightning_fit.py"])
def test_a_slow_forward_is_compute_bound(tmp_path: Path, script: str) -> None:
    """100 ms a forward, 2 micro-batches a step: COMPUTE-BOUND, forward named, 200 ms of it."""
    found = run(tmp_path, script, "0", "100", "0")
    assert found["primary_diagnosis"]["status"] == "COMPUTE-BOUND"
    assert found["primary_diagnosis"]["phase"] == "forward"
    took = really(tmp_path, 200, found)
    assert 0.98 * took <= mean(found, "forward_ms") <= 1.15 * took + 1.5


@pytest.mark.parametrize("script", ["hf_trainer.py", "lightning_fit.py"])
def test_slow_evaluation_is_validation_not_input(tmp_path: Path, script: str) -> None:
    """8 slow evaluation samples every 10 steps: WAIT-HEAVY by validation, training input untouched."""
    found = run(tmp_path, script, "0", "0", "40")
    assert found["primary_diagnosis"]["status"] == "WAIT-HEAVY"
    assert found["primary_diagnosis"]["phase"] == "validation"
    took = really(tmp_path, 32, found)  # 4 evaluations of 8 samples of 40 ms in 40 steps
    assert 0.9 * took <= mean(found, "validation_ms") <= 1.2 * took + 1.5
    assert mean(found, "input_ms") < mean(found, "validation_ms") / 4
