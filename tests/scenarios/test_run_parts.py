"""Evaluation outside the steps: it has its own line in the table of the run's time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.scenarios.preloaded import PreloadedTraceml
from tests.scenarios.scenario import SCRIPTS

pytestmark = [pytest.mark.scenario, pytest.mark.timed]


def test_evaluation_before_and_after_training_is_accounted_for(
    tmp_path: Path, preloaded: PreloadedTraceml
) -> None:
    """Both evaluations are named, and as long as the script's own clock says."""
    done = preloaded("run", str(SCRIPTS / "evaluates.py"), "--run-name", "run", cwd=tmp_path)
    before_s, after_s = map(float, done.stdout.split())
    run = json.loads((tmp_path / "logs" / "run" / "final_summary.json").read_text())["run"]
    assert sum(run["accounting"].values()) == pytest.approx(run["duration_s"])
    assert run["accounting"]["validation_before_s"] == pytest.approx(before_s, rel=0.1)
    assert run["accounting"]["validation_after_s"] == pytest.approx(after_s, rel=0.1)
    assert {"Validation before", "Validation after"} <= {part["label"] for part in run["parts"]}
