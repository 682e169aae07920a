"""Like with like: differences are listed, and what cannot be compared is left out."""

from __future__ import annotations

import dataclasses

import pytest

from tests.compare.making import compared, summary, windowed
from traceml.schema.comparison import IMPROVEMENT, NO_CHANGE, REGRESSION
from traceml.schema.summary import StepCounts


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"environment": {"torch": "2.14"}}, "torch"),
        ({"environment": {"device": "cuda"}}, "device"),
        ({"environment": {"device_name": "H200"}}, "device model"),
        ({"environment": {"model_parameters": 7_000}}, "model parameters"),
        ({"batch": 64}, "batch size"),
        ({"world": 2}, "world size"),
        ({"clock": "device"}, "clock"),
    ],
)
def test_differences_that_matter_are_listed(change: dict[str, object], what: str) -> None:
    """Another batch size, world size, device, version, model or clock is listed as one that matters."""
    known = {"device": "cpu", "device_name": "A100", "model_parameters": 5_000}
    own = change.pop("environment", {})
    assert isinstance(own, dict)
    a = summary(environment=known)
    b = summary(seed=1, environment={**known, **own}, **change)  # type: ignore[arg-type]
    found = {d.what: d for d in compared(a, b).differences}
    assert found[what].matters
    assert not compared(a, summary(seed=1, environment=known)).differences


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"environment": {"model_parameters": 1_000}}, "model parameters (5,000 -> 1,000)"),
        ({"environment": {"device_name": "H200"}}, "device model (A100 -> H200)"),
        ({"environment": {"cpu_count": 64}}, "cores (8 -> 64)"),
        ({"world": 2}, "world size (1 -> 2)"),
        ({"environment": {"batch_size": 64}, "batch": 64}, "batch size (32 -> 64)"),
        ({"batch": 16}, "samples per step (32 -> 16)"),
    ],
)
@pytest.mark.parametrize("step_ms", [10.0, 100.0, 400.0])
def test_verdict_on_unlike_runs_says_so_and_does_not_advise_to_keep_b(
    change: dict[str, object], said: str, step_ms: float
) -> None:
    """Another model, batch, machine or world size may be the whole reason, whichever way the change goes."""
    known = {"device_name": "A100", "model_parameters": 5_000, "cpu_count": 8, "batch_size": 32}
    own = change.get("environment", {})
    assert isinstance(own, dict)
    rest = {key: value for key, value in change.items() if key != "environment"}
    b = summary(step_ms, seed=1, environment={**known, **own}, **rest)  # type: ignore[arg-type]
    found = compared(summary(environment=known), b)
    assert said in found.why
    assert found.next.startswith(f"Compare runs with the same {said.partition(' (')[0]} before you decide.")
    assert "Keep B" not in found.next
    assert "Nothing to do" not in found.next


@pytest.mark.parametrize("setting", [{"torch": "2.14"}, {"torch_threads": 8}])
def test_setting_that_one_changes_to_be_faster_is_kept(setting: dict[str, object]) -> None:
    """More threads or a newer torch are listed, but they are what was tried: B is kept."""
    before = {"torch": "2.13", "torch_threads": 4}
    a, b = summary(environment=before), summary(50, seed=1, environment={**before, **setting})
    found = compared(a, b)
    assert found.differences
    assert (found.verdict, found.next) == (IMPROVEMENT, "Keep B.")


def test_warmup_is_context_and_unknown_is_no_difference() -> None:
    """A different warm-up is listed as context. A fact that only one side knows is not a difference."""
    a, b = summary(), summary(seed=1, environment={"device_name": "A100"})
    found = compared(a, windowed(b, warmup_steps=9)).differences
    assert [(d.what, d.a, d.b, d.matters) for d in found] == [("warm-up steps left out", "1", "9", False)]


def test_different_batch_sizes_are_compared_per_sample() -> None:
    """Twice the batch in 1.6 times the time is an IMPROVEMENT, because the time per sample counts."""
    found = compared(summary(100, batch=32), summary(160, batch=64, seed=1))
    assert found.interval.basis == "sample"
    assert found.interval.delta_share == pytest.approx(-0.2, abs=0.02)
    assert found.verdict == IMPROVEMENT
    assert found.why.startswith("The time per sample is faster")
    assert found.metrics["samples_per_s"].delta_share == pytest.approx(0.25)


def test_same_batch_in_more_time_is_a_regression() -> None:
    """With the same batch size, the step time is compared."""
    found = compared(summary(100), summary(110, seed=1))
    assert found.interval.basis == "step"
    assert found.verdict == REGRESSION


def test_tokens_take_precedence_over_samples() -> None:
    """If tokens per step are known and differ, the time per token is compared."""
    a, b = summary(100), summary(200, seed=1)
    for run, tokens in ((a, 1000), (b, 2000)):
        step = run.step_time.metrics["step_ms"].average
        assert step
        run.step_time.metrics["tokens_per_s"] = dataclasses.replace(
            run.step_time.metrics["step_ms"], average=tokens * 1000 / step
        )
    found = compared(a, b)
    assert found.interval.basis == "token"
    assert found.verdict == NO_CHANGE


def test_phases_on_different_clocks_are_not_compared() -> None:
    """Host phases are never compared with device phases; the step time still is."""
    found = compared(summary(100), summary(120, seed=1, clock="device"))
    assert "step_ms" in found.metrics
    assert not {"input_ms", "forward_ms", "compute_ms", "wait_ms", "wait_share"} & set(found.metrics)
    assert not found.explained_by
    assert any("different clocks" in w for w in found.warnings)


def test_failed_and_running_runs_are_reported() -> None:
    """A warning says that a run failed or was still running."""
    found = compared(summary(status="failed"), dataclasses.replace(summary(seed=1), final=False))
    assert any(w.startswith("A did not complete (failed)") for w in found.warnings)
    assert any(w.startswith("B was still running") for w in found.warnings)


def test_world_size_of_a_run_that_trained_nothing_is_unknown() -> None:
    """A rank was killed before the first step, so nothing was recorded: no difference is claimed."""
    found = compared(summary(steps=StepCounts(total=0)), summary(world=2))
    assert "world size" not in found.why
