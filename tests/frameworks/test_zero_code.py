"""Real frameworks, unchanged scripts: steps, evaluation and checkpoints land in the right phases."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.preloaded import PreloadedTraceml
from tests.scenarios.scenario import TracemlCommand, really, traceml

SCRIPTS = Path(__file__).parent / "scripts"
FRAMEWORKS = pytest.mark.parametrize("script", ["hf_trainer.py", "lightning_fit.py"])
pytestmark = [pytest.mark.framework, pytest.mark.timed]


@pytest.fixture(scope="module")
def preloaded_frameworks() -> Iterator[PreloadedTraceml]:
    """`traceml run` with the frameworks already loaded."""
    made = PreloadedTraceml("transformers.models.bert", "transformers.trainer", "lightning")
    yield made
    made.close()


def run(folder: Path, command: TracemlCommand, script: str, *words: str) -> dict[str, Any]:
    """The summary of a framework run of 2 micro-batches of 4 samples per step. Words: ms of sleep per
    training sample, per forward and per evaluation sample, and the number of steps (even, plus 1)."""
    done = command("run", str(SCRIPTS / script), "--run-name", "r", "--", *words, cwd=folder)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads((folder / "logs" / "r" / "final_summary.json").read_text())
    assert found["run"]["steps"]["total"] == int(words[3])
    assert found["environment"]["micro_batches"] == 2
    assert found["environment"]["batch_size"] == 8
    return found


def mean(found: dict[str, Any], metric: str) -> float:
    """The mean of this metric per step."""
    return float(found["step_time"]["metrics"][metric]["median"]["value"])


def noted(folder: Path, name: str) -> list[float]:
    """How many ms each block of this name took, as the script noted it."""
    lines = map(json.loads, (folder / "naps.jsonl").read_text().splitlines())
    return [line["took"] for line in lines if line["name"] == name]


@FRAMEWORKS
def test_slow_dataset_is_input_bound(tmp_path: Path, script: str) -> None:
    """5 ms per sample, 8 samples per step: INPUT-BOUND with 40 ms of input. By the real command line."""
    found = run(tmp_path, traceml, script, "5", "0", "0", "41")
    assert found["primary_diagnosis"]["status"] == "INPUT-BOUND"
    took = really(tmp_path, 40, found, "input")
    assert 0.98 * took <= mean(found, "input_ms") <= 1.2 * took + 1.5
    kinds = {e["kind"] for e in found["events"]}
    assert {"checkpoint", "epoch_start"} <= kinds


@FRAMEWORKS
def test_slow_forward_is_compute_bound(
    tmp_path: Path, preloaded_frameworks: PreloadedTraceml, script: str
) -> None:
    """200 ms per forward, 2 micro-batches per step: COMPUTE-BOUND, forward named with 400 ms."""
    found = run(tmp_path, preloaded_frameworks, script, "0", "200", "0", "21")
    assert found["primary_diagnosis"]["status"] == "COMPUTE-BOUND"
    assert found["primary_diagnosis"]["phase"] == "forward"
    took = really(tmp_path, 400, found)
    assert 0.98 * took <= mean(found, "forward_ms") <= 1.15 * took + 1.5


@FRAMEWORKS
def test_slow_evaluation_is_validation_and_not_input(
    tmp_path: Path, preloaded_frameworks: PreloadedTraceml, script: str
) -> None:
    """8 slow evaluation samples every 10 steps: WAIT-HEAVY because of validation, not of input."""
    found = run(tmp_path, preloaded_frameworks, script, "0", "0", "40", "41")
    assert found["primary_diagnosis"]["status"] == "WAIT-HEAVY"
    assert found["primary_diagnosis"]["phase"] == "validation"
    steps = found["step_time"]["window"]["num_steps"]  # 4 evaluations of 8 samples of 40 ms are among them
    asleep = sum(noted(tmp_path, "validation")[-32:]) / steps
    in_all = sum(noted(tmp_path, "evaluation")) / steps  # by the script's own clock around them
    assert 0.98 * asleep <= mean(found, "validation_ms") <= 1.02 * in_all + 0.5
    assert mean(found, "input_ms") < mean(found, "validation_ms") / 4
