"""The five verdicts, the reasons, and what to do about an inconclusive one."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from tests.compare.making import blocks, compared, summary, windowed
from traceml.compare.compare import compare
from traceml.compare.verdict import NOISE_FLOOR, RESOLUTION, decide, verdict
from traceml.schema.comparison import (
    BETTER,
    CHANGED,
    IMPROVEMENT,
    INCONCLUSIVE,
    MEAN,
    MIXED,
    NO_CHANGE,
    REGRESSION,
    SAME,
    TYPICAL,
    UNCLEAR,
    VERDICTS,
    WORSE,
    RunRef,
    Shift,
)


def test_there_are_exactly_five_verdicts() -> None:
    """Every combination of step time and memory gives one of the five verdicts."""
    for step, memory in itertools.product(
        (BETTER, WORSE, SAME, UNCLEAR), (BETTER, WORSE, SAME, CHANGED, UNCLEAR)
    ):
        assert verdict(step, memory) in VERDICTS
    assert len(VERDICTS) == 5


@pytest.mark.parametrize(
    ("step", "memory", "expected"),
    [
        (BETTER, SAME, IMPROVEMENT),
        (WORSE, SAME, REGRESSION),
        (SAME, SAME, NO_CHANGE),
        (SAME, UNCLEAR, NO_CHANGE),
        (BETTER, WORSE, MIXED),
        (WORSE, BETTER, MIXED),
        (SAME, WORSE, REGRESSION),
        (SAME, BETTER, IMPROVEMENT),
        (UNCLEAR, WORSE, INCONCLUSIVE),
        (SAME, CHANGED, MIXED),
    ],
)
def test_step_time_and_memory_give_one_verdict(step: str, memory: str, expected: str) -> None:
    """Opposite directions are MIXED; an unclear step time is INCONCLUSIVE."""
    assert verdict(step, memory) == expected


@pytest.mark.parametrize(
    ("delta", "half", "expected"),
    [
        (0.06, 0.02, WORSE),
        (-0.06, 0.02, BETTER),
        (0.06, 0.08, UNCLEAR),
        (0.01, 0.02, SAME),
        (NOISE_FLOOR - 0.001, 0.001, SAME),
        (0.01, RESOLUTION + 0.001, UNCLEAR),
        (0.04, 0.045, UNCLEAR),
    ],
)
def test_decision_about_the_step_time(delta: float, half: float, expected: str) -> None:
    """A change needs a certain sign and the noise floor; "same" needs an interval that would show one."""
    assert decide(delta, delta - half, delta + half, NOISE_FLOOR) == expected


def test_slower_step_is_a_regression_with_its_cause() -> None:
    """A slower step is a REGRESSION, and the phase that grew is named with its share of the change."""
    a = summary(100, {"input_ms": 10, "forward_ms": 90})
    b = summary(120, {"input_ms": 30, "forward_ms": 90}, seed=1, primary=("INPUT_BOUND", "warn"))
    found = compared(a, b)
    assert found.verdict == REGRESSION
    assert "Input +20.0 ms explains 100 % of the change" in found.why
    assert found.explained_by[0].phase == "input"
    assert found.diagnosis["primary"].change == WORSE
    assert found.next.startswith("Look first at input.")


def test_demo_gives_the_documented_verdict() -> None:
    """Faster input: IMPROVEMENT, from INPUT-BOUND to COMPUTE-BOUND, explained by input."""
    slow = {"input_ms": 531.6, "forward_ms": 31.0, "wait_ms": 0.5}
    fast = {"input_ms": 2.3, "forward_ms": 38.9, "wait_ms": 1.1}
    found = compared(summary(563.1, slow, primary=("INPUT_BOUND", "crit")), summary(42.3, fast, seed=2))
    assert found.verdict == IMPROVEMENT
    assert found.diagnosis["primary"] == Shift("INPUT-BOUND", "COMPUTE-BOUND", BETTER)
    assert "Input -529.3 ms explains 102 % of the change" in found.why


def test_identical_steady_runs_are_no_change() -> None:
    """Two steady runs of the same training are NO CHANGE."""
    assert compared(summary(seed=1), summary(seed=2)).verdict == NO_CHANGE


def test_run_compared_with_itself_is_reported_as_such() -> None:
    """The same file on both sides, or a copy of it; runs of the same name are different runs."""
    run = summary(100.0, means=blocks(100.0, noise=0.5))
    one = RunRef("demo", "logs/demo/final_summary.json", started_at="2026-01-01T10:00:00", steps=60)
    found = compare([run], [run], [one], [one])
    assert found.verdict == NO_CHANGE
    assert found.why == "A and B are the same run: there is nothing to compare."
    copied = replace(one, path="elsewhere.json")
    assert compare([run], [run], [one], [copied]).why == found.why
    other = replace(copied, started_at="2026-01-02T10:00:00")
    assert "same run" not in compare([run], [run], [one], [other]).why
    half = compare([run], [run, run], [one], [one, other])
    assert "same run" not in half.why
    assert half.warnings[0] == "demo is in both A and B."


def test_noisy_runs_are_inconclusive_with_advice() -> None:
    """A change within the noise is INCONCLUSIVE, with the advice to compare several runs."""
    a = summary(100, means=blocks(100, 0.25, seed=1))
    b = summary(104, means=blocks(104, 0.25, seed=2))
    found = compared(a, b)
    assert found.verdict == INCONCLUSIVE
    assert "--a a1 a2 a3 --b b1 b2 b3" in found.next
    assert "may or may not have changed" in found.why


def test_more_memory_is_a_regression_or_mixed() -> None:
    """50 % more memory at the same speed is a REGRESSION; with a faster step it is MIXED."""
    assert compared(summary(), summary(seed=1, peak_bytes=6e9)).verdict == REGRESSION
    found = compared(summary(), summary(80, seed=1, peak_bytes=6e9))
    assert found.verdict == MIXED
    assert "Memory 4.00 GB -> 6.00 GB (+2.00 GB)" in found.why


def test_small_memory_changes_do_not_count() -> None:
    """Resident memory varies a little from run to run, which does not affect the verdict."""
    a = summary(memory_kind="rss", peak_bytes=1.0e9)
    assert compared(a, summary(seed=1, memory_kind="rss", peak_bytes=1.15e9)).verdict == NO_CHANGE


def test_memory_of_different_kinds_is_not_compared() -> None:
    """Device memory in A and resident memory in B is unclear, not a change."""
    found = compared(summary(), summary(seed=1, memory_kind="rss", peak_bytes=1e9))
    assert found.memory_change == UNCLEAR
    assert not [key for key in found.metrics if key.startswith("step_memory.")]


def test_new_memory_diagnosis_is_a_regression() -> None:
    """A MEMORY CREEP that A does not have is a regression, even if the peak is the same."""
    assert compared(summary(), summary(seed=1, memory=("CREEP_CONFIRMED", "crit"))).verdict == REGRESSION


def test_missing_step_times_are_inconclusive() -> None:
    """A run without steps is INCONCLUSIVE, never NO CHANGE."""
    a = summary()
    b = summary(means=[])
    b.step_time.metrics.clear()
    found = compared(a, b)
    assert found.verdict == INCONCLUSIVE
    assert found.interval.delta_share is None
    assert "B has no step times" in found.next


def test_without_blocks_only_a_large_change_counts() -> None:
    """Without an interval, 10 % is INCONCLUSIVE, and half the time is an IMPROVEMENT with a warning."""
    assert compared(summary(100, means=[]), summary(110, means=[])).verdict == INCONCLUSIVE
    found = compared(summary(100, means=[]), summary(50, means=[]))
    assert found.verdict == IMPROVEMENT
    assert any("without an interval" in w for w in found.warnings)


def test_slowdown_on_a_busy_machine_is_inconclusive() -> None:
    """A doubled step while others used the CPU is INCONCLUSIVE, and a warning says so."""
    quiet = summary(100, cpu=(50.0, 99.0))
    crowded = summary(200, seed=1, cpu=(100.0, 50.0))
    found = compared(quiet, crowded)
    assert found.verdict == INCONCLUSIVE
    assert any("other processes used 1.5 of 2 cores" in w for w in found.warnings)
    assert compared(quiet, summary(200, seed=1, cpu=(50.0, 99.0))).verdict == REGRESSION


def test_unchanged_compute_rules_out_a_busy_machine() -> None:
    """If compute did not get slower on a busy machine, other work is not the reason."""
    slow = {"input_ms": 400.0, "compute_ms": 100.0, "forward_ms": 100.0}
    fast = {"input_ms": 5.0, "compute_ms": 95.0, "forward_ms": 95.0}
    a, b = summary(500, slow, cpu=(100.0, 25.0)), summary(100, fast, seed=1, cpu=(100.0, 99.0))
    assert compared(a, b).verdict == INCONCLUSIVE
    assert compared(windowed(a, loader_workers=0), windowed(b, loader_workers=0)).verdict == IMPROVEMENT


def test_busy_machine_does_not_hide_a_slowdown_without_compute() -> None:
    """A process that hardly computes hardly waits for a core, so twice the step is a REGRESSION."""
    sleepy = summary(100, cpu=(100.0, 10.0))
    assert compared(sleepy, summary(200, seed=1, cpu=(100.0, 5.0))).verdict == REGRESSION


def test_slow_steps_that_went_away_are_an_improvement() -> None:
    """Slow first steps of epochs are in many blocks but not in the typical one: what they cost is seen in the
    mean. A burst in one or two blocks is not called a change, because it may come again or not."""
    calm = blocks(12.0)
    epochs = [value * (8.0 if i % 4 == 1 else 1.0) for i, value in enumerate(blocks(12.0, seed=1))]
    burst = [value * (20.0 if i in (7, 8) else 1.0) for i, value in enumerate(blocks(12.0, seed=1))]
    before, after = summary(33.0, means=epochs), summary(12.0, means=calm)
    for one, other, expected in ((before, after, IMPROVEMENT), (after, before, REGRESSION)):
        found = compared(one, other)
        assert found.verdict == expected
        assert found.interval.statistic == MEAN
        assert "The mean step" in found.why
    assert compared(summary(24.0, means=burst), after).verdict not in (IMPROVEMENT, REGRESSION)
    assert compared(after, summary(12.0, means=blocks(12.0, seed=2))).interval.statistic == TYPICAL
