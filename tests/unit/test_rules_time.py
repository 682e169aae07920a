"""Every step-time diagnosis of a single rank, on both sides of its thresholds, on hand-made windows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.unit import made
from tests.unit.made import align, every, window
from traceml.analyze.cores import CoreUse
from traceml.analyze.diagnose import diagnose_time
from traceml.analyze.rules.rule import ordered
from traceml.analyze.window import Window
from traceml.schema.summary import CRIT, INFO, WARN, Finding

COMPUTE: dict[str, Any] = {"forward": 40.0, "backward": 40.0, "optimizer": 9.0}
"""89 ms: below the 90 % of COMPUTE-BOUND as soon as anything else takes 10 ms."""


def first(made_window: Window) -> Finding:
    """The diagnosis of step time."""
    return diagnose_time(made_window)[0]


def kinds(made_window: Window) -> list[str]:
    return [f.kind for f in diagnose_time(made_window)]


def shared(key: str, share: float, count: int = 100, **more: Any) -> Window:
    """A window whose `key` takes `share` of each 100 ms step, the rest being model work."""
    rest = 100.0 * (1 - share) / 3
    phases: dict[str, Any] = {"forward": rest, "backward": rest, "optimizer": rest, key: 100.0 * share}
    return window(count, **phases, **more)


ON_DEVICE: dict[str, Any] = {"clock": "device", "unmeasured": ("sync",)}
BOUNDS = [
    ("input", "INPUT-BOUND", {}),
    ("h2d", "H2D-BOUND", ON_DEVICE),
    ("wait", "WAIT-HEAVY", {}),
    ("checkpoint", "WAIT-HEAVY", {}),
    ("validation", "WAIT-HEAVY", {}),
]


@pytest.mark.parametrize(("key", "status", "more"), BOUNDS, ids=[b[0] for b in BOUNDS])
@pytest.mark.parametrize(
    ("share", "severity"),
    [(0.0, None), (0.09, None), (0.0999, None), (0.101, WARN), (0.11, WARN), (0.19, WARN), (0.21, CRIT)],
)
def test_bounds_fire_at_their_thresholds(
    key: str, status: str, more: dict[str, Any], share: float, severity: str | None
) -> None:
    """Below 10 % silent, from 10 % a warning, from 20 % critical; the score is the share."""
    found = first(shared(key, share, **more))
    if severity is None:
        assert (found.status, found.severity) == ("COMPUTE-BOUND", INFO)
    else:
        assert (found.status, found.severity, found.phase) == (status, severity, key)
        assert found.score == pytest.approx(share)
        assert found.evidence["cost_ms"] == pytest.approx(100 * share)
        assert found.action


def test_user_phase_is_named_as_outside_work() -> None:
    """A user phase that takes more than 20 % of the step is WAIT-HEAVY and named."""
    found = first(window(user={"augment": 25.0}, **COMPUTE))
    assert (found.kind, found.phase) == ("WAIT_HEAVY", "user.augment")
    assert "phase 'augment' is 100.0 % of it" in found.summary


def test_summary_has_the_numbers_and_action_the_next_step() -> None:
    """The reason in milliseconds and percent, and what to do."""
    found = first(shared("input", 0.25))
    assert found.summary == "Waiting for input takes 25.0 ms of each 100.0 ms step (25.0 %)."
    assert "num_workers" in found.action


def test_loader_with_workers_gets_different_advice() -> None:
    """A user who already has loader workers is not told to use them."""
    found = first(shared("input", 0.25, workers=4))
    assert "(25.0 %, 4 loader workers)" in found.summary
    assert "the loader already has 4 workers" in found.action


def test_inferred_input_is_reported_as_inferred() -> None:
    """If no loader was seen, the finding says how it knows."""
    found = first(shared("input", 0.25, input_inferred=True))
    assert "inferred: no loader was seen" in found.summary
    assert found.evidence["inferred"] is True
    assert "If it logs or saves" in found.action
    found = first(shared("input", 0.25, input_inferred=True, loader_on_thread=True))
    assert "inferred: another thread reads the loader" in found.summary
    assert "or a thread" not in found.action
    found = first(shared("input", 0.25, input_inferred=True, early_batch=True))
    assert "everything that runs between the forward and the backward pass counts as input" in found.summary
    assert "look at what runs between the forward and the backward pass." in found.action


def test_h2d_is_never_judged_on_the_host_clock() -> None:
    """Launching a copy can take long on the host for many reasons, so only the device clock counts."""
    assert "H2D_BOUND" not in kinds(shared("h2d", 0.5, unmeasured=("sync",)))


# ---- how many steps


@pytest.mark.parametrize(("count", "severity"), [(2, WARN), (19, WARN), (20, CRIT), (100, CRIT)])
def test_critical_needs_twenty_steps(count: int, severity: str) -> None:
    """From 2 to 19 steps at most a warning, however large the share."""
    assert first(shared("input", 0.8, count)).severity == severity


@pytest.mark.parametrize(("count", "words"), [(0, "No training step"), (1, "Only one training step")])
def test_below_two_steps_there_is_no_data(count: int, words: str) -> None:
    """With no or one completed step: NO DATA, and how many there were."""
    found = first(align([made.rank(made.steps(count, input=50, forward=50))]))
    assert (found.status, found.severity) == ("NO DATA", INFO)
    assert found.summary.startswith(words)


def test_run_with_only_warm_up_steps_says_so() -> None:
    """All completed steps are warm-up: WARMUP, with the time of the first step."""
    found = first(replace(window(1, **COMPUTE), total_steps=3, warmup=(1200.0, 900.0)))
    assert found.status == "WARMUP"
    assert "first step 1200.0 ms" in found.summary


def test_window_of_one_step_without_warm_up_has_no_data() -> None:
    """A view of one step has too little to judge, and says so."""
    assert first(replace(window(1, **COMPUTE), total_steps=3)).status == "NO DATA"


# ---- no rule fires


def test_step_full_of_model_work_is_compute_bound() -> None:
    """From 90 % on: COMPUTE-BOUND, informational, with the largest phase."""
    found = first(window(forward=30, backward=55, optimizer=8, wait=7))
    assert (found.status, found.severity, found.phase) == ("COMPUTE-BOUND", INFO, "backward")
    assert "backward is the largest part (55.0 ms)" in found.summary


def test_phase_that_takes_most_of_the_step_is_never_balanced() -> None:
    """The optimizer takes 60 %, all model work 88 %: COMPUTE-BOUND, with advice about the optimizer."""
    found = first(window(forward=14, backward=14, optimizer=60, input=7, wait=5))
    assert (found.kind, found.phase) == ("COMPUTE_BOUND", "optimizer")
    assert "fused=True" in found.action


def test_less_than_ninety_percent_of_model_work_is_balanced() -> None:
    """Nothing else above 10 %, model work below 90 %: only BALANCED."""
    assert kinds(window(forward=40, backward=40, optimizer=9, input=6, wait=5)) == ["BALANCED"]


@pytest.mark.parametrize("missing", ["input", "forward", "backward", "optimizer"])
def test_missing_signal_is_named_and_the_run_is_not_balanced(missing: str) -> None:
    """A rule abstains if its signals are missing; if nothing fires, the label is INCOMPLETE DATA."""
    found = first(window(unmeasured=("h2d", "sync", missing), **COMPUTE))
    assert (found.status, found.severity) == ("INCOMPLETE DATA", INFO)
    assert found.evidence["missing"] == [missing]
    assert missing in found.summary


@pytest.mark.parametrize(("wait", "status"), [(5, "COMPUTE-BOUND"), (15, "WAIT-HEAVY")])
def test_an_update_by_hand_that_was_not_seen_hides_no_verdict(wait: float, status: str) -> None:
    """It is a part of the wait. If that is short, the rest is judged; else the wait itself is named."""
    phases: dict[str, Any] = {"forward": 50.0, "backward": 45.0, "wait": wait}
    found = first(window(unmeasured=("h2d", "sync", "optimizer"), steps_inferred=True, **phases))
    assert found.status == status


def test_several_missing_signals_are_all_named() -> None:
    """Every missing signal is named once."""
    found = first(window(unmeasured=("h2d", "sync", "input", "backward"), **COMPUTE))
    assert found.evidence["missing"] == ["input", "backward"]


def test_missing_signal_does_not_hide_other_findings() -> None:
    """What the measured phases show is still reported."""
    assert kinds(shared("input", 0.3, unmeasured=("h2d", "sync", "backward"))) == ["INPUT_BOUND"]
    heavy = shared("wait", 0.3, unmeasured=("h2d", "sync", "input"))
    assert kinds(heavy) == ["WAIT_HEAVY"]


def test_step_that_is_too_short_to_judge_says_so() -> None:
    """If TraceML's own cost exceeds 10 % of the step, no cause is named, but both numbers are."""
    found = first(window(forward=0.03, input=0.03, overhead=0.008))
    assert found.status == "INCOMPLETE DATA"
    assert "60.0 µs" in found.summary
    assert "8.0 µs" in found.summary


def test_overhead_is_subtracted_before_judging() -> None:
    """Wait that TraceML itself causes does not count."""
    assert first(window(forward=8.9, wait=1.1, overhead=0.2)).kind == "COMPUTE_BOUND"
    assert first(window(forward=8.9, wait=1.1, overhead=0.0)).kind == "WAIT_HEAVY"


# ---- WAIT-HEAVY names its largest part


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"checkpoint": 30.0, "wait": 5.0}, "checkpoint writing is 85.7 % of it"),
        ({"validation": 30.0, "checkpoint": 10.0}, "validation is 75.0 % of it, 25.0 % checkpoint writing."),
        ({"wait": 30.0, "gc_wait": 20.0}, "garbage collection is 66.7 % of it"),
        ({"wait": 30.0}, "it is unattributed; 100.0 % of it is after the forward pass, where"),
        (
            {"wait": 30.0, "checkpoint": 10.0},
            "75.0 % is unattributed, 100.0 % of it is after the forward pass",
        ),
        ({"wait": 15.0, "validation": 20.0}, "validation is 57.1 % of it; 42.9 % is unattributed"),
    ],
    ids=["checkpoint", "validation", "gc", "unattributed", "mostly unattributed", "partly unattributed"],
)
def test_wait_heavy_names_its_largest_part(parts: dict[str, Any], words: str) -> None:
    """The largest part is named with its share, or reported as unattributed."""
    found = first(window(**COMPUTE, **parts))
    assert found.kind == "WAIT_HEAVY"
    assert words in found.summary


def test_unattributed_wait_names_its_place_in_the_loop() -> None:
    """If nothing explains the wait, at least its place in the loop is reported."""
    found = first(window(wait=30.0, place="wait_backward", **COMPUTE))
    assert "100.0 % of it is after the backward pass" in found.summary


@pytest.mark.parametrize("key", ["checkpoint", "validation"])
@pytest.mark.parametrize("period", [5, 10, 25])
def test_periodic_outside_work_is_wait_heavy_not_jitter(key: str, period: int) -> None:
    """A checkpoint or validation every few steps is deliberate: WAIT-HEAVY names it."""
    work: dict[str, Any] = {key: every(period, 30.0 * period, 100, offset=period - 1)}
    found = diagnose_time(window(**COMPUTE, **work))
    assert [f.kind for f in found] == ["WAIT_HEAVY"]
    assert found[0].phase == key
    assert found[0].severity == CRIT
    assert found[0].evidence["cost_ms"] == pytest.approx(30.0)


def test_periodic_outside_work_and_steady_wait_add_up() -> None:
    """15 % for checkpoints every ten steps and 6 % of steady wait are 21 %, not 6 %."""
    found = first(window(forward=79.0, wait=6.0, checkpoint=every(10, 150.0, 100)))
    assert (found.kind, found.severity) == ("WAIT_HEAVY", CRIT)
    assert found.score == pytest.approx(0.21)


# ---- JITTER


def test_a_warning_about_wait_does_not_hide_slow_steps_that_cost_half_of_all_time() -> None:
    """Logging every ten steps next to some validation: when it happens and what it costs comes first."""
    log, validation = every(10, 600.0, 100), every(50, 1_000.0, 100)
    found = diagnose_time(window(**COMPUTE, validation=validation, wait=log, place="wait_start"))
    assert [(f.kind, f.severity) for f in found] == [("JITTER", CRIT), ("WAIT_HEAVY", WARN)]
    assert found[0].evidence["period"] == 10


@pytest.mark.parametrize("period", [5, 10, 20])
@pytest.mark.parametrize("phase", ["input", "forward", "backward", "optimizer", "wait"])
def test_jitter_reports_period_size_and_phase(phase: str, period: int) -> None:
    """Slow steps at regular intervals: how often, how much longer, in which phase."""
    usual: dict[str, Any] = {"forward": 40.0, "backward": 40.0, "optimizer": 15.0, "input": 5.0, "wait": 0.0}
    usual[phase] = every(period, usual[phase] + 400.0, 100, otherwise=usual[phase])
    found = first(window(**usual))
    assert (found.kind, found.phase) == ("JITTER", phase)
    assert found.evidence["period"] == period
    assert found.evidence["extra_ms"] == pytest.approx(400)
    assert found.evidence["typical_ms"] == pytest.approx(100)
    assert found.evidence["cost_ms"] == pytest.approx(400 / period)
    assert f"every {period} steps" in found.summary


@pytest.mark.parametrize(("extra", "severity"), [(98.0, None), (120.0, WARN), (240.0, WARN), (260.0, CRIT)])
def test_jitter_fires_at_its_thresholds(extra: float, severity: str | None) -> None:
    """Slow steps that cost 10 % of all time are a warning, 20 % critical, less nothing."""
    found = first(window(forward=every(10, 100.0 + extra, 100, otherwise=100.0)))
    share = extra / (1000 + extra)
    assert found.kind == ("COMPUTE_BOUND" if severity is None else "JITTER")
    if severity is not None:
        assert found.severity == severity
        assert found.score == pytest.approx(share)


def test_irregular_jitter_claims_no_period() -> None:
    """Irregular slow steps are counted."""
    forward = np.full(100, 100.0)
    forward[[3, 9, 30, 38, 61, 90]] = 500.0
    found = first(window(forward=forward))
    assert found.kind == "JITTER"
    assert found.evidence["period"] is None
    assert "6 of 100 steps, irregular" in found.summary


def test_period_is_found_among_smaller_irregular_slow_steps() -> None:
    """A busy machine adds small irregular slow steps: period and size are those of the large ones."""
    forward = every(10, 110.0, 100, otherwise=50.0)
    forward[[3, 7, 22, 36, 38, 64, 77, 93]] += 27.0
    found = first(window(forward=forward))
    assert (found.kind, found.evidence["period"], found.evidence["slow_steps"]) == ("JITTER", 10, 10)
    assert found.evidence["extra_ms"] == pytest.approx(60)


def test_slow_steps_in_one_stretch_are_said_to_be() -> None:
    """The first epoch waits for storage, the later ones do not: which steps, and where."""
    slow = np.where(np.arange(100) < 20, 80.0, 0.1)
    found = first(window(input=slow, forward=20.0))
    assert found.kind == "JITTER"
    assert "Slow steps (20 of 100 steps, mostly steps 1 to 20)" in found.summary


def test_stretch_is_found_among_smaller_irregular_slow_steps() -> None:
    """A busy machine adds small slow steps elsewhere: the stretch is that of the large ones."""
    slow = np.where(np.arange(100) < 15, 200.0, 0.1)
    slow[[30, 41, 47, 66, 78, 90]] += 27.0
    found = first(window(input=slow, forward=20.0))
    assert "Slow steps (15 of 100 steps, mostly steps 1 to 15)" in found.summary
    assert found.phase == "input"


def test_jitter_in_several_phases_blames_none_and_names_the_two_largest() -> None:
    """A cause is named only when it explains 80 % of the excess. Otherwise the sentence has two shares."""
    found = first(
        window(forward=every(10, 300, 100, otherwise=50.0), backward=every(10, 300, 100, otherwise=50.0))
    )
    assert (found.kind, found.phase) == ("JITTER", None)
    assert "(every 10 steps)" in found.summary
    assert found.summary.endswith("50.0 % of the extra time is in forward and 50.0 % in backward.")
    assert found.action.endswith("look at forward and backward.")


def test_garbage_collection_is_named_as_the_cause_of_jitter() -> None:
    """If garbage collection explains the extra time, it is named, whatever phase it ran in."""
    found = first(window(forward=every(10, 500, 100, otherwise=100.0), gc=every(10, 390, 100, otherwise=1.0)))
    assert found.kind == "JITTER"
    assert found.evidence["where"] == "garbage collection"
    assert "in garbage collection" in found.summary


def test_bursts_of_several_workers_are_input_bound_not_jitter() -> None:
    """Four workers deliver four batches at once: one slow step in four means a slow loader."""
    bursts = window(**COMPUTE, input=every(4, 200.0, 100), workers=4)
    assert kinds(bursts) == ["INPUT_BOUND"]
    assert first(replace(bursts, workers=0)).kind == "JITTER"


def test_irregular_slow_steps_from_a_busy_machine_are_not_jitter() -> None:
    """The time that threads waited for a core is subtracted from the cost of slow steps."""
    forward = np.full(100, 100.0)
    forward[[2, 3, 19, 33, 38, 61, 70, 74, 90, 97]] = 250.0
    unrest = window(forward=forward)
    assert first(unrest).kind == "JITTER"
    assert first(replace(unrest, cpu_delay_share=0.10)).kind == "COMPUTE_BOUND"


def test_regular_slow_steps_are_jitter_on_a_busy_machine_too() -> None:
    """Waiting for cores does not make every tenth step slow, so nothing is subtracted."""
    regular = window(forward=every(10, 500.0, 100, otherwise=100.0))
    found = first(replace(regular, cpu_delay_share=0.25))
    assert (found.kind, found.severity, found.evidence["period"]) == ("JITTER", CRIT, 10)


@pytest.mark.parametrize(("slow", "kind"), [(20, "JITTER"), (30, "INPUT_BOUND"), (45, "INPUT_BOUND")])
def test_slow_steps_too_frequent_for_jitter_are_a_bound(slow: int, kind: str) -> None:
    """Waiting in up to a quarter of the steps is jitter, in more of them a bound."""
    waits = np.where(np.random.default_rng(3).permutation(100) < slow, 60.0, 0.0)
    assert first(window(**COMPUTE, input=waits)).kind == kind


@pytest.mark.parametrize("count", range(22, 60))
def test_no_wait_falls_between_a_bound_and_jitter(count: int) -> None:
    """A wait in a quarter of the steps is jitter, in one step more a bound, for any number of steps."""
    for slow, kind in ((count // 4, "JITTER"), (count // 4 + 1, "WAIT_HEAVY")):
        waits = np.where(np.random.default_rng(3).permutation(count) < slow, 150.0, 0.0)
        assert first(window(count, **COMPUTE, wait=waits)).kind == kind


@pytest.mark.parametrize("workers", [0, 2, 4, 8, 16])
def test_rare_stall_is_jitter_with_any_number_of_workers(workers: int) -> None:
    """One long wait in forty steps: most groups of batches have none, however many workers there are."""
    stalls = window(200, **COMPUTE, input=every(40, 700.0, 200, otherwise=0.5), workers=workers)
    assert first(stalls).kind == "JITTER"


@pytest.mark.parametrize("period", [5, 10, 15])
@pytest.mark.parametrize("seed", range(5))
def test_regular_slow_steps_are_found_though_a_busy_machine_slows_many_others(period: int, seed: int) -> None:
    """A third of all steps take twice as long because of other work; every few steps one waits for 200 ms."""
    random = np.random.default_rng(seed)
    slowed = np.where(random.random(120) < 0.35, random.uniform(1.6, 2.5, 120), 1.0)
    busy = window(120, forward=20.0 * slowed, wait=every(period, 200.0, 120, offset=3), cpu_delay_share=0.25)
    found = first(busy)
    assert (found.kind, found.phase, found.evidence["period"]) == ("JITTER", "wait", period)


@pytest.mark.parametrize("seed", range(5))
def test_steps_that_a_busy_machine_slows_are_no_jitter(seed: int) -> None:
    """Many slow steps of all sizes: none of them stands out."""
    noise = 1 + np.random.default_rng(seed).exponential(0.5, 200)
    assert "JITTER" not in kinds(window(200, forward=20.0 * noise, backward=5.0 * noise, cpu_delay_share=0.3))


def test_ordinary_noise_is_not_jitter() -> None:
    """Step times that vary by 10 % have no finding."""
    noise = 100 * (1 + 0.1 * np.random.default_rng(3).standard_normal(400))
    assert kinds(window(400, forward=noise)) == ["COMPUTE_BOUND"]


# ---- SLOWDOWN


@pytest.mark.parametrize("phase", ["input", "forward", "optimizer", "wait"])
def test_slowdown_reports_since_when_how_much_and_where(phase: str) -> None:
    """Step time that rose and stayed up: since which step, from what to what, in which phase."""
    usual: dict[str, Any] = {"forward": 60.0, "optimizer": 35.0, "input": 5.0, "wait": 0.0}
    usual[phase] = np.where(np.arange(200) < 120, usual[phase], usual[phase] + 50.0)
    found = next(f for f in diagnose_time(window(200, **usual, first_step=11)) if f.kind == "SLOWDOWN")
    assert found.severity == CRIT
    assert found.phase == phase
    assert found.evidence["since_step"] == 11 + 120
    assert (found.evidence["before_ms"], found.evidence["after_ms"]) == (100, 150)
    assert found.evidence["cost_ms"] == pytest.approx(50 * 80 / 200)
    assert "Since step 131, steps take 150.0 ms instead of 100.0 ms (+50.0 %)" in found.summary


@pytest.mark.parametrize(
    ("phase", "grows"),
    [
        ("backward", "reaches back into earlier steps"),
        ("wait", "a list that is searched"),
        ("input", "what the dataset keeps"),
        ("forward", "a list, a cache, a graph"),
    ],
)
def test_steady_growth_is_a_slowdown_that_began_at_no_single_step(phase: str, grows: str) -> None:
    """Each step takes a little longer than the last: from what to what, since when, and what suggests itself;
    what it cost is the growth, and its own steps are no jitter."""
    usual: dict[str, Any] = {"forward": 10.0, "backward": 6.0, "input": 3.0, "wait": 1.0}
    usual[phase] = usual[phase] + np.linspace(0.0, 60.0, 200)
    found = diagnose_time(window(200, **usual, first_step=11))
    assert "JITTER" not in {f.kind for f in found}
    slower = next(f for f in found if f.kind == "SLOWDOWN")
    assert (slower.phase, slower.severity) == (phase, CRIT)
    assert "Steps grew steadily from 2" in slower.summary
    assert made.number(slower, "before_ms") == pytest.approx(20, rel=0.1)
    assert grows in slower.action
    assert "changed at step" not in slower.action
    assert made.number(slower, "since_step") <= 11 + 10
    assert made.number(slower, "until_step") >= 190
    assert made.number(slower, "after_ms") == pytest.approx(80, rel=0.05)
    assert made.number(slower, "cost_ms") == pytest.approx(30, rel=0.1)


def test_small_slowdown_is_a_warning_and_a_tiny_one_is_ignored() -> None:
    """15 % to 30 % more is a warning; less is nothing."""
    late = np.arange(200) >= 100
    assert first(window(200, forward=np.where(late, 120.0, 100.0))).severity == WARN
    assert first(window(200, forward=np.where(late, 112.0, 100.0))).kind == "COMPUTE_BOUND"


def test_slowdown_is_not_also_jitter() -> None:
    """After the shift every step is slow: one finding, not two."""
    late = np.arange(200) >= 160
    assert kinds(window(200, forward=np.where(late, 300.0, 100.0))) == ["SLOWDOWN"]


def test_jitter_is_found_despite_a_slowdown() -> None:
    """A lasting shift in another phase does not hide regular slow steps."""
    late = np.arange(200) >= 100
    found = diagnose_time(
        window(200, forward=np.where(late, 150.0, 100.0), wait=every(10, 500.0, 200, offset=5))
    )
    assert {f.kind: f.phase for f in found} == {"SLOWDOWN": "forward", "JITTER": "wait"}


# ---- order


def test_findings_are_sorted_by_severity_then_score() -> None:
    """The score is the share of time at stake."""
    crit_small = Finding("A", "A", CRIT, "", "", score=0.2)
    warn_large = Finding("B", "B", WARN, "", "", score=0.9)
    warn_small = Finding("C", "C", WARN, "", "", score=0.1)
    info = Finding("D", "D", INFO, "", "", score=1.0)
    assert ordered([info, warn_small, crit_small, warn_large]) == [crit_small, warn_large, warn_small, info]


def test_two_causes_are_both_reported_the_larger_first() -> None:
    """A step may wait for input and write checkpoints: both are reported."""
    found = diagnose_time(window(forward=60.0, input=15.0, checkpoint=25.0))
    assert [(f.kind, f.severity) for f in found] == [("WAIT_HEAVY", CRIT), ("INPUT_BOUND", WARN)]


@pytest.mark.parametrize("seed", range(5))
def test_every_window_has_sorted_findings_with_complete_sentences(seed: int) -> None:
    """Whatever the numbers: at least one finding, and no placeholder is left in a sentence."""
    random = np.random.default_rng(seed)
    count = int(random.integers(2, 200))
    keys = ("input", "forward", "backward", "optimizer", "wait")
    phases: dict[str, Any] = {key: random.exponential(10, count) for key in keys}
    found = diagnose_time(window(count, **phases))
    assert found == ordered(found)
    for finding in found:
        assert finding.summary
        assert finding.action
        assert "{" not in finding.summary + finding.action
        assert 0 <= finding.score <= 1


@pytest.mark.parametrize(
    ("busy", "words", "advice"),
    [(28.0, "thread was busy", "profile"), (2.0, "thread was idle", "sleeps, blocking")],
)
def test_unattributed_time_is_called_busy_or_idle(busy: float, words: str, advice: str) -> None:
    """A training thread that computes there needs a profiler; one that sleeps needs another look."""
    found = first(window(forward=70.0, wait=30.0, busy_wait=busy, overhead=0.0))
    assert words in found.summary
    assert advice in found.action


def test_a_teacher_that_fills_the_step_is_compute() -> None:
    """Forward passes without gradients are model work: COMPUTE-BOUND names them and has advice for them."""
    found = first(window(forward=20.0, no_grad=70.0, backward=8.0, wait=2.0, overhead=0.0))
    assert (found.kind, found.phase) == ("COMPUTE_BOUND", "no_grad")
    assert "forward without gradients is the largest part (70.0 ms)" in found.summary
    assert "teacher" in found.action


def test_a_teacher_that_takes_most_of_the_step_is_never_balanced() -> None:
    """Distillation with 57 % in the teacher and 30 % in the student: below 90 % of model work, and named."""
    found = first(window(forward=15.0, no_grad=57.0, backward=15.0, input=6.0, wait=7.0, overhead=0.0))
    assert (found.kind, found.phase) == ("COMPUTE_BOUND", "no_grad")


def test_wait_is_judged_although_the_optimizer_was_not_seen() -> None:
    """Keras and fastai have optimizers of their own: half a step of wait is reported, with that caveat."""
    unmeasured = ("h2d", "sync", "optimizer")
    found = first(window(forward=30.0, backward=20.0, wait=50.0, overhead=0.0, unmeasured=unmeasured))
    assert found.kind == "WAIT_HEAVY"
    assert "neither input nor model work that was recorded (the optimizer was not)" in found.summary


def test_workers_are_promised_only_what_epochs_leave_of_it() -> None:
    """Workers cannot prefetch while the script validates, and each epoch waits for its first batch. In short
    epochs nothing is promised."""
    idle = CoreUse(cores=8, run_busy=1.0, others_busy=0.0)
    model: dict[str, Any] = {"forward": 10.0, "backward": 10.0, "optimizer": 2.0, "core_use": idle}

    def advised(**more: Any) -> Finding:
        return diagnose_time(window(100, input=40.0, **model, **more))[0]

    once = advised(epoch_starts=frozenset({1}))
    assert "(DataLoader with num_workers=2)" in once.action
    assert once.evidence["promised"] is True
    again = advised(epoch_starts=frozenset({1, 51}))
    assert "num_workers=2, persistent_workers=True" in again.action
    assert 0 < float(str(again.evidence["saves_ms"])) < float(str(once.evidence["saves_ms"]))
    validates = advised(epoch_starts=frozenset({1, 51}), validation=every(50, 1_000.0, 100))
    assert "num_workers=2, persistent_workers=True" in validates.action
    expected = 40.0 + 22.0 + 20.0 - float(str(validates.evidence["saves_ms"]))
    assert expected == pytest.approx(22.0 + 1.0 + 20.0, rel=0.1)
    short = advised(epoch_starts=frozenset(range(1, 101, 10)))
    assert short.evidence["promised"] is False
    assert "try to load batches" in short.action


def test_start_of_workers_is_more_than_the_first_step_of_an_epoch() -> None:
    """Each of them has yet to make its first batch: persistent workers are the answer, not more of them."""
    waits = np.full(100, 0.5)
    waits[::10], waits[1::10] = 200.0, 60.0
    starts = frozenset(range(1, 101, 10))
    (found,) = diagnose_time(window(100, input=waits, forward=10.0, workers=2, epoch_starts=starts))
    assert found.kind == "JITTER"
    advice = "loader workers start, so set persistent_workers=True in the DataLoader"
    assert found.action == f"In those steps an epoch begins: {advice}."
