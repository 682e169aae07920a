"""Patterns in step times: shifts, slow steps and their period, on hand-made series."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz import examples
from tests.unit.made import every
from traceml.analyze.patterns import find_period, find_runs, find_shift, find_stalls, slow_steps
from traceml.analyze.window import Floats

NOISE = np.random.default_rng(7)
BURST = [13, 91, 93, 95, 97, 99, 101, 102, 103, 105, 107, 109]


def steady(count: int, level: float = 10.0, noise: float = 0.03) -> np.ndarray:
    """A healthy series with a little noise."""
    return level * (1 + noise * NOISE.standard_normal(count))


@pytest.mark.parametrize("at", [20, 60, 100, 180])
def test_lasting_rise_is_found_where_it_began(at: int) -> None:
    """A series that rises by half and stays up is a shift at that step, with both levels."""
    shift = find_shift(np.concatenate([steady(at), steady(200 - at, 15.0)]))
    assert shift is not None
    assert abs(shift.at - at) <= 1
    assert shift.before == pytest.approx(10, rel=0.03)
    assert shift.after == pytest.approx(15, rel=0.03)


def test_shift_in_a_long_run_is_found_to_within_a_block() -> None:
    """A long run is searched in 200 blocks."""
    shift = find_shift(np.concatenate([steady(12_000), steady(8_000, 13.0)]))
    assert shift is not None
    assert abs(shift.at - 12_000) <= 100


def ramps(start: float, end: float, count: int, noise: float, seed: int = 0) -> np.ndarray:
    """From one level to another, a little with each step, after a flat first half if `start` is negative."""
    random = np.random.default_rng(seed)
    begin = count // 2 if start < 0 else 0
    level = np.interp(np.arange(count), [begin, count - 1], [abs(start), end])
    return level * (1 + noise * random.standard_normal(count))


@pytest.mark.parametrize("count", [60, 200, 1_000, 20_000])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("start", [20.0, -20.0], ids=["from the start", "from the middle"])
def test_rise_little_by_little_is_a_ramp(count: int, seed: int, start: float) -> None:
    """A ramp is not taken for a sudden rise; it has its first and last step and both levels."""
    shift = find_shift(ramps(start, 55.0, count, 0.1, seed))
    assert shift is not None
    assert shift.ramp is not None
    begin = count // 2 if start < 0 else 0
    assert abs(shift.ramp.first - begin) <= 0.2 * count
    assert shift.ramp.last >= 0.8 * count
    assert shift.ramp.start == pytest.approx(20, rel=0.2)
    assert shift.ramp.end == pytest.approx(55, rel=0.2)
    regular = ramps(start, 55.0, count, 0.0) / shift.levels(count)
    assert np.all(np.abs(regular - 1) < 0.2), "the levels follow the series"


@pytest.mark.parametrize("count", [60, 200, 1_000, 20_000])
@pytest.mark.parametrize("at", [0.35, 0.5, 0.6])
@pytest.mark.parametrize("noise", [0.01, 0.05, 0.1])
def test_sudden_rise_is_no_ramp(count: int, at: float, noise: float) -> None:
    """However noisy the levels are, one step is where the rise began."""
    for seed in range(10):
        random = np.random.default_rng(seed)
        series = np.where(np.arange(count) < at * count, 20.0, 32.0)
        shift = find_shift(series * (1 + noise * random.standard_normal(count)))
        assert shift is not None, seed
        assert shift.ramp is None, seed


@pytest.mark.parametrize("count", [200, 300, 1_000, 20_000])
def test_few_sudden_rises_are_no_ramp(count: int) -> None:
    """Three levels after each other are not a steady growth."""
    shift = find_shift(np.array([20.0, 30.0, 40.0])[np.arange(count) * 3 // count] * steady(count) / 10)
    assert shift is not None
    assert shift.ramp is None


@pytest.mark.parametrize(
    "series",
    [
        steady(200),
        np.concatenate([steady(100), steady(100, 11.0)]),  # 10 %: too little
        np.concatenate([steady(100, 15.0), steady(100)]),  # faster, not slower
        np.concatenate([steady(70), steady(60, 20.0), steady(70)]),  # it came back
        np.concatenate([steady(100), steady(92, 20.0), steady(8)]),  # it came back at the very end
        np.concatenate([steady(190), steady(10, 30.0)]),  # too late to be sure
        steady(39, 10.0) + np.arange(39) // 20 * 10,  # too few steps
        every(10, 100.0, 200, otherwise=10.0),  # periodic slow steps
        steady(200) + 10.0 * np.exp(-np.arange(200) / 20),  # warm-up
        np.concatenate([np.linspace(10.0, 20.0, 100), np.linspace(20.0, 10.0, 100)]),  # up and down
        np.concatenate([steady(100), steady(100) * (1 + np.arange(100) % 2)]),  # half of them only
        np.zeros(100),
        np.zeros(0),
    ],
    ids=[
        "flat",
        "small",
        "faster",
        "back",
        "back at the end",
        "late",
        "short",
        "periodic",
        "warm-up",
        "up and down",
        "half",
        "zeros",
        "empty",
    ],
)
def test_series_without_a_lasting_rise_has_no_shift(series: np.ndarray) -> None:
    """Noise, small, short or temporary changes, speed-ups and periodic slow steps are not shifts."""
    assert find_shift(series) is None


@given(
    values=st.lists(st.floats(1e-3, 1e12, allow_nan=False), max_size=300),
)
@examples(150)
def test_shift_and_slow_steps_are_plausible_for_any_series(values: list[float]) -> None:
    """A shift is inside the series and goes up; slow steps are a minority above the median."""
    series = np.array(values, dtype=float)
    shift = find_shift(series)
    if shift is not None:
        assert 20 <= shift.at <= len(series) - 20 + len(series) // 200
        assert shift.after >= 1.15 * shift.before
    slow = slow_steps(series)
    assert len(slow) <= 0.3 * len(series)
    assert not len(slow) or series[slow].min() > np.median(series)


def test_slow_steps_take_at_least_1_5_times_the_median() -> None:
    """40 % longer is not slow, 60 % longer is."""
    assert len(slow_steps(every(10, 14.0, 100, otherwise=10.0))) == 0
    assert list(slow_steps(every(10, 16.0, 100, otherwise=10.0))) == list(range(0, 100, 10))


def test_too_few_or_too_many_slow_steps_are_ignored() -> None:
    """At least three slow steps, and at most three of ten."""
    assert len(slow_steps(every(50, 90.0, 100, otherwise=10.0))) == 0
    assert len(slow_steps(every(3, 90.0, 99, otherwise=10.0))) == 0


def test_regular_slow_steps_are_found_among_steps_that_vary_much() -> None:
    """A rollout every 12 steps is found although a third of the others take twice the median. So are steps at
    irregular places that are slower by far. Without them, or if they are near the others, nothing is slow."""
    varied: Floats = np.where(np.arange(96) % 7 < 3, 20.0, 8.0) + np.arange(96) % 5
    assert len(slow_steps(varied)) == 0
    assert list(slow_steps(varied + every(12, 300.0, 96))) == list(range(0, 96, 12))
    irregular = np.isin(np.arange(96), [3, 9, 40, 41, 77])
    assert list(slow_steps(varied + 300.0 * irregular)) == [3, 9, 40, 41, 77]
    assert len(slow_steps(varied + 8.0 * irregular)) == 0


@pytest.mark.parametrize("period", [2, 3, 7, 10, 25, 100])
def test_period_of_evenly_spaced_steps_is_found(period: int) -> None:
    """Their spacing is the period."""
    assert find_period(np.arange(5, 5 + 8 * period, period)) == period


def test_period_is_found_despite_small_irregularities() -> None:
    """Distances within 5 % agree, and one missing step in ten does not matter."""
    assert find_period(np.array([0, 100, 201, 300, 399, 500, 600])) == 100
    assert find_period(np.array([i * 10 for i in range(12) if i != 6])) == 10


def test_a_slow_step_with_another_cause_does_not_hide_the_period() -> None:
    """A figure every 50 steps is regular, even if garbage was collected in one more step."""
    regular = [51, 101, 151, 201, 251, 301, 351]
    for other in (270, 20, 380):
        assert find_period(np.array(sorted([*regular, other]))) == 50
    assert find_period(np.array(sorted([*regular, 20, 120, 130, 270]))) is None


@pytest.mark.parametrize(
    "indices",
    [[], [3], [3, 9, 40], [1, 5, 30, 31, 77, 120], [1, 2, 3, 4, 5], BURST, [20, 22, 23, 26, 28, 29, 32]],
    ids=str,
)
def test_irregular_steps_have_no_period(indices: list[int]) -> None:
    """Too few, irregular or neighbouring steps have no period; nor has a burst with one step long before."""
    assert find_period(np.array(indices, dtype=np.int64)) is None


@pytest.mark.parametrize(
    ("usual", "longest", "is_stall"),
    [(100e6, 299e6, False), (100e6, 301e6, True), (10e6, 59e6, False), (10e6, 61e6, True)],
)
def test_stall_takes_three_times_the_usual_step_and_50_ms_more(
    usual: float, longest: float, is_stall: bool
) -> None:
    """A step that is shorter by a little is no stall."""
    steps = np.full(100, usual)
    steps[40] = longest
    assert find_stalls(steps).tolist() == ([40] if is_stall else [])


def test_run_of_one_rank_is_at_least_a_tenth_of_the_steps() -> None:
    """A shorter one between two others is noise."""
    assert find_runs(np.repeat([0, 1, 2], [45, 10, 45]), 3) == [(0, 0, 44), (1, 45, 54), (2, 55, 99)]
    assert find_runs(np.repeat([0, 1, 2], [46, 9, 45]), 3) == [(0, 0, 45), (2, 55, 99)]
