"""The primary diagnosis: which finding it is, and how much fixing it would gain."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit import made
from traceml.analyze.diagnose import choose_primary as choose
from traceml.analyze.summarize import summarize
from traceml.schema.recorded import RunFacts
from traceml.schema.summary import CRIT, INFO, WARN, Finding, Primary


def finding(kind: str, severity: str = INFO, **parts: Any) -> Finding:
    return Finding(kind, kind.replace("_", " "), severity, f"why {kind}", f"do {kind}", **parts)


BALANCED, COMPUTE = finding("BALANCED"), finding("COMPUTE_BOUND")
NORMAL, IDLE = finding("NORMAL"), finding("LOW_GPU_UTILIZATION", WARN)
CREEP, PRESSURE = finding("CREEP_CONFIRMED", CRIT), finding("HIGH_PRESSURE", WARN)
INPUT = finding("INPUT_BOUND", WARN, evidence={"cost_ms": 25.0}, score=0.25, phase="input", ranks=[0])


@pytest.mark.parametrize(
    ("step_time", "memory", "system", "kind", "section"),
    [
        ([INPUT], [CREEP], [IDLE], "INPUT_BOUND", "step_time"),
        ([COMPUTE], [CREEP], [IDLE], "CREEP_CONFIRMED", "step_memory"),
        ([COMPUTE], [PRESSURE], [NORMAL], "COMPUTE_BOUND", "step_time"),
        ([BALANCED], [BALANCED], [IDLE], "LOW_GPU_UTILIZATION", "system"),
        ([BALANCED], [BALANCED], [finding("HIGH_CPU", WARN), IDLE], "LOW_GPU_UTILIZATION", "system"),
        ([BALANCED], [BALANCED], [finding("HIGH_CPU", WARN)], "BALANCED", "step_time"),
        ([finding("NO_DATA")], [BALANCED], [IDLE], "NO_DATA", "step_time"),
        ([finding("WARMUP")], [BALANCED], [IDLE], "WARMUP", "step_time"),
        ([finding("INCOMPLETE_DATA")], [BALANCED], [NORMAL], "INCOMPLETE_DATA", "step_time"),
    ],
)
def test_primary_diagnosis_follows_the_order_of_precedence(
    step_time: list[Finding], memory: list[Finding], system: list[Finding], kind: str, section: str
) -> None:
    """Step-time problems, then critical memory, then idle GPUs, then any other step-time finding."""
    found = choose(step_time, memory, system, 100.0)
    assert (found.kind, found.section) == (kind, section)


def test_primary_diagnosis_is_the_finding_with_its_potential_speedup() -> None:
    """It has all fields of the finding, and how much faster a step would be without the cost."""
    found = choose([INPUT, finding("WAIT_HEAVY", WARN)], [BALANCED], [NORMAL], 100.0)
    assert (found.summary, found.action, found.score) == ("why INPUT_BOUND", "do INPUT_BOUND", 0.25)
    assert (found.phase, found.ranks) == ("input", [0])
    assert found.potential_speedup == pytest.approx(100 / 75)
    assert found.potential_how == "mean step 100.0 ms, 75.0 ms without these 25.0 ms"


@pytest.mark.parametrize(
    ("cost", "step_ms"), [(None, 100.0), (0.0, 100.0), (25.0, None), (100.0, 100.0), (140.0, 100.0)]
)
def test_meaningless_speedup_is_null(cost: float | None, step_ms: float | None) -> None:
    """No cost, no step time, or a cost of at least the whole step: no speedup is claimed."""
    evidence = {} if cost is None else {"cost_ms": cost}
    found = choose([finding("INPUT_BOUND", CRIT, evidence=evidence)], [BALANCED], [NORMAL], step_ms)
    assert (found.potential_speedup, found.potential_how) == (None, None)


def primary_of(count: int = 100, **phases: Any) -> Primary:
    """The primary diagnosis of a whole, hand-made run."""
    recording = made.run(made.rank(made.steps(count, **phases), overhead={}))
    return summarize(recording, RunFacts("demo")).primary_diagnosis


def test_speedup_of_an_input_bound_run() -> None:
    """40 of 100 ms are input: without it a step takes 60 ms, which is 1.67 times as fast."""
    found = primary_of(input=40, forward=40, backward=20)
    assert found.kind == "INPUT_BOUND"
    assert found.potential_speedup == pytest.approx(100 / 60)


def test_speedup_of_a_run_with_jitter() -> None:
    """Without its slow steps the mean step is the typical step."""
    found = primary_of(101, forward=made.every(10, 400.0, 101, otherwise=100.0, offset=5))
    assert found.kind == "JITTER"
    assert found.potential_speedup == pytest.approx(1.3)


def test_compute_bound_run_has_no_speedup() -> None:
    """Model work is not waste."""
    found = primary_of(forward=50, backward=50)
    assert (found.kind, found.potential_speedup) == ("COMPUTE_BOUND", None)


def test_gain_says_if_its_mean_leaves_slow_steps_out() -> None:
    """The table shows the mean of all steps: another mean needs another name."""
    calm = finding("INPUT_BOUND", WARN, evidence={"cost_ms": 25.0, "step_ms": 80.0})
    how = choose([calm], [BALANCED], [NORMAL], 100.0).potential_how
    assert how == "mean step without outliers 80.0 ms, 55.0 ms without these 25.0 ms"
