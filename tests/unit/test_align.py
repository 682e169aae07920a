"""Alignment: steps that all ranks completed, without warm-up, on one clock."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.unit import made
from tests.unit.made import align
from traceml.schema import catalog as c
from traceml.schema.recorded import RankRecording

USUAL: dict[str, Any] = {"input": 1.0, "forward": 3.0, "backward": 5.0, "optimizer": 1.0}


def test_window_holds_what_was_recorded() -> None:
    """Phases, wait, step time and step numbers are unchanged, in nanoseconds."""
    found = align([made.rank(made.steps(50, **USUAL, wait=0.5))])
    assert found.ranks == (0,)
    assert list(found.steps) == list(range(2, 51))
    assert (found.of("input") == 1e6).all()
    assert (found.of("wait") == 0.5e6).all()
    assert (found.step_ns == 10.5e6).all()
    assert found.total_steps == 50


def test_phases_and_wait_add_up_to_the_step() -> None:
    """For every rank and step the phases, user phases and wait add up to the step."""
    rows = made.steps(40, **USUAL, wait=2.0, user0=1.5, validation=0.5, checkpoint=0.25)
    found = align([made.rank(rows, user_names=["augment", *[None] * 6])])
    assert np.nansum(found.phases, axis=2) == pytest.approx(found.step_ns)


def test_unmeasured_phase_is_nan_not_zero() -> None:
    """The row's flags decide: without the bit, a zero is not a measurement."""
    found = align([made.rank(made.steps(30, **USUAL))])
    assert not found.measured("h2d")
    assert np.isnan(found.phases[:, :, c.H2D]).all()
    assert found.measured("checkpoint")
    assert (found.phases[:, :, c.CHECKPOINT] == 0).all()


def test_unknown_batch_size_is_nan() -> None:
    """0 samples in a row means unknown."""
    assert np.isnan(align([made.rank(made.steps(10, **USUAL))]).samples).all()
    assert (align([made.rank(made.steps(10, **USUAL, samples=32))]).samples == 32).all()


@pytest.mark.parametrize("recordings", [[], [made.rank(made.steps(0))]], ids=["no rank", "no row"])
def test_without_completed_steps_the_window_is_empty(recordings: list[RankRecording]) -> None:
    """No steps make a window of no steps; a rank without rows is listed as a rank without steps."""
    found = align(recordings)
    assert (found.count, found.total_steps, found.ranks) == (0, 0, ())
    assert found.ranks_without_steps == tuple(r.rank for r in recordings)


def test_window_has_only_steps_that_all_ranks_completed() -> None:
    """A rank that is behind or ahead does not affect the other steps."""
    ahead = made.rank(made.steps(60, **USUAL), 0, world_size=3)
    behind = made.rank(made.steps(40, **USUAL), 1, world_size=3)
    dark = made.rank(made.steps(0), 2, world_size=3)
    found = align([behind, dark, ahead])
    assert found.ranks == (0, 1)
    assert found.total_steps == 40
    assert found.steps[-1] == 40
    assert found.ranks_without_steps == (2,)


def test_ranks_without_a_common_step_give_an_empty_window() -> None:
    """Two ranks that share no step number give no window and no error."""
    early = made.rank(made.steps(30, **USUAL), 0)
    late = made.rank(made.steps(30, first_step=100, **USUAL), 1)
    assert align([early, late]).count == 0


# ---- warm-up


def warmup_of(*durations: float) -> int:
    """How many steps of these durations are left out."""
    return len(align([made.rank(made.steps(len(durations), forward=list(durations)))]).warmup)


def test_first_step_is_always_warm_up() -> None:
    """It does not begin at the end of a step: in runs of five steps or more it is left out, however fast."""
    assert warmup_of(*[10.0] * 30) == 1
    assert warmup_of(*[10.0] * 4) == 0


def test_slow_first_steps_are_left_out_and_reported() -> None:
    """Compilation and autotuning: every step up to the last slow one is left out, with its milliseconds."""
    slow = [1200.0, 300.0, 10.0, 25.0]
    rows = made.steps(100, forward=[*slow, *[10.0] * 96])
    found = align([made.rank(rows)])
    assert found.warmup == pytest.approx(slow)
    assert found.steps[0] == 5
    assert found.step_ns.max() == 10e6


def test_slow_steps_that_keep_coming_are_not_warm_up() -> None:
    """A slow step every ten steps is jitter: only the first step is left out."""
    assert warmup_of(*made.every(10, 50.0, 100, otherwise=10.0)) == 1


@pytest.mark.parametrize("period", [2, 3, 4])
def test_slow_steps_as_frequent_as_later_ones_are_not_warm_up(period: int) -> None:
    """Every second to fourth step is slow, from the first one to the last."""
    rows = made.steps(100, forward=made.every(period, 80.0, 100, otherwise=20.0))
    assert len(align([made.rank(rows)]).warmup) == 1


def test_slow_first_epoch_is_not_warm_up() -> None:
    """Six or more steps that get no faster, as without a cache: only the first one is left out."""
    assert warmup_of(500.0, *[80.0] * 14, *[20.0] * 85) == 1
    assert warmup_of(500.0, *[80.0] * 6, *[20.0] * 93) == 1
    assert warmup_of(500.0, *[80.0] * 5, *[20.0] * 94) == 6
    assert warmup_of(500.0, *np.linspace(400.0, 45.0, 14), *[20.0] * 85) == 15


def test_warm_up_takes_twice_as_long_as_later_steps() -> None:
    """A second step of 21 ms before steps of 10 ms is warm-up, one of 19 ms is not."""
    assert warmup_of(100.0, 21.0, *[10.0] * 98) == 2
    assert warmup_of(100.0, 19.0, *[10.0] * 98) == 1


def test_warm_up_is_at_most_a_fifth_of_the_run_and_50_steps() -> None:
    """However long the steps get faster, no more than that is left out."""
    assert warmup_of(*np.geomspace(40_000.0, 40.0, 50), *[10.0] * 50) == 20
    assert warmup_of(*np.geomspace(40_000.0, 40.0, 200), *[10.0] * 800) == 50


def test_leading_step_that_takes_a_tenth_of_the_run_is_no_warm_up() -> None:
    """It would vanish otherwise. 110 ms of 1,140 ms are warm-up, 120 ms of 1,150 ms are not."""
    assert warmup_of(50.0, 110.0, *[10.0] * 98) == 2
    assert warmup_of(50.0, 120.0, *[10.0] * 98) == 1


@pytest.mark.parametrize(("most", "stopped", "used"), [(40, 19, 2), (40, 20, 3), (39, 19, 3)])
def test_rank_that_stopped_early_does_not_hide_what_the_others_did(
    most: int, stopped: int, used: int
) -> None:
    """A rank with fewer than 20 steps is left out if the others have twice as many."""
    counts = (most, most, stopped)
    found = align([made.rank(made.steps(n, **USUAL), rank, world_size=3) for rank, n in enumerate(counts)])
    assert len(found.ranks) == used
    assert found.total_steps == (most if used == 2 else stopped)


# ---- clocks


def gpu_rank(device_rows: Any, **parts: Any) -> RankRecording:
    rows = made.steps(50, measured=(*made.ALL_MEASURED, "h2d"), **USUAL, h2d=0.1)
    return made.rank(rows, device={"type": "cuda"}, device_rows=device_rows, **parts)


def test_device_clock_is_used_if_complete() -> None:
    """Device rows for every step, in any order, replace all of the host's times."""
    device = made.device_times(50, input=1, h2d=2, forward=3, backward=4, optimizer=1, wait=0.5)
    found = align([gpu_rank(device[::-1])])
    assert found.clock == "device"
    assert (found.of("h2d") == 2e6).all()
    assert (found.step_ns == 11.5e6).all()


def test_one_step_without_device_times_means_the_host_clock() -> None:
    """Clocks are never mixed: the whole window is on the host clock."""
    device = made.device_times(50, forward=3)
    holed = device[device["step"] != 25]
    found = align([gpu_rank(holed)])
    assert found.clock == "host"
    assert (found.of("h2d") == 0.1e6).all()


@pytest.mark.parametrize(("unfinished", "clock"), [(16, "device"), (17, "host")])
def test_last_steps_may_have_no_device_times_yet(unfinished: int, clock: str) -> None:
    """The run ended before the device was done with them: they are left out, if they are few."""
    found = align([gpu_rank(made.device_times(50, forward=3)[:-unfinished])])
    assert (found.clock, int(found.steps[-1])) == (clock, 50 - unfinished if clock == "device" else 50)


def test_one_rank_without_device_times_means_the_host_clock() -> None:
    """Clocks are not mixed between ranks either."""
    device = made.device_times(50, forward=3)
    found = align([gpu_rank(device), gpu_rank(None, number=1)])
    assert found.clock == "host"
    assert (found.step_ns == 10.1e6).all()


def test_overhead_comes_from_the_rows_and_the_header() -> None:
    """Phase switches times their measured cost, plus the cost of one row."""
    rank = made.rank(made.steps(10, **USUAL), overhead={"switch_ns": 400, "row_ns": 1500})
    assert (align([rank]).overhead_ns == 5 * 400 + 1500).all()


def test_user_phases_have_the_names_that_the_user_gave() -> None:
    """A used slot appears as `user.<name>`; an unused slot does not appear."""
    rank = made.rank(made.steps(10, **USUAL, user2=4.0), user_names=[None, None, "augment", *[None] * 4])
    found = align([rank])
    assert found.user_keys == ("user.augment",)
    assert (found.of("user.augment") == 4e6).all()


def test_loader_workers_come_from_epoch_events() -> None:
    """The window knows the number of workers, because batches arrive in bursts of that many."""
    events = [{"kind": "epoch_start", "workers": 4}, {"kind": "gc"}]
    assert align([made.rank(made.steps(10, **USUAL), events=events)]).workers == 4


def test_user_phases_are_matched_by_name_not_by_column() -> None:
    """r0 has "augment" in its second column, r1 in its first: it is one phase."""
    none = [None] * 6
    r0 = made.rank(
        made.steps(30, forward=10.0, user0=1.0, user1=2.0), 0, user_names=["log", "augment", *none]
    )
    r1 = made.rank(made.steps(30, forward=10.0, user0=60.0), 1, user_names=["augment", None, *none])
    window = align([r0, r1])
    assert window.user_keys == ("user.log", "user.augment")
    assert window.of("user.log").mean(axis=1).tolist() == [1e6, 0.0]
    assert window.of("user.augment").mean(axis=1).tolist() == [2e6, 60e6]


def test_damaged_rank_is_left_out() -> None:
    """Rows whose steps have a gap cannot be compared with others; the other ranks still count."""
    rows = made.steps(50, **USUAL)
    found = align([made.rank(rows), made.rank(rows[rows["step"] != 30], number=1)])
    assert (found.ranks, found.ranks_without_steps) == ((0,), (1,))
