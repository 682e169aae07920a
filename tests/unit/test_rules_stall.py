"""Single events that cost a large part of a run: steps that stall, dropped steps, steps that do more work."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.unit import made
from tests.unit.made import align, every, window
from tests.unit.test_rules_ranks import MEASURED, coupled, uncoupled, usual
from traceml.analyze.diagnose import diagnose_time
from traceml.analyze.window import OutsideSteps, Window
from traceml.schema.summary import CRIT, WARN, Finding, Summary

COUNT = 100
USUAL: dict[str, Any] = {"input": 1.0, "forward": 15.0, "backward": 10.0, "optimizer": 2.0}
PHASES = ("input", "forward", "backward", "optimizer", "wait")


def once(at: int, ms: float, count: int = COUNT) -> Any:
    """`ms` in one step, by index."""
    found = np.zeros(count)
    found[at] = ms
    return found


def stalled(phase: str, at: int, ms: float, count: int = COUNT, **more: Any) -> Window:
    """A single rank that stops once."""
    phases: dict[str, Any] = {key: made.series(value, count) for key, value in USUAL.items()}
    phases[phase] = phases.get(phase, np.zeros(count)) + once(at, ms, count)
    return window(count, **phases, **more)


def found(kind: str, findings: list[Finding]) -> Finding:
    (finding,) = [f for f in findings if f.kind == kind]
    return finding


def kinds(findings: list[Finding]) -> set[str]:
    return {f.kind for f in findings}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("at", [0, 50, 99])
def test_one_step_that_costs_most_of_the_run_is_a_stall(phase: str, at: int) -> None:
    """One process, any phase, any place in the run: the step, the phase, the cost and the gain."""
    first = diagnose_time(stalled(phase, at, 20_000.0))[0]
    assert (first.kind, first.severity, first.phase, first.ranks) == ("STALL", CRIT, phase, [])
    assert first.evidence["step"] == at + 1
    assert first.evidence["extra_ms"] == pytest.approx(20_000)
    assert first.evidence["cost_ms"] == pytest.approx(200)
    assert first.score == pytest.approx(20 / 22.8, rel=0.01)
    assert first.summary.startswith(f"Step {at + 1} took 20.0 s, 100.0 % of the extra time is in {phase}")


def test_place_of_a_stall_between_phases_is_reported() -> None:
    """Time that no phase claims has a place in the step, and the sentence says which."""
    first = diagnose_time(stalled("wait", 50, 20_000.0, place="wait_input"))[0]
    assert "in wait, between fetching the batch and the forward pass" in first.summary


@pytest.mark.parametrize(
    ("ms", "severity"), [(150.0, None), (300.0, None), (320.0, WARN), (690.0, WARN), (720.0, CRIT)]
)
def test_stall_is_judged_by_its_share_of_the_run(ms: float, severity: str | None) -> None:
    """100 steps of 28 ms: a step that costs a tenth of all time is a warning, a fifth is critical."""
    findings = [f for f in diagnose_time(stalled("input", 50, ms)) if f.kind == "STALL"]
    assert [f.severity for f in findings] == ([] if severity is None else [severity])


def test_a_validation_counts_though_the_checkpoint_of_its_step_took_longer_than_usual() -> None:
    """Two steps validate and save. That one of them saves slowly does not hide half of all validation."""
    validation, checkpoint = once(33, 1_600.0) + once(66, 1_600.0), once(33, 160.0) + once(66, 30.0)
    first = diagnose_time(window(COUNT, **USUAL, validation=validation, checkpoint=checkpoint))[0]
    assert first.kind == "WAIT_HEAVY"
    assert first.evidence["cost_ms"] == pytest.approx(33.9)


def test_a_stall_by_the_garbage_collector_says_what_to_do_about_it() -> None:
    """The cause is known, so nobody is sent to look for storage or locks."""
    first = diagnose_time(stalled("wait", 1, 2_000.0, gc=once(1, 2_000.0)))[0]
    assert (first.kind, first.evidence["where"]) == ("STALL", "garbage collection")
    assert "gc.freeze()" in first.action
    assert "storage" not in first.action


@pytest.mark.parametrize("count", [6, 10, 19])
def test_stall_in_a_short_run_is_a_warning(count: int) -> None:
    """Fewer than 20 steps: found, but never critical."""
    first = diagnose_time(stalled("forward", count - 2, 3_000.0, count))[0]
    assert (first.kind, first.severity) == ("STALL", WARN)


def test_two_stalls_are_both_reported_and_three_are_jitter() -> None:
    """Up to two single events are listed; a third of similar size makes a pattern."""
    extra = once(30, 5_000.0) + once(70, 4_000.0)
    two = diagnose_time(window(COUNT, **{**USUAL, "input": 1.0 + extra}))
    stall = found("STALL", two)
    assert "Step 31 took 5.0 s" in stall.summary
    assert "Step 71 took 4.0 s" in stall.summary
    assert stall.action.startswith("Find out what stopped the training in step 31 and step 71:")
    assert "JITTER" not in kinds(two)
    three = diagnose_time(window(COUNT, **{**USUAL, "input": 1.0 + extra + once(90, 4_500.0)}))
    assert "JITTER" in kinds(three)
    assert "STALL" not in kinds(three)


def test_stall_does_not_hide_jitter_nor_count_as_such() -> None:
    """A stall among slow steps of 200 ms is reported separately, and the period of the others is right."""
    slow = made.every(10, 200.0, COUNT, offset=5)
    findings = diagnose_time(
        window(COUNT, **{**USUAL, "forward": 15.0 + slow, "input": 1 + once(50, 2_000.0)})
    )
    assert found("STALL", findings).evidence["step"] == 51
    jitter = found("JITTER", findings)
    assert (jitter.evidence["period"], jitter.evidence["slow_steps"]) == (10, 10)
    assert jitter.evidence["extra_ms"] == pytest.approx(200)


def test_garbage_collection_that_stalls_a_step_is_named() -> None:
    """It runs inside a phase, but it is the cause."""
    first = diagnose_time(stalled("forward", 50, 5_000.0, gc=once(50, 4_900.0)))[0]
    assert (first.kind, first.evidence["where"]) == ("STALL", "garbage collection")


def test_long_validation_is_no_stall() -> None:
    """Deliberate work is WAIT-HEAVY, which names it."""
    assert "STALL" not in kinds(diagnose_time(stalled("validation", 50, 5_000.0)))


@pytest.mark.parametrize("phase", ["validation", "checkpoint"])
def test_one_of_several_validations_that_takes_far_longer_is_a_stall(phase: str) -> None:
    """Saving less often would not help: the step in which it hung is named."""
    regular = made.every(20, 50.0, COUNT, offset=10)
    findings = diagnose_time(window(COUNT, **USUAL, **{phase: regular + once(50, 5_000.0)}))
    assert (findings[0].kind, findings[0].phase, findings[0].evidence["step"]) == ("STALL", phase, 51)
    varied = diagnose_time(window(COUNT, **USUAL, **{phase: regular * 100 + once(50, 5_000.0)}))
    assert "STALL" not in kinds(varied), "twice as long is no stall"


# ---- ranks


def stops(ranks: int, at: int, **stopped: dict[int, float]) -> Summary:
    """Coupled ranks; `stopped`: by phase and rank, ms in one step."""
    changed = {
        phase: (lambda rank, by_rank=by_rank: once(at, by_rank.get(rank, 0.0)))
        for phase, by_rank in stopped.items()
    }
    return coupled(usual(ranks, **changed))


@pytest.mark.parametrize("ranks", [2, 3, 4, 64])
@pytest.mark.parametrize("phase", ["input", "forward", "backward", "optimizer"])
def test_stall_of_one_rank_names_that_rank(ranks: int, phase: str) -> None:
    """The others wait in sync: the rank that stopped, its phase and the gain are reported."""
    primary = stops(ranks, 60, **{phase: {1: 20_000.0}}).primary_diagnosis
    assert (primary.status, primary.severity, primary.ranks, primary.phase) == ("STALL", CRIT, [1], phase)
    assert primary.evidence["step"] == 61
    assert f"in {phase} on r1" in primary.summary
    assert primary.potential_speedup == pytest.approx((20_000 + 39 * COUNT) / (39 * COUNT), rel=0.05)


def test_stall_of_several_ranks_names_them_and_of_all_ranks_none() -> None:
    """Two of four stop in the same step; then all four, as on a shared file system."""
    primary = stops(4, 60, input={1: 9_000.0, 2: 8_000.0}).primary_diagnosis
    assert (primary.status, primary.ranks, primary.phase) == ("STALL", [1, 2], "input")
    assert "on r1 and r2" in primary.summary
    primary = stops(4, 60, input=dict.fromkeys(range(4), 9_000.0)).primary_diagnosis
    assert (primary.status, primary.ranks, primary.phase) == ("STALL", [], "input")


def test_stall_of_the_exchange_blames_no_rank() -> None:
    """All ranks wait in sync: the network, not a rank."""
    primary = coupled(usual(4), comm_ms=1.0 + once(60, 9_000.0)).primary_diagnosis
    assert (primary.status, primary.ranks, primary.phase) == ("STALL", [], "sync")


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_stall_after_the_exchange_counts_once(ranks: int) -> None:
    """r1 stops in its optimizer in step 61, so the others wait for it in step 62: one stall, of r1."""
    own = usual(ranks, optimizer=lambda rank: once(60, 9_000.0) if rank == 1 else 0.0)
    rows = [
        made.rank(
            made.steps(COUNT, measured=(*made.ALL_MEASURED, "sync"), **phases, sync=1.0 + waits),
            number,
            world_size=ranks,
        )
        for number, phases in enumerate(own)
        for waits in [once(61, 9_000.0) if number != 1 else 0.0]
    ]
    findings = diagnose_time(align(rows))
    stall = found("STALL", findings)
    assert (stall.evidence["step"], stall.evidence["stalled_steps"], stall.ranks) == (61, 1, [1])
    assert "JITTER" not in kinds(findings)


def test_stall_of_a_rank_that_no_other_waits_for_is_found() -> None:
    """Not coupled: only one rank is late, and the typical rank does not show it."""
    own = usual(4, forward=lambda rank: once(60, 20_000.0) if rank == 2 else 0.0)
    stall = found("STALL", uncoupled(own).step_time.issues)
    assert (stall.ranks, stall.phase) == ([2], "forward")


@pytest.mark.parametrize("noise_ms", [0.5, 2.0, 5.0])
def test_ordinary_noise_is_no_stall(noise_ms: float) -> None:
    """Heavy-tailed noise on 2 to 64 ranks never makes a stall."""
    for seed in range(5):
        noise = np.random.default_rng(seed)
        for ranks in (2, 8, 64):
            own = [
                {k: v + noise.exponential(noise_ms, COUNT) for k, v in USUAL.items()} for _ in range(ranks)
            ]
            assert "STALL" not in kinds(coupled(own).step_time.issues)


# ---- warm-up


@pytest.mark.parametrize("step", [2, 3, 5])
def test_stall_in_the_first_steps_does_not_vanish_in_warm_up(step: int) -> None:
    """The first step is warm-up as always; a later one that takes most of the run is a stall."""
    forward = 15.0 + once(0, 100.0) + once(step - 1, 20_000.0)
    made_window = align([made.rank(made.steps(COUNT, forward=forward, backward=10.0))])
    assert made_window.steps[0] <= step
    assert found("STALL", diagnose_time(made_window)).evidence["step"] == step


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("phase", ["input", "forward", "backward", "optimizer"])
def test_first_step_that_only_one_rank_spends_most_of_the_training_in_is_no_warm_up(
    ranks: int, phase: str
) -> None:
    """All others wait for it: the rank and the phase are told. What all ranks need at first is warm-up."""
    alone = coupled(usual(ranks, **{phase: lambda rank: once(0, 6_000.0 * (rank == 1))}))
    primary = alone.primary_diagnosis
    assert (primary.kind, primary.ranks, primary.phase) == ("STALL", [1], phase), primary.summary
    assert primary.evidence["step"] == 1
    shared = coupled(usual(ranks, **{phase: lambda rank: once(0, 6_000.0 + 2_000.0 * (rank == 1))}))
    assert "STALL" not in kinds(shared.step_time.issues)


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_that_wait_in_their_second_step_did_not_stop(ranks: int) -> None:
    """r1 stops in the optimizer of its first step; DDP's first exchange after that is in the forward pass."""
    rows = [
        made.steps(
            COUNT,
            measured=MEASURED,
            input=1.0,
            forward=15.0 + once(1, 6_000.0 * (number != 1)),
            backward=10.0,
            optimizer=2.0 + once(0, 6_000.0 * (number == 1)),
            sync=1.0,
        )
        for number in range(ranks)
    ]
    recorded = [made.rank(each, number, world_size=ranks) for number, each in enumerate(rows)]
    stall = found("STALL", diagnose_time(align(recorded)))
    assert (stall.ranks, stall.phase, stall.evidence["step"]) == ([1], "optimizer", 1)
    assert stall.evidence["stalled_steps"] == 1
    assert stall.score < 1


@pytest.mark.parametrize("slow", [1, 2, 3, 4])
def test_stall_of_one_rank_during_warm_up_does_not_vanish(slow: int) -> None:
    """Rank 1 stops for 3 s at the end of its third step. The others wait for it in their fourth step, so in
    the third one the median rank is as quick as ever."""
    forward = np.where(np.arange(COUNT) < slow, 60.0, 18.0)
    stops, waits = once(2, 3_000.0), once(3, 3_000.0)
    rows = [
        made.steps(
            COUNT, measured=MEASURED, forward=forward, backward=1.0, optimizer=0.5 + own, sync=1.0 + others
        )
        for own, others in ((0.0, waits), (stops, 0.0), (0.0, waits))
    ]
    recorded = [made.rank(each, number, world_size=3) for number, each in enumerate(rows)]
    stall = found("STALL", diagnose_time(align(recorded)))
    assert (stall.ranks, stall.phase, stall.evidence["step"]) == ([1], "optimizer", 3)


def test_slow_start_is_still_warm_up() -> None:
    """Slow first steps that get faster are no stall, however long they take."""
    forward = 15.0 + once(0, 20_000.0) + once(1, 5_000.0) + once(2, 300.0)
    made_window = align([made.rank(made.steps(COUNT, forward=forward, backward=10.0))])
    assert len(made_window.warmup) == 3
    assert "STALL" not in kinds(diagnose_time(made_window))


# ---- dropped steps


@pytest.mark.parametrize(("seconds", "severity"), [(0.2, None), (0.5, WARN), (20.0, CRIT)])
def test_time_in_steps_that_were_not_completed_is_reported(seconds: float, severity: str | None) -> None:
    """Between step 60 and step 61 one was dropped: its time is in no step, but it is not lost from sight."""
    rows = made.steps(COUNT, **USUAL)
    rows["begin_ns"][60:] += int(seconds * 1e9)
    rows["end_ns"][60:] += int(seconds * 1e9)
    findings = [f for f in diagnose_time(align([made.rank(rows)])) if f.kind == "DROPPED_STEPS"]
    assert [f.severity for f in findings] == ([] if severity is None else [severity])
    if findings:
        assert findings[0].evidence["step"] == 61
        assert findings[0].evidence["longest_ms"] == pytest.approx(seconds * 1000)


# ---- more work


def growing(count: int = COUNT, per_call: Any = 1.0, **more: Any) -> Window:
    """Episodes whose length grows from 20 to 120 model calls; `per_call` ms each."""
    calls = np.linspace(20, 120, count)
    return window(count, forward=calls * per_call, backward=5.0, switches=calls[None, :], **more)


def test_growing_episodes_are_more_work_not_a_slowdown() -> None:
    """Step time grows with the model calls of a step: nothing is slow, and no gain is promised."""
    findings = diagnose_time(growing())
    assert "SLOWDOWN" not in kinds(findings)
    assert findings[0].kind == "COMPUTE_BOUND", "the remark does not replace the verdict"
    assert "times as many model calls" in found("MORE_WORK", findings).summary


@pytest.mark.parametrize("seed", range(20))
def test_growing_episodes_on_a_busy_machine_are_more_work_too(seed: int) -> None:
    """Steps that a busy machine makes up to twice as long hide the rise, but not that of the work."""
    noise = 1 + np.random.default_rng(seed).exponential(0.3, COUNT).clip(0, 1)
    findings = diagnose_time(growing(per_call=noise))
    assert not {"SLOWDOWN", "JITTER"} & set(kinds(findings))
    assert "times as many model calls" in found("MORE_WORK", findings).summary


@pytest.mark.parametrize("amount", ["samples", "tokens"])
def test_larger_batches_are_more_work_too(amount: str) -> None:
    """Twice the samples or tokens take twice as long."""
    level = np.where(np.arange(COUNT) < 50, 16.0, 32.0)
    known: dict[str, Any] = {amount: level[None, :]}
    findings = diagnose_time(window(COUNT, forward=level, **known))
    assert "SLOWDOWN" not in kinds(findings)
    assert f"2.0 times as many {amount}" in found("MORE_WORK", findings).summary


def test_slowdown_beyond_the_additional_work_is_reported() -> None:
    """Twice the samples take four times as long: half of that is a slowdown, and the sentence says so."""
    samples = np.where(np.arange(COUNT) < 50, 16.0, 32.0)
    findings = diagnose_time(window(COUNT, forward=samples**2 / 16, samples=samples[None, :]))
    slowdown = found("SLOWDOWN", findings)
    assert (slowdown.evidence["before_ms"], slowdown.evidence["after_ms"]) == (32.0, 64.0)
    assert "(+100.0 %), for 2.0 times as many samples" in slowdown.summary
    assert "MORE_WORK" not in kinds(findings)


def test_slowdown_with_the_same_work_stays_a_slowdown() -> None:
    """The number of samples is known and does not change."""
    level = np.where(np.arange(COUNT) < 50, 16.0, 32.0)
    findings = diagnose_time(window(COUNT, forward=level, samples=np.full((1, COUNT), 8.0)))
    assert found("SLOWDOWN", findings).severity == CRIT


# ---- a stall next to something else


def first_kinds(findings: list[Finding], most: int = 2) -> list[str]:
    return [f.kind for f in findings if f.severity != "info"][:most]


@pytest.mark.parametrize("phase", ["input", "wait"])
def test_stall_does_not_raise_the_numbers_of_a_bound(phase: str) -> None:
    """A real bound of 8 ms in 20 ms, and one step of 2 s in the same phase: the bound says 8 of 20 ms."""
    count = 200
    healthy: dict[str, Any] = {"forward": 12.0, phase: 8.0}
    with_stall = window(count, **{**healthy, phase: 8.0 + once(100, 2_000.0, count)})
    without = window(count, **healthy)
    bound, alone = (found(BOUNDS[phase], diagnose_time(w)) for w in (with_stall, without))
    assert bound.summary == alone.summary
    assert bound.evidence == alone.evidence
    assert bound.severity == CRIT
    assert "8.00 ms of each 20.0 ms step" in bound.summary


BOUNDS = {"input": "INPUT_BOUND", "wait": "WAIT_HEAVY"}


@pytest.mark.parametrize(
    ("ms", "order"), [(600.0, ["INPUT_BOUND", "STALL"]), (8_000.0, ["STALL", "INPUT_BOUND"])]
)
def test_stall_and_bound_are_ordered_by_what_they_cost_the_run(ms: float, order: list[str]) -> None:
    """Both are critical. 100 steps of 20 ms lose 0.8 s to input, and 0.6 s or 8 s to one step."""
    findings = diagnose_time(window(COUNT, forward=12.0, input=8.0 + once(50, ms)))
    assert first_kinds(findings) == order
    whole = COUNT * 20.0 + ms
    assert found("INPUT_BOUND", findings).score == pytest.approx(99 * 8.0 / whole)
    assert found("STALL", findings).score == pytest.approx(ms / whole)


@pytest.mark.parametrize("phase", PHASES)
def test_stall_of_a_run_without_a_bound_is_the_only_finding(phase: str) -> None:
    """One step of 2 s in a healthy run is not reported as a bound, and the gain is that of the stall."""
    findings = diagnose_time(stalled(phase, 50, 2_000.0))
    assert first_kinds(findings) == ["STALL"]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("phase", ["input", "backward"])
def test_stall_of_a_rank_makes_no_straggler_and_no_communication(ranks: int, phase: str) -> None:
    """20 s on one rank are most of the run: still only a stall, and nothing about all steps."""
    found = stops(ranks, 60, **{phase: {1: 20_000.0}}).step_time.issues
    assert first_kinds(found) == ["STALL"]


def test_waiting_for_a_stalled_rank_at_a_later_exchange_is_no_jitter() -> None:
    """Local SGD exchanges every eight steps: r1 stops in step 41, and r0 waits for it in step 48."""
    exchange = every(8, 40.0, COUNT, offset=7)
    rows = [
        made.steps(COUNT, measured=MEASURED, **USUAL, sync=exchange + once(47, 6_000.0)),
        made.steps(COUNT, measured=MEASURED, **{**USUAL, "input": 1.0 + once(40, 6_000.0)}, sync=exchange),
    ]
    ranks = [made.rank(each, number, world_size=2) for number, each in enumerate(rows)]
    findings = diagnose_time(align(ranks))
    assert (findings[0].kind, findings[0].ranks, findings[0].phase) == ("STALL", [1], "input")
    assert not [f for f in findings if f.kind == "JITTER" and made.number(f, "extra_ms") > 100]


def test_straggler_and_stall_of_another_rank_are_both_reported() -> None:
    """r1 is always late, and once r0 stops: the straggler's numbers are those without the stall."""
    own = usual(
        4,
        forward=lambda rank: 20.0 if rank == 1 else 0.0,
        input=lambda rank: once(60, 20_000.0 * (rank == 0)),
    )
    findings = coupled(own).step_time.issues
    assert first_kinds(findings) == ["STALL", "COMPUTE_STRAGGLER"]
    assert found("STALL", findings).ranks == [0]
    late = found("COMPUTE_STRAGGLER", findings)
    assert late.ranks == [1]
    assert late.evidence["excess_ms"] == pytest.approx(20, abs=1)
    assert late.evidence["slowest_step_ms"] == pytest.approx(59, abs=2)
    assert late.evidence["cost_ms"] == pytest.approx(20, abs=1)


# ---- skipped batches


def skipping(count: int = COUNT, *, backward: float = 10.0, each: float = 300.0, at: Any = None) -> Window:
    """Every tenth step takes two batches and `each` ms more; then `backward` is that of those steps."""
    slow = made.every(10, 1.0, count, offset=7) if at is None else once(at, 1.0, count)
    return window(
        count,
        forward=15.0 + 15.0 * slow,
        backward=10.0 + (backward - 10.0) * slow,
        wait=each * slow,
        more_batches=slow[None, :],
    )


def test_skipped_batches_are_dropped_steps() -> None:
    """A batch without a backward pass, as after a caught exception: dropped steps, no jitter."""
    findings = diagnose_time(skipping())
    assert first_kinds(findings) == ["DROPPED_STEPS"]
    dropped = findings[0]
    assert (dropped.evidence["times"], dropped.evidence["step"]) == (10, 8)
    assert dropped.evidence["lost_ms"] == pytest.approx(10 * 315.0)
    assert dropped.score == pytest.approx(3150 / (3150 + 2500))


def test_one_skipped_batch_is_no_stall() -> None:
    """It took 20 s: one event has one name."""
    findings = diagnose_time(skipping(each=20_000.0, at=50))
    assert first_kinds(findings) == ["DROPPED_STEPS"]
    assert findings[0].evidence["step"] == 51


def test_uneven_accumulation_is_not_called_dropped_steps() -> None:
    """Every tenth step has two batches and two backward passes."""
    findings = diagnose_time(skipping(backward=20.0))
    assert first_kinds(findings) == ["JITTER"]
    assert "; they take 2 batches instead of 1." in findings[0].summary
    assert "in wait, after the forward pass" in findings[0].summary
    no_loader = diagnose_time(replace(skipping(backward=20.0), input_inferred=True))
    assert "; they take 2 backward passes instead of 1." in no_loader[0].summary


def test_a_loop_that_fetches_ahead_skips_no_batch() -> None:
    """Its first step of each epoch takes two batches, one of them for the next step."""
    ahead = skipping()
    starts = frozenset(ahead.steps[ahead.more_batches[0] > 0].tolist())
    assert "DROPPED_STEPS" not in kinds(diagnose_time(replace(ahead, epoch_starts=starts)))


def test_steps_that_always_take_several_batches_skip_none() -> None:
    """Accumulation of four, or of one and two in turns."""
    for more in (np.full((1, COUNT), 3.0), 1.0 * (np.arange(COUNT) % 2)[None, :]):
        findings = diagnose_time(window(COUNT, forward=15.0, backward=10.0, more_batches=more))
        assert "DROPPED_STEPS" not in kinds(findings)


def test_a_step_that_does_more_was_not_stopped() -> None:
    """L-BFGS at the end runs the model hundreds of times in one step: no lock or disk is blamed, and no batch
    was dropped, even if a few other steps ran the model a little more often without taking longer."""
    more, work = np.zeros(COUNT), np.ones(COUNT)
    more[::20], more[-1], work[-1] = 1.0, 199.0, 200.0
    verdict, remark = diagnose_time(
        window(COUNT, forward=2.0 * work, backward=3.0 * work, optimizer=1.0, more_batches=more[None, :])
    )
    assert verdict.kind == "COMPUTE_BOUND"
    assert remark.kind == "MORE_WORK"
    assert "Step 100 took 1.0 s" in remark.summary
    assert "because of more work: 200 batches instead of 1." in remark.summary
    calls = 4 + 300 * (work[None, :] > 1)
    sampled: Any = {"no_grad": work - 1, "switches": calls.astype(float)}
    findings = diagnose_time(window(COUNT, forward=2.0, backward=3.0, optimizer=1.0, **sampled))
    assert "STALL" not in kinds(findings)
    assert "301 model calls instead of 1" in found("MORE_WORK", findings).summary
    # Exchanges are counted among the calls: a step that has more of them, and is stopped, did no more work.
    averaged: Any = {"wait": 300.0 * (work > 1), "switches": calls.astype(float)}
    assert "STALL" in kinds(diagnose_time(window(COUNT, forward=2.0, backward=3.0, **averaged)))
    (stall, *_) = diagnose_time(window(COUNT, forward=2.0 * work, backward=3.0 * work, optimizer=1.0))
    assert "batches" not in stall.summary
    assert "what stopped" in stall.action


def test_longer_steps_of_another_optimizer_are_more_work() -> None:
    """Unfreezing layers under a new optimizer makes steps longer, and nothing is lost; without the new
    optimizer, or with one at another time, the same steps are a SLOWDOWN."""
    late = np.arange(200) >= 100
    phases: dict[str, Any] = {"forward": 4.0, "backward": np.where(late, 20.0, 4.0), "optimizer": 2.0}
    assert "SLOWDOWN" in kinds(diagnose_time(window(200, **phases)))
    assert "SLOWDOWN" in kinds(diagnose_time(window(200, **phases, new_optimizers=(30,))))
    findings = diagnose_time(window(200, **phases, new_optimizers=(101,)))
    assert "SLOWDOWN" not in kinds(findings)
    assert "since step 101, where another optimizer takes over" in found("MORE_WORK", findings).summary


@pytest.mark.parametrize(
    ("seconds", "share", "delay", "is_long"),
    [(30.0, 0.8, 0.0, True), (30.0, 0.1, 0.0, False), (4.0, 0.8, 0.0, False), (30.0, 0.8, 0.5, False)],
    ids=["long", "a small part", "short", "busy machine"],
)
def test_long_time_before_the_first_or_after_the_last_step_is_reported(
    seconds: float, share: float, delay: float, is_long: bool
) -> None:
    """A run that spends most of its time outside its steps is not BALANCED. Short starts and ends, and those
    on a machine without free cores, are not reported."""
    sentences = {
        "start": ("LONG_START", "The first step began after 30.0 s, 80.0 % of the run"),
        "end": ("LONG_END", "After the last step (100) the command went on for 30.0 s, 80.0 % of the run"),
    }
    for when, (kind, words) in sentences.items():
        outside: Any = {when: OutsideSteps(seconds, share), "cpu_delay_share": delay}
        findings = diagnose_time(window(100, forward=5.0, backward=5.0, wait=0.5, **outside))
        assert (findings[0].kind == kind) is is_long
        if is_long:
            assert findings[0].severity == WARN
            assert words in findings[0].summary


@pytest.mark.parametrize(
    ("when", "kind", "seconds", "share"), [("start", "LONG_START", 20.0, 0.5), ("end", "LONG_END", 10.0, 0.2)]
)
def test_limits_of_time_outside_of_the_steps(when: str, kind: str, seconds: float, share: float) -> None:
    """At the limits it is reported; if it is shorter, a smaller share, or cores were short, it is not."""
    cases = {
        (seconds, share, 0.29): True,
        (seconds - 0.1, share, 0.0): False,
        (seconds, share - 0.01, 0.0): False,
        (seconds, share, 0.3): False,
    }
    for (took, part, delay), is_long in cases.items():
        outside: Any = {when: OutsideSteps(took, part), "cpu_delay_share": delay}
        findings = diagnose_time(window(100, forward=5.0, backward=5.0, **outside))
        assert (kind in kinds(findings)) is is_long, (took, part, delay)


def test_episodes_played_now_and_then_are_no_jitter() -> None:
    """Reinforcement learning plays episodes in every 16th step: the time of the environment is wait, all of
    it counts, and no slow step is a riddle. One episode that takes far longer than the others is."""
    playing = np.arange(COUNT) % 16 == 5
    no_grad, environment = np.where(playing, 60.0, 0.0), np.where(playing, 200.0, 0.0)
    model: Any = {"forward": 2.0, "backward": 3.0, "optimizer": 1.0, "no_grad": no_grad}
    findings = diagnose_time(window(COUNT, **model, wait=environment, place="wait_no_grad"))
    assert kinds(findings) == {"WAIT_HEAVY"}
    assert findings[0].severity == CRIT
    assert "environment" in findings[0].action
    environment[COUNT // 16 * 8 + 5] = 6_000.0
    assert "STALL" in kinds(diagnose_time(window(COUNT, **model, wait=environment, place="wait_no_grad")))
    elsewhere = diagnose_time(window(COUNT, **model, wait=environment, place="wait_backward"))
    assert "JITTER" in kinds(elsewhere)
    assert "environment" not in elsewhere[0].action


def test_jitter_beside_a_stall_is_judged_by_all_time() -> None:
    """Slow steps that cost 1 % of the run are no warning, however much they cost of the time without the
    stall."""
    steps = every(10, 20.0, COUNT, otherwise=2.0)
    assert "JITTER" in kinds(diagnose_time(window(COUNT, forward=steps, backward=2.0)))
    steps[57] = 60_000.0
    assert "JITTER" not in kinds(diagnose_time(window(COUNT, forward=steps, backward=2.0)))
