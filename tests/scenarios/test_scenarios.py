"""Trainings with an injected fault: TraceML gives the right label and the right number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.preloaded import PreloadedTraceml
from tests.scenarios.scenario import SCENARIOS, SCRIPTS, Scenario, really, run, traceml

pytestmark = [pytest.mark.scenario, pytest.mark.timed]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_injected_fault_gets_the_right_label_and_number(
    scenario: Scenario, tmp_path: Path, preloaded: PreloadedTraceml
) -> None:
    """The injected fault is named, its milliseconds are right, and no step is lost."""
    summary, done = run(scenario, tmp_path, preloaded)
    assert done.returncode == 0, done.stderr
    found = problems(scenario, summary, tmp_path)
    assert not found, "\n".join([*found, done.stderr])


def test_episodes_that_grow_are_not_a_slowdown(tmp_path: Path, preloaded: PreloadedTraceml) -> None:
    """Steps take longer and longer because each does more: no slowdown, no gain, but a sentence about it."""
    done = preloaded("run", str(SCRIPTS / "episodes.py"), "--run-name", "run", "--args", "100", cwd=tmp_path)
    summary = json.loads((tmp_path / "logs" / "run" / "final_summary.json").read_text())
    said = {f["kind"]: f["summary"] for f in summary["step_time"]["issues"]}
    assert "SLOWDOWN" not in said, done.stderr
    assert "times as many model calls" in said["MORE_WORK"]


def test_leak_in_loader_workers_is_named(tmp_path: Path) -> None:
    """The dataset keeps 1 MB of each batch, in the worker processes: their growth per step is reported. The
    training process does not grow."""
    words = ("--forward-sleep", "25", "--workers", "2", "--batch-leak-kb", "1000", "--steps", "200")
    script = str(SCRIPTS / "loop.py")
    done = traceml("run", script, "--run-name", "run", "--interval", "0.1", "--args", *words, cwd=tmp_path)
    summary = json.loads((tmp_path / "logs" / "run" / "final_summary.json").read_text())
    found = summary["step_memory"]["diagnosis"]
    assert (found["status"], found["ranks"]) == ("WORKER MEMORY CREEP", [0]), done.stderr
    assert found["evidence"]["bytes_per_step"] == pytest.approx(1e6, rel=0.2)


def problems(scenario: Scenario, summary: dict[str, Any], folder: Path) -> list[str]:
    """Everything about this summary of a run in `folder` that is not what the scenario expects."""
    found = []
    diagnosis = summary[scenario.section]["diagnosis"]
    if scenario.section == "step_time":
        diagnosis = summary["primary_diagnosis"]
    if diagnosis["status"] != scenario.status:
        found.append(f"said {diagnosis['status']}, expected {scenario.status}")
    if scenario.phase is not None and diagnosis["phase"] != scenario.phase:
        found.append(f"phase {diagnosis['phase']}, expected {scenario.phase}")
    if scenario.says and scenario.says not in diagnosis["summary"]:
        found.append(f"{diagnosis['summary']!r} does not say {scenario.says!r}")
    if scenario.metric is not None:
        value = summary["step_time"]["metrics"][scenario.metric]["median"]["value"]
        slept = really(folder, scenario.injected_ms, summary, scenario.naps)
        # The training also waited for a core, because of other processes; TraceML reports how long.
        delayed = (summary["process"]["metrics"]["cpu_delay_percent"]["worst"]["value"] or 0) / 100
        more = scenario.tolerance * slept + 1.5 + delayed * (value or 0)
        least = -(0.02 + scenario.learned / scenario.steps) * slept
        if value is None or not least <= value - slept <= more:
            found.append(f"{scenario.metric} is {value}, injected {slept}")
    for key, (expected, tolerance) in scenario.evidence.items():
        if key.endswith("_ms"):
            expected = really(folder, expected, summary, scenario.naps)
        value = diagnosis["evidence"].get(key)
        if value is None or abs(value - expected) > tolerance * expected:
            found.append(f"{key} is {value}, injected {expected}")
    if summary["run"]["steps"]["total"] != scenario.steps:
        found.append(f"{summary['run']['steps']['total']} steps, expected {scenario.steps}")
    if summary["environment"]["micro_batches"] != scenario.micro_batches:
        found.append(f"{summary['environment']['micro_batches']} micro-batches")
    return found + unclosed(summary)


def unclosed(summary: dict[str, Any]) -> list[str]:
    """Promise 2: phases add up to the step, steps and named gaps to the run, within 1 %."""
    found = []
    metrics = summary["step_time"]["metrics"]
    inside = ("step_ms", "compute_ms", "gc_ms")
    total = sum(
        m["average"]
        for k, m in metrics.items()
        if k.endswith("_ms") and k not in inside and m["average"] is not None
    )
    if abs(total - metrics["step_ms"]["average"]) > 0.01 * metrics["step_ms"]["average"]:
        found.append(f"phases sum to {total}, a step takes {metrics['step_ms']['average']}")
    parts = sum(summary["run"]["accounting"].values())
    if abs(parts - summary["run"]["duration_s"]) > 0.01 * summary["run"]["duration_s"]:
        found.append(f"parts sum to {parts}, the run took {summary['run']['duration_s']}")
    return found
