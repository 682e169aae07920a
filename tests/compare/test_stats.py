"""The interval: deterministic, calibrated, and right for autocorrelated steps and for several runs."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compare.making import blocks
from traceml.compare import stats as compare_stats
from traceml.compare.stats import MIN_BLOCKS, spread


def wandering(length: float, sd: float, seed: int, count: int = 40) -> list[float]:
    """Block means that wander over about `length` blocks."""
    random = np.random.default_rng(seed)
    keep = np.exp(-1 / length)
    log = [random.normal(0, sd)]
    for _ in range(count - 1):
        log.append(keep * log[-1] + random.normal(0, sd * np.sqrt(1 - keep**2)))
    return [float(v) for v in 10 * np.exp(log)]


def half_width(a: list[float], b: list[float]) -> float:
    """How small a change the comparison of these two runs can see."""
    found = spread([a], [b])
    assert found is not None
    return (found.high_share - found.low_share) / 2


def test_same_input_gives_same_interval() -> None:
    """Comparing the same two files twice gives the same numbers to the last digit."""
    assert spread([blocks(10)], [blocks(11, seed=1)]) == spread([blocks(10)], [blocks(11, seed=1)])


def test_interval_contains_the_estimate_and_the_true_change() -> None:
    """Both the estimate and the change that was put in lie inside the interval."""
    found = spread([blocks(10)], [blocks(11, seed=1)])
    assert found is not None
    assert found.low_share < found.delta_share < found.high_share
    assert found.low_share < 0.10 < found.high_share


def test_one_slow_block_does_not_change_the_typical_step() -> None:
    """A block that is ten times as slow does not change the median, but it changes the mean."""
    quiet = blocks(10)
    typical, mean = (spread([quiet], [[*quiet[:-1], 100.0]], center) for center in (np.median, np.mean))
    assert typical is not None
    assert mean is not None
    assert abs(typical.delta_share) < 0.01
    assert mean.delta_share > 0.1


def test_autocorrelated_blocks_give_a_wider_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autocorrelated blocks carry less information than the same blocks in random order."""
    monkeypatch.setattr(compare_stats, "WANDER", 0.0)
    slow = [wandering(8, 0.03, seed) for seed in range(6)]
    shuffled = [[float(v) for v in np.random.default_rng(9).permutation(run)] for run in slow]
    ordered, independent = (
        np.mean([half_width(a, b) for a, b in zip(runs[::2], runs[1::2], strict=True)])
        for runs in (slow, shuffled)
    )
    assert ordered > 1.5 * independent


def test_slow_movement_inside_a_run_is_expected_between_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow movement within a run widens the interval of a single pair; independent noise does not."""
    steady, moving = [blocks(10, seed=s) for s in (1, 2)], [wandering(8, 0.03, s) for s in (1, 2)]
    with_it = [half_width(*pair) for pair in (steady, moving)]
    monkeypatch.setattr(compare_stats, "WANDER", 0.0)
    without = [half_width(*pair) for pair in (steady, moving)]
    assert with_it[0] < 1.15 * without[0]
    assert with_it[1] > 1.15 * without[1]


def test_scattered_runs_widen_the_interval() -> None:
    """Three runs per side that scatter by 5 % cannot show a change of 5 %; three that agree can."""
    scattered = [blocks(v, 0.005, seed=i) for i, v in enumerate((9.5, 10.0, 10.5))]
    agreed = [blocks(10, 0.005, seed=i) for i in range(3)]
    wide = spread(scattered, [[1.05 * v for v in run] for run in scattered])
    narrow = spread(agreed, [[1.05 * v for v in run] for run in agreed])
    assert wide is not None
    assert narrow is not None
    assert wide.low_share < 0 < narrow.low_share
    assert wide.run_noise_share > 5 * narrow.run_noise_share


@pytest.mark.parametrize("bad", [[], [10.0] * (MIN_BLOCKS - 1), [10.0] * 10 + [0.0], [-1.0] * 10])
def test_too_few_or_impossible_blocks_give_no_interval(bad: list[float]) -> None:
    """Too few blocks, a zero or a negative time give no interval."""
    assert spread([bad], [blocks(10)]) is None
    assert spread([blocks(10)], [bad]) is None


def test_large_change_is_certain_despite_noise() -> None:
    """Fifty times as fast is faster, even if the short run has few and uneven blocks."""
    short = [1.0, 1.1, 4.0, 1.2, 0.9, 0.8, 3.0, 2.9, 3.1, 1.0, 1.1, 1.0]
    found = spread([blocks(62, 0.002, 12)], [short])
    assert found is not None
    assert found.high_share < -0.8


def test_extreme_values_stay_finite() -> None:
    """The largest and smallest numbers that a file can hold do not overflow."""
    found = spread([[1e-300] * 6], [[1e18, 1e-300] * 3])
    assert found is not None
    assert np.isfinite([found.low_share, found.high_share, found.delta_share]).all()


def test_no_false_alarm_and_slowdown_of_five_percent_is_found() -> None:
    """A small calibration: no alarm in 60 quiet A/A pairs, and at least 28 of 30 slowdowns of 5 % found."""
    from traceml.compare.verdict import NOISE_FLOOR, decide

    def change(slowdown: float, seed: int) -> str:
        random = np.random.default_rng(seed)
        offsets = random.normal(0, 0.004, 2)
        a = blocks(10 * (1 + offsets[0]), 0.015, seed=2 * seed)
        b = blocks(10 * (1 + offsets[1]) * (1 + slowdown), 0.015, seed=2 * seed + 1)
        found = spread([a], [b])
        assert found is not None
        return decide(found.delta_share, found.low_share, found.high_share, NOISE_FLOOR)

    assert [change(0.0, seed) for seed in range(60)].count("same") == 60
    assert [change(0.05, seed) for seed in range(30)].count("worsened") >= 28
