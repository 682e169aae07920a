"""Diagnoses that compare ranks, on hand-made runs: the right label, ranks, phase and cost, or none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.unit import made
from traceml.analyze.summarize import summarize
from traceml.analyze.window import PHASE_KEYS
from traceml.schema import catalog as c
from traceml.schema.recorded import RunFacts, RunRecording
from traceml.schema.summary import Primary, Summary

COUNT = 100
USUAL = {"input": 1.0, "forward": 20.0, "backward": 15.0, "optimizer": 2.0}
MEASURED = tuple(k for k in PHASE_KEYS if k != "h2d")
FACTS = RunFacts("demo", status="completed", exit_code=0)
Phases = dict[str, Any]


def coupled(
    own: list[Phases],
    comm_ms: Any = 1.0,
    count: int = COUNT,
    exchanges: int = 0,
    samples: Sequence[int] = (),
    extra_flags: int = 0,
) -> Summary:
    """Ranks that exchange at the end of backward: early ranks wait for the last one, in sync. `exchanges` of
    the script's own are timed calls besides the five of any step."""
    spent = [np.sum([made.series(v, count) for v in phases.values()], axis=0) for phases in own]
    pace = np.max(spent, axis=0)
    ranks = [
        made.rank(
            made.steps(
                count, measured=MEASURED, extra_flags=extra_flags, **phases, sync=pace - mine + comm_ms
            ),
            number,
            world_size=len(own),
        )
        for number, (phases, mine) in enumerate(zip(own, spent, strict=True))
    ]
    for one in ranks:
        one.rows["switches"] = 5 + exchanges
        one.rows["samples"] = samples[one.rank] if samples else 0
    return summarize(RunRecording(ranks=ranks), FACTS)


def uncoupled(own: list[Phases]) -> Summary:
    """Ranks that do not wait for each other."""
    ranks = [
        made.rank(made.steps(COUNT, measured=MEASURED, **phases, sync=0.0), number, world_size=len(own))
        for number, phases in enumerate(own)
    ]
    return summarize(RunRecording(ranks=ranks), FACTS)


def usual(ranks: int, **changed: Any) -> list[Phases]:
    """Equal ranks with a little noise. `changed`: by phase, a function of the rank that gives ms to add."""
    noise = np.random.default_rng(7)
    return [
        {
            key: value + noise.normal(0, 0.2, COUNT) + changed.get(key, lambda _: 0.0)(rank)
            for key, value in USUAL.items()
        }
        for rank in range(ranks)
    ]


def only(culprit: int, ms: float) -> Any:
    """What is added to one rank."""
    return lambda rank: ms if rank == culprit else 0.0


def in_turn(ranks: int, ms: float) -> Any:
    """What is added to a different rank in each step."""
    return lambda rank: made.every(ranks, ms, COUNT, offset=rank)


@pytest.mark.parametrize("ranks", [2, 3, 4, 64])
@pytest.mark.parametrize(
    ("phase", "status"),
    [
        ("input", "INPUT STRAGGLER"),
        ("forward", "COMPUTE STRAGGLER"),
        ("backward", "COMPUTE STRAGGLER"),
        ("optimizer", "COMPUTE STRAGGLER"),
    ],
)
def test_slow_rank_is_named_with_its_phase_and_cost(ranks: int, phase: str, status: str) -> None:
    """Coupled ranks: the one with the most own work, what it costs, and what fixing it would gain."""
    primary = coupled(usual(ranks, **{phase: only(1, 30.0)})).primary_diagnosis
    assert (primary.status, primary.ranks, primary.phase) == (status, [1], phase)
    assert primary.evidence["excess_ms"] == pytest.approx(30, abs=1)
    assert primary.evidence["rotates"] is False
    assert primary.potential_speedup == pytest.approx(69 / 39, rel=0.05)


@pytest.mark.parametrize("ranks", [2, 4, 8, 64])
@pytest.mark.parametrize(("phase", "kind"), [("input", "INPUT_STRAGGLER"), ("forward", "COMPUTE_STRAGGLER")])
def test_no_rank_is_named_if_all_take_turns_at_being_slow(ranks: int, phase: str, kind: str) -> None:
    """A different rank is slow in each step: the cost is reported, and no rank is blamed."""
    primary = coupled(usual(ranks, **{phase: in_turn(ranks, 30.0)})).primary_diagnosis
    assert (primary.kind, primary.ranks, primary.phase) == (kind, [], phase)
    assert primary.evidence["rotates"] is True
    assert primary.summary.startswith("The ranks take turns at being last")
    assert primary.evidence["excess_ms"] == pytest.approx(30, abs=1.5)
    assert primary.potential_speedup == pytest.approx(69 / 39, rel=0.06)


@pytest.mark.parametrize("ranks", [4, 8, 64])
def test_two_slow_ranks_are_both_named(ranks: int) -> None:
    """Fixing one of them would gain nothing: both are named, with the gain of fixing both."""
    slow = usual(ranks, backward=lambda rank: 30.0 if rank in (1, 2) else 0.0)
    primary = coupled(slow).primary_diagnosis
    assert (primary.status, primary.ranks, primary.phase) == ("COMPUTE STRAGGLER", [1, 2], "backward")
    assert "r1 and r2 are slow in nearly every step" in primary.summary
    assert primary.evidence["rotates"] is False
    assert primary.potential_speedup == pytest.approx(69 / 39, rel=0.05)


def test_about_equally_slow_ranks_are_named_together() -> None:
    """Fixing only the slowest would gain little: both are named, with their common cost."""
    found = coupled(usual(8, forward=lambda rank: {2: 30.0, 5: 25.0}.get(rank, 0.0))).primary_diagnosis
    assert (found.status, found.ranks, found.phase) == ("COMPUTE STRAGGLER", [2, 5], "forward")
    assert found.evidence["cost_ms"] == pytest.approx(30, rel=0.05)
    assert found.evidence["excess_ms"] == pytest.approx(27.5, rel=0.05)


def test_ranks_slow_for_different_reasons_are_a_generic_straggler() -> None:
    """One is slow in forward, another waits for input: neither phase explains both."""
    found = coupled(usual(8, forward=only(2, 30.0), input=only(5, 28.0))).primary_diagnosis
    assert (found.status, found.ranks) == ("STRAGGLER", [2, 5])


@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_rank_slow_in_less_than_half_of_the_steps_is_named(ranks: int) -> None:
    """Too frequent for jitter, but not in the median step: named with its mean cost and how often."""
    late = np.where(np.random.default_rng(3).permutation(COUNT) < 42, 40.0, 0.0)
    found = coupled(usual(ranks, input=lambda rank: late if rank == 1 else 0.0)).primary_diagnosis
    assert (found.status, found.ranks) == ("INPUT STRAGGLER", [1])
    assert found.evidence["excess_ms"] == pytest.approx(0.42 * 40, rel=0.15)
    assert made.number(found, "rank_ms") - made.number(found, "median_ms") == pytest.approx(
        found.evidence["excess_ms"]
    )
    assert "of the steps; the others wait for it" in found.summary


@pytest.mark.parametrize("taking", [(1, 2), (0, 1, 2), (0, 1, 2, 3)])
def test_few_ranks_that_take_turns_are_named(taking: tuple[int, ...]) -> None:
    """On average they are equally late, but in each step only one of them is."""

    def some(rank: int) -> Any:
        mine = rank in taking
        return made.every(len(taking), 30.0, COUNT, offset=taking.index(rank)) if mine else 0.0

    found = coupled(usual(8, forward=some)).primary_diagnosis
    assert (found.status, found.ranks, found.phase) == ("COMPUTE STRAGGLER", list(taking), "forward")
    assert "take turns" in found.summary
    assert found.evidence["excess_ms"] == pytest.approx(30, rel=0.05)


@pytest.mark.parametrize(("ranks", "slow"), [(3, 2), (5, 3), (8, 5)])
def test_no_rank_is_blamed_if_most_are_slow(ranks: int, slow: int) -> None:
    """Fixing one of them would gain nothing, and the median rank is one of them."""
    found = coupled(usual(ranks, forward=lambda rank: 30.0 if rank < slow else 0.0))
    assert not [i for i in found.step_time.issues if "STRAGGLER" in i.status]


def test_steady_straggler_is_found_despite_its_jitter() -> None:
    """8 ms more in every step, and 80 ms more in one of five: the steady part is reported."""
    spikes = np.where(np.random.default_rng(1).permutation(COUNT) < 20, 88.0, 8.0)
    found = coupled(usual(4, input=lambda rank: spikes if rank == 1 else 0.0))
    (straggler,) = [i for i in found.step_time.issues if "STRAGGLER" in i.status]
    assert straggler.ranks == [1]
    assert straggler.evidence["excess_ms"] == pytest.approx(8, rel=0.1)


def test_all_ranks_of_the_slow_half_are_named() -> None:
    """One of two machines is slow: all its ranks are named, with the gain of fixing all of them."""
    primary = coupled(usual(8, forward=lambda rank: 100.0 * (rank >= 4))).primary_diagnosis
    assert (primary.status, primary.ranks) == ("COMPUTE STRAGGLER", [4, 5, 6, 7])
    assert primary.summary.startswith("r4, r5, r6 and r7 are slow")
    assert primary.potential_speedup == pytest.approx(139 / 39, rel=0.05)


def test_only_the_latest_of_two_slow_ranks_is_named() -> None:
    """r1 waits 30 ms longer for input, but r3 is 200 ms late in backward: fixing r1 would gain nothing."""
    found = coupled(usual(4, input=only(1, 30.0), backward=only(3, 200.0)))
    assert (found.primary_diagnosis.ranks, found.primary_diagnosis.phase) == ([3], "backward")
    assert [f.ranks for f in found.step_time.issues if "STRAGGLER" in f.kind] == [[3]]


@pytest.mark.parametrize("ranks", [2, 4, 8, 64, pytest.param(512, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("noise_ms", [0.5, 2.0, 5.0])
def test_no_straggler_among_equal_ranks_with_noise(ranks: int, noise_ms: float) -> None:
    """However many and however noisy: the ordinary spread of equal ranks is not a straggler."""
    for seed in range(3):
        noise = np.random.default_rng(seed)
        own = [
            {k: np.abs(v + noise.normal(0, noise_ms / 2, COUNT)) for k, v in USUAL.items()}
            for _ in range(ranks)
        ]
        found = coupled(own).step_time.issues
        assert not [f.summary for f in found if "STRAGGLER" in f.kind]


def test_no_rank_is_named_after_few_noisy_steps() -> None:
    """Steps of two equal ranks vary a lot: which rank is slower in 30 steps is chance."""
    for seed in range(40):
        noise = np.random.default_rng(seed)
        own = [
            {k: made.series(v, COUNT) + noise.exponential(0.6 * v, COUNT) for k, v in USUAL.items()}
            for _ in range(2)
        ]
        cut = [{k: v[:30] for k, v in phases.items()} for phases in own]
        found = coupled(cut, count=30)
        named = [i.ranks for i in found.step_time.issues if "STRAGGLER" in i.status and i.ranks]
        assert not named, seed


def test_rank_slow_in_input_and_compute_is_a_generic_straggler() -> None:
    """Neither alone explains the waiting: the generic label, for one rank or for ranks in turn."""
    both = usual(4, input=only(2, 20.0), forward=only(2, 20.0))
    primary = coupled(both).primary_diagnosis
    assert (primary.status, primary.ranks, primary.phase) == ("STRAGGLER", [2], None)
    assert "20.0 ms of input and 20.0 ms of compute (mostly forward) more than the others" in primary.summary
    primary = coupled(usual(4, input=in_turn(4, 20.0), forward=in_turn(4, 20.0))).primary_diagnosis
    assert (primary.status, primary.ranks) == ("STRAGGLER", [])


@pytest.mark.parametrize(("samples", "is_uneven"), [(32, True), (16, False), (17, False)])
def test_rank_with_more_data_is_reported_with_both_amounts(samples: int, is_uneven: bool) -> None:
    """Twice the samples take twice as long: the sentence has both amounts. A few more explain nothing."""
    own = usual(2, forward=only(1, 20.0), backward=only(1, 15.0))
    found = coupled(own, samples=[16, samples]).primary_diagnosis
    assert (found.status, found.ranks) == ("COMPUTE STRAGGLER", [1])
    assert (f"It has {samples} samples per step, the median rank 16." in found.summary) is is_uneven
    assert found.action.startswith("Give every rank the same amount of data") is is_uneven


def test_slow_steps_of_one_rank_say_where_in_the_step_it_waits() -> None:
    """Every fifth step r1 waits before its forward pass, and r0 waits for it."""
    own = usual(2)
    own[1]["wait_input"] = made.every(5, 200.0, COUNT, offset=2)
    found = next(f for f in coupled(own).step_time.issues if f.kind == "JITTER")
    assert (found.ranks, found.phase) == ([1], "wait")
    assert "on r1, between fetching the batch and the forward pass" in found.summary


def test_ranks_that_wait_are_not_blamed() -> None:
    """The rank with the least sync is the culprit, even if backward plus sync is longer on the others."""
    summary = coupled(usual(4, forward=only(3, 30.0)))
    own = {k: m.metrics for k, m in summary.step_time.ranks.items()}
    assert all((own[k]["sync_ms"] or 0) > 25 for k in "012")
    assert summary.primary_diagnosis.ranks == [3]


def test_longest_rank_is_named_if_ranks_do_not_wait_for_each_other() -> None:
    """Not coupled: the longest rank is named, and the sentence says that ranks do not wait."""
    primary = uncoupled(usual(4, backward=only(2, 30.0))).primary_diagnosis
    assert (primary.status, primary.ranks, primary.phase) == ("COMPUTE STRAGGLER", [2], "backward")
    assert "do not wait for each other" in primary.summary


def _share(primary: Primary) -> float:
    return made.number(primary, "sync_ms") / made.number(primary, "step_ms")


def test_sync_that_even_the_last_rank_pays_is_communication() -> None:
    """COMM-BOUND, and the numbers of its sentence belong together."""
    primary = coupled(usual(4), comm_ms=25.0).primary_diagnosis
    assert (primary.status, primary.ranks) == ("COMM-BOUND", [])
    assert primary.evidence["sync_ms"] == pytest.approx(25, abs=0.5)
    assert primary.score == pytest.approx(_share(primary))
    straggling = coupled(usual(4, forward=only(1, 30.0))).step_time.issues
    assert "COMM_BOUND" not in {f.kind for f in straggling}


def test_gain_of_fewer_exchanges_includes_what_prepares_them() -> None:
    """One exchange by hand: what is done for it after the backward pass would be saved, too."""
    own = [{**phases, "wait_backward": 8.0} for phases in usual(2)]
    primary = coupled(own, comm_ms=40.0, exchanges=1).primary_diagnosis
    assert primary.status == "COMM-BOUND"
    rest = sum(USUAL.values())
    assert primary.potential_speedup == pytest.approx((rest + 48) / rest, rel=0.05)


def test_many_small_exchanges_promise_no_gain() -> None:
    """Starting an exchange takes time in whatever phase it is in, so sync alone is no upper bound."""
    primary = coupled(usual(2), comm_ms=40.0, exchanges=80).primary_diagnosis
    assert (primary.status, primary.potential_speedup) == ("COMM-BOUND", None)
    assert "up to 80" in primary.action


def test_rare_slow_exchanges_are_jitter_not_a_bound() -> None:
    """One exchange in ten takes 300 ms: a large share of all time, but typical steps do not show it."""
    found = coupled(usual(4), comm_ms=made.every(10, 300.0, COUNT, otherwise=1.0, offset=5)).step_time.issues
    assert "COMM_BOUND" not in {f.kind for f in found}
    assert "JITTER" in {f.kind for f in found}


@pytest.mark.parametrize("ranks", [2, 4, 64])
def test_slowdown_of_one_rank_names_that_rank(ranks: int) -> None:
    """From step 66 on, forward on r1 takes 80 ms more: that is named, not sync, where the others wait."""
    later = np.where(np.arange(COUNT) >= 65, 80.0, 0.0)
    found = coupled(usual(ranks, forward=lambda rank: later * (rank == 1))).step_time.issues
    (shift,) = [f for f in found if f.kind == "SLOWDOWN"]
    assert (shift.phase, shift.ranks, shift.evidence["since_step"]) == ("forward", [1], 66)
    assert "in forward on r1" in shift.summary


@pytest.mark.parametrize("ranks", [2, 4, 64])
def test_jitter_of_one_rank_names_that_rank(ranks: int) -> None:
    """r1 waits 500 ms for input every ten steps; if it is a different rank each time, none is named."""
    slow = made.every(10, 500.0, COUNT, offset=5)
    found = coupled(usual(ranks, input=lambda rank: slow * (rank == 1))).step_time.issues
    (jitter,) = [f for f in found if f.kind == "JITTER"]
    assert (jitter.phase, jitter.ranks, jitter.evidence["period"]) == ("input", [1], 10)
    turn = np.cumsum(slow > 0)
    found = coupled(usual(ranks, input=lambda rank: slow * (turn % ranks == rank))).step_time.issues
    (jitter,) = [f for f in found if f.kind == "JITTER"]
    assert (jitter.phase, jitter.ranks) == ("input", [])


def test_jitter_of_all_ranks_names_no_rank() -> None:
    """All ranks are slow in the same steps: the phase is named, but no rank."""
    slow = made.every(10, 500.0, COUNT, offset=5)
    found = coupled(usual(4, forward=lambda _: slow)).step_time.issues
    (jitter,) = [f for f in found if f.kind == "JITTER"]
    assert (jitter.phase, jitter.ranks) == ("forward", [])


# ---- ranks that hide each other


DIFFERENT = {
    "two": ({"input": {0: 36.0}, "forward": {1: 35.0}}, 2),
    "two of three": ({"input": {0: 36.0}, "forward": {1: 35.0}}, 3),
    "two of four": ({"input": {1: 36.0}, "optimizer": {3: 35.0}}, 4),
    "all of three": ({"input": {0: 36.0}, "forward": {1: 35.0}, "backward": {2: 35.0}}, 3),
    "all of four, in pairs": ({"input": {0: 36.0, 1: 36.0}, "forward": {2: 35.0, 3: 35.0}}, 4),
    "unlike measure": ({"input": {0: 36.0}, "forward": {1: 22.0}}, 3),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_ranks_late_for_different_reasons_are_all_named_with_the_common_gain(name: str) -> None:
    """Nobody waits for one of them, so each hides the others; fixing all of them would halve the step."""
    late, ranks = DIFFERENT[name]
    changed = {k: (lambda rank, of=of: of.get(rank, 0.0)) for k, of in late.items()}
    primary = coupled(usual(ranks, **changed)).primary_diagnosis
    assert primary.status == "STRAGGLER"
    assert primary.ranks == sorted({rank for of in late.values() for rank in of})
    for phase, of in late.items():
        for rank in of:
            assert f"r{rank} {of[rank]:.0f}"[:4] in primary.summary
        assert f"on {phase}" in primary.summary
    assert primary.severity == "crit"
    assert primary.potential_speedup == pytest.approx(75 / 39, rel=0.06)


def test_place_of_unattributed_work_is_reported_for_each_rank() -> None:
    """r0 loses time between phases, r1 in its optimizer: both with where it is lost."""
    own = usual(2, optimizer=only(1, 35.0))
    own[0]["wait"] = 36.0
    primary = coupled(own).primary_diagnosis
    assert (primary.status, primary.ranks) == ("STRAGGLER", [0, 1])
    assert (
        "r0 36.0 ms on unattributed work (after the forward pass), r1 35.0 ms on optimizer" in primary.summary
    )
    assert primary.action.startswith("Fix all of them; fixing one gains little")


def test_later_of_two_late_ranks_is_to_be_fixed_first() -> None:
    """r0 loses 60 ms in input, r1 30 ms in forward: half of the gain is r0's alone, and that is said."""
    primary = coupled(usual(2, input=only(0, 60.0), forward=only(1, 30.0))).primary_diagnosis
    assert (primary.status, primary.ranks) == ("STRAGGLER", [0, 1])
    assert primary.evidence["cost_ms"] == pytest.approx(60, abs=1)
    assert primary.action.startswith("Fix r0 first: that alone may gain 30.0 ms.")


@pytest.mark.parametrize("phase", ["input", "backward"])
def test_rank_that_is_slow_from_some_step_on_is_reported_with_these_steps(phase: str) -> None:
    """r1 becomes slow in the middle of the run: since when is part of the sentence."""
    later = made.series(0.0, COUNT)
    later[50:] = 40.0
    own = usual(3, **{phase: lambda rank: later if rank == 1 else 0.0})
    (straggler,) = [f for f in coupled(own).step_time.issues if f.kind.endswith("STRAGGLER")]
    assert straggler.ranks == [1]
    assert "in 50.5 % of the steps, mostly steps 51 to 100" in straggler.summary


def test_ranks_that_average_every_few_steps_wait_for_each_other() -> None:
    """Local SGD: r0 waits for r1 every 25 steps, but not after the last, so its mean step is shorter."""
    slow, pause = made.series(50.0, COUNT), made.series(0.0, COUNT)
    pause[25::25] = 25 * 30.0
    rows = [
        made.steps(COUNT, measured=MEASURED, forward=20.0, sync=pause),
        made.steps(COUNT, measured=MEASURED, forward=slow, sync=0.0),
    ]
    ranks = [made.rank(r, number, world_size=2) for number, r in enumerate(rows)]
    primary = summarize(RunRecording(ranks=ranks), FACTS).primary_diagnosis
    assert (primary.status, primary.ranks) == ("COMPUTE STRAGGLER", [1])
    assert primary.evidence["excess_ms"] == pytest.approx(30, abs=1)
    assert primary.summary.endswith("the others wait for it.")


def test_rank_with_work_that_the_others_do_not_have_is_never_balanced() -> None:
    """The rank makes up for it elsewhere, so the others do not wait and no gain is promised; but it is
    reported."""
    own = usual(4, input=only(0, 12.0), forward=only(0, -12.0))
    primary = coupled(own).primary_diagnosis
    assert (primary.status, primary.severity, primary.ranks) == ("STRAGGLER", "warn", [0])
    assert "It is still not late" in primary.summary
    assert primary.potential_speedup is None


@pytest.mark.parametrize(("spared", "words"), [(20, "nearly every step"), (8, "86.9 % of the steps")])
def test_straggler_says_in_how_many_steps_it_is_late(spared: int, words: str) -> None:
    """From 90 % of the steps on it is nearly every step."""
    own = usual(4)
    own[1]["input"] = np.where(np.arange(COUNT) % spared == 1, 1.0, 41.0)
    primary = coupled(own).primary_diagnosis
    assert (primary.status, primary.ranks) == ("INPUT STRAGGLER", [1])
    assert f", in {words}; the others wait for it." in primary.summary


@pytest.mark.parametrize("key", ["validation", "checkpoint"])
def test_waiting_for_another_rank_s_outside_work_is_said(key: str) -> None:
    """r0 validates or saves every ten steps, and the others wait for it in sync."""
    own = usual(4)
    own[0][key] = made.every(10, 200.0, COUNT, offset=5)
    (remark,) = [f for f in coupled(own).step_time.issues if f.kind == "WAIT_FOR_RANK"]
    assert (remark.ranks, remark.severity) == ([0], "info")
    assert f"wait for r0 in sync while it is in {key}: 20.2 ms per step" in remark.summary
    for ms, is_said in ((19.0, False), (22.0, True)):  # from 5 % of a step of 39 ms on
        own[0][key] = made.every(10, ms, COUNT, offset=5)
        assert ("WAIT_FOR_RANK" in {f.kind for f in coupled(own).step_time.issues}) is is_said
    together = [{**phases, key: made.every(10, 200.0, COUNT, offset=5)} for phases in usual(4)]
    assert "WAIT_FOR_RANK" not in {f.kind for f in coupled(together).step_time.issues}


def test_large_sync_share_that_no_rule_judges_gets_a_sentence() -> None:
    """Equal ranks whose steps vary: no straggler, no bound, but the verdict is followed by a remark."""
    noise = np.random.default_rng(5)
    own = [{k: v + noise.exponential(0.15 * v, COUNT) for k, v in USUAL.items()} for _ in range(8)]
    verdict, *remarks = coupled(own).step_time.issues
    assert verdict.kind == "BALANCED"
    (remark,) = [f for f in remarks if f.kind == "SYNC_SHARE"]
    assert remark.severity == "info"
    assert "of waiting for whichever rank is last" in remark.summary
    quiet = coupled(usual(8)).step_time.issues
    assert "SYNC_SHARE" not in {f.kind for f in quiet}
    straggling = coupled(usual(8, forward=only(1, 30.0))).step_time.issues
    assert "SYNC_SHARE" not in {f.kind for f in straggling}


def after_the_exchange(ranks: int, phase: str, extra: Any, culprit: int = 1) -> Summary:
    """One rank spends more on a phase after the exchange, so the others wait for it in their next step."""
    rows = []
    for number, phases in enumerate(usual(ranks)):
        waits = np.append(0.0, extra[:-1]) if number != culprit else 0.0
        mine = {**phases, phase: phases.get(phase, 0.0) + (extra if number == culprit else 0.0)}
        rows.append(made.steps(COUNT, measured=MEASURED, **mine, sync=1.0 + waits))
    recorded = [made.rank(each, number, world_size=ranks) for number, each in enumerate(rows)]
    return summarize(RunRecording(ranks=recorded), FACTS)


@pytest.mark.parametrize("ranks", [2, 4])
def test_saves_after_the_exchange_are_told_with_what_the_others_wait(ranks: int) -> None:
    """r0 saves every ten steps before its step ends: the others wait for it in their next step."""
    found = after_the_exchange(ranks, "checkpoint", made.every(10, 400.0, COUNT, offset=4), culprit=0)
    primary, remarks = found.primary_diagnosis, {f.kind: f for f in found.step_time.issues}
    assert (primary.kind, primary.ranks, primary.phase) == ("WAIT_HEAVY", [0], "checkpoint")
    assert primary.evidence["cost_ms"] == pytest.approx(40, rel=0.05)
    assert "wait for r0 in sync while it is in checkpoint" in remarks["WAIT_FOR_RANK"].summary
    assert "JITTER" not in remarks


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("steps", [10, 22])
def test_rare_stops_after_the_exchange_are_jitter_of_that_rank(ranks: int, steps: int) -> None:
    """With two ranks, each stop is in two steps of the mean rank: it counts once, in the step it was in."""
    late = np.where(np.random.default_rng(3).permutation(COUNT) < steps, 100.0, 0.0)
    late[:10] = 0.0  # no warm-up
    primary = after_the_exchange(ranks, "optimizer", late).primary_diagnosis
    assert (primary.kind, primary.ranks, primary.phase) == ("JITTER", [1], "optimizer"), primary.summary
    assert primary.evidence["slow_steps"] == np.count_nonzero(late)
    assert primary.evidence["extra_ms"] == pytest.approx(100, rel=0.02)


@pytest.mark.parametrize("more", range(5))
def test_stops_in_every_fourth_step_are_told_beside_other_slow_steps(more: int) -> None:
    """Too rare to make r1 a straggler, and with the slow steps of r0 more than a quarter: jitter."""
    stops, others = made.every(4, 60.0, COUNT, offset=9), np.zeros(COUNT)
    stops[:12], others[[22, 40, 51, 64, 75][:more]] = 0.0, 60.0
    late = {0: others, 1: stops}
    primary = coupled(usual(2, optimizer=lambda rank: late[rank])).primary_diagnosis
    assert primary.phase == "optimizer", primary.summary
    assert (primary.kind, primary.ranks) in (("JITTER", [1]), ("COMPUTE_STRAGGLER", [1]))


def test_phase_of_a_straggler_is_judged_in_the_steps_in_which_it_is_late() -> None:
    """Late in the optimizer in one step too few to count alone, and once in forward: it is the optimizer."""
    optimizer = made.every(4, 60.0, COUNT, offset=3)
    optimizer[3] = 0.0
    forward = np.where(np.isin(np.arange(COUNT), [4, 5]), 60.0, 0.0)
    extra = {"optimizer": optimizer, "forward": forward}
    changed = {k: (lambda rank, late=late: late if rank == 1 else 0.0) for k, late in extra.items()}
    found = coupled(usual(2, **changed)).primary_diagnosis
    assert (found.kind, found.ranks, found.phase) == ("COMPUTE_STRAGGLER", [1], "optimizer"), found.summary


@pytest.mark.parametrize("comm_ms", [1.0, 6.0])
def test_slow_steps_of_two_ranks_for_two_reasons_are_told(comm_ms: float) -> None:
    """r0 stops in input, r1 in forward, each now and then: what they do is told, not that others wait."""
    stops = {
        "input": (0, made.every(11, 120.0, COUNT, offset=5)),
        "forward": (1, made.every(9, 120.0, COUNT)),
    }
    changed = {
        key: (lambda rank, who=who, late=late: late if rank == who else 0.0)
        for key, (who, late) in stops.items()
    }
    primary = coupled(usual(2, **changed), comm_ms).primary_diagnosis
    assert (primary.kind, primary.phase) == ("JITTER", None), primary.summary
    assert "in forward" in primary.summary
    assert "in input" in primary.summary


def test_slow_rank_that_changes_with_its_reason_is_told_with_both_reasons() -> None:
    """r0 is late in input in the first half, r3 in backward in the second: neither is most of it."""
    half = np.arange(COUNT) < COUNT // 2
    late = {"input": (0, np.where(half, 30.0, 0.0)), "backward": (3, np.where(half, 0.0, 30.0))}
    changed = {
        key: (lambda rank, who=who, ms=ms: ms if rank == who else 0.0) for key, (who, ms) in late.items()
    }
    primary = coupled(usual(4, **changed)).primary_diagnosis
    assert (primary.kind, primary.ranks, primary.phase) == ("STRAGGLER", [0, 3], None), primary.summary
    assert (
        "their own work (input and backward)" in primary.summary or "(backward and input)" in primary.summary
    )


@pytest.mark.parametrize("ranks", [2, 4, 64])
def test_slow_rank_that_changes_once_is_reported_with_its_steps(ranks: int) -> None:
    """r0 is late in the first half of the run, r1 in the second: no turns, but one after the other."""
    half = np.arange(COUNT) < COUNT // 2
    late = {0: np.where(half, 30.0, 0.0), 1: np.where(half, 0.0, 30.0)}
    primary = coupled(usual(ranks, input=lambda rank: late.get(rank, 0.0))).primary_diagnosis
    assert (primary.kind, primary.ranks, primary.phase) == ("INPUT_STRAGGLER", [0, 1], "input")
    assert "r0 in steps 2 to 50, r1 in steps 51 to 100." in primary.summary
    assert primary.action.startswith("Find out what moved from one rank to the next")
    assert primary.evidence["excess_ms"] == pytest.approx(30, abs=1.5)


def test_ranks_that_work_one_after_the_other_are_not_only_said_to_communicate() -> None:
    """Two pipeline stages of 30 ms: each waits while the other computes, as in a long exchange."""
    rows = [made.steps(COUNT, measured=MEASURED, forward=30.0, sync=31.0) for _ in range(2)]
    ranks = [made.rank(r, number, world_size=2) for number, r in enumerate(rows)]
    primary = summarize(RunRecording(ranks=ranks), FACTS).primary_diagnosis
    assert primary.status == "COMM-BOUND"
    assert "or the ranks work one after the other" in primary.summary
    assert primary.action.startswith("If they are stages of a pipeline, try more micro-batches")
    issues = coupled(usual(2, input=only(1, 200.0)), comm_ms=40.0).step_time.issues
    late, exchange = issues
    assert (late.status, late.ranks) == ("INPUT STRAGGLER", [1])
    assert (exchange.status, "one after the other" in exchange.summary) == ("COMM-BOUND", False)
    alike = coupled(usual(2), comm_ms=20.0).primary_diagnosis
    assert (alike.status, "one after the other" in alike.summary) == ("COMM-BOUND", False)


@pytest.mark.parametrize(
    ("forward_ms", "wait_ms", "why"),
    [
        (6_000.0, 0.0, "spent 6.0 s in forward"),
        (20.0, 6_000.0, "spent 6.0 s in unattributed work"),
        (20.0, 0.0, "began to train later than they did"),
    ],
)
def test_rank_that_the_others_wait_for_in_the_first_step_is_noted(
    forward_ms: float, wait_ms: float, why: str
) -> None:
    """Warm-up is no part of the window; a rank that was 6 s late in it must not vanish, even if the training
    is long enough for that to be no stall."""
    count = 4 * COUNT
    first = [{"forward": 20.0, "sync": 6_000.0}, {"forward": forward_ms, "sync": 20.0, "wait": wait_ms}]
    ranks = []
    for number, phases in enumerate(first):
        usual_ms = {"forward": 20.0, "sync": 1.0, "wait": 0.0}
        series: dict[str, Any] = {key: made.series(ms, count) for key, ms in usual_ms.items()}
        for key, ms in phases.items():
            series[key][0] = ms
        ranks.append(made.rank(made.steps(count, measured=MEASURED, **series), number, world_size=2))
    notes = summarize(RunRecording(ranks=ranks), FACTS).run.notes
    assert f"During warm-up other ranks waited 6.0 s for r1, which {why}." in notes
    assert not [n for n in coupled(usual(2)).run.notes if "During warm-up" in n]


def test_gain_of_a_straggler_leaves_out_what_else_it_does_alone() -> None:
    """Rank 0 is 20 ms late in input and alone validates for 30 ms every ten steps: mending its input gains
    the 20 ms, not the validation."""
    own = usual(3)
    own[0] = {**own[0], "input": own[0]["input"] + 20.0, "validation": made.every(10, 30.0, COUNT)}
    found = coupled(own).primary_diagnosis
    assert (found.kind, found.ranks) == ("INPUT_STRAGGLER", [0])
    assert made.number(found, "cost_ms") == pytest.approx(20, rel=0.05)


def test_straggler_without_a_loader_is_not_blamed_for_its_shards() -> None:
    """Without a loader everything that runs before the forward pass counts as input, logging too: the advice
    says so."""
    own = usual(2)
    own[0] = {**own[0], "input": own[0]["input"] + 20.0}
    found = coupled(own, extra_flags=c.FLAG_INPUT_INFERRED).primary_diagnosis
    assert (found.kind, found.ranks) == ("INPUT_STRAGGLER", [0])
    assert "everything that runs before the forward pass" in found.summary
    assert "logging" in found.action
    assert "loader workers" not in found.action


def test_few_long_stops_are_not_mixed_with_many_short_ones() -> None:
    """r0 logs for 600 ms after three steps; a busy machine makes five others a little slow."""
    logs, noise = np.zeros(COUNT), np.zeros(COUNT)
    logs[[20, 45, 60]], noise[[11, 33, 52, 71, 93]] = 600.0, 30.0
    found = coupled(usual(2, optimizer=lambda rank: noise if rank else logs))
    (jitter,) = [f for f in found.step_time.issues if f.kind == "JITTER"]
    assert (jitter.ranks, jitter.phase) == ([0], "optimizer")
    assert jitter.summary.startswith("Slow steps (21, 46 and 61 of 99 steps)"), jitter.summary
    assert jitter.evidence["extra_ms"] == pytest.approx(600, rel=0.02)
