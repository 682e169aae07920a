"""A run that competes with itself for cores: who trains, how, and what to set instead."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.scenarios.scenario import SCRIPTS, traceml

pytestmark = [pytest.mark.scenario, pytest.mark.stack, pytest.mark.timed]


def test_processes_that_take_each_other_s_cores_are_named(tmp_path: Path) -> None:
    """Two trainings without ranks, each with a thread per core: both are listed, and both are the rival."""
    cores = max(2, len(os.sched_getaffinity(0)))
    done = traceml(
        "run", str(SCRIPTS / "hogwild.py"), "--run-name", "run", "--", str(cores), "6", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "logs" / "run" / "final_summary.json").read_text())
    asked = f"2 processes × {cores} threads on {cores} cores: try OMP_NUM_THREADS={cores // 2} "
    assert asked in summary["primary_diagnosis"]["action"], done.stderr
    assert "waited for a core" in summary["primary_diagnosis"]["summary"]
    trainings = summary["run"]["trainings"]
    assert [t["in_tables"] for t in trainings] == [True, False]
    assert all(t["steps"] > 1 and t["step_ms"] > 0 for t in trainings)
    assert len({t["pid"] for t in trainings}) == 2
