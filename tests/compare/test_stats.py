"""The interval: deterministic, calibrated, honest about autocorrelation and about several runs."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compare.making import blocks
from traceml.analyze import compare_stats
from traceml.analyze.compare_stats import LEAST_BLOCKS, spread, typical


def wandering(length: float, sd: float, seed: int, count: int = 40) -> list[float]:
    """Block means that wander over about `length` blocks."""
    random = np.random.default_rng(seed)
    keep = np.exp(-1 / length)
    log = [random.normal(0, sd)]
    for _ in range(count - 1):
        log.append(keep * log[-1] + random.normal(0, sd * np.sqrt(1 - keep**2)))
    return [float(v) for v in 10 * np.exp(log)]


def test_the_same_input_gives_the_same_interval() -> None:
    """Comparing the same two files twice gives the same numbers to the last digit."""
    assert spread([blocks(10)], [blocks(11, seed=1)]) == spread([blocks(10)], [blocks(11, seed=1)])


def test_the_interval_holds_the_estimate_and_a_true_change() -> None:
    """The estimate lies inside its interval, and so does the change that was put in."""
    found = spread([blocks(10)], [blocks(11, seed=1)])
    assert found is not None
    assert found.low_share < found.delta_share < found.high_share
    assert found.low_share < 0.10 < found.high_share


def test_a_bursty_block_does_not_move_the_typical_step() -> None:
    """One block ten times as slow does not change the median."""
    quiet = blocks(10)
    assert typical([*quiet[:-1], 100.0]) == pytest.approx(typical(quiet), rel=0.01)


def test_autocorrelated_blocks_are_drawn_in_long_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that wander say less than independent ones of the same spread."""
    monkeypatch.setattr(compare_stats, "WANDER", 0.0)
    slow = [wandering(8, 0.03, seed) for seed in range(6)]
    widths = [
        found.half_width_share
        for a, b in zip(slow[::2], slow[1::2], strict=True)
        if (found := spread([a], [b])) is not None
    ]
    shuffled = [[float(v) for v in np.random.default_rng(9).permutation(run)] for run in slow]
    free = [
        found.half_width_share
        for a, b in zip(shuffled[::2], shuffled[1::2], strict=True)
        if (found := spread([a], [b])) is not None
    ]
    assert np.mean(widths) > 1.5 * np.mean(free)


def test_slow_movement_inside_a_run_is_expected_between_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A machine that wanders within a run widens the interval of a single pair; steady noise does
    not.
    """

    def width(a: list[float], b: list[float]) -> float:
        found = spread([a], [b])
        assert found is not None
        return found.half_width_share

    steady, moving = [blocks(10, seed=s) for s in (1, 2)], [wandering(8, 0.03, s) for s in (1, 2)]
    with_it = [width(*pair) for pair in (steady, moving)]
    monkeypatch.setattr(compare_stats, "WANDER", 0.0)
    without = [width(*pair) for pair in (steady, moving)]
    assert with_it[0] < 1.15 * without[0]
    assert with_it[1] > 1.15 * without[1]


def test_runs_that_differ_widen_the_interval_of_several() -> None:
    """Three runs a side that scatter by 5 % cannot show a change of 5 %; three that agree can."""
    scattered = [blocks(v, 0.005, seed=i) for i, v in enumerate((9.5, 10.0, 10.5))]
    agreed = [blocks(10, 0.005, seed=i) for i in range(3)]
    wide = spread(scattered, [[1.05 * v for v in run] for run in scattered])
    narrow = spread(agreed, [[1.05 * v for v in run] for run in agreed])
    assert wide is not None
    assert narrow is not None
    assert wide.low_share < 0 < narrow.low_share
    assert wide.run_noise_share > 5 * narrow.run_noise_share


@pytest.mark.parametrize("bad", [[], [10.0] * (LEAST_BLOCKS - 1), [10.0] * 10 + [0.0], [-1.0] * 10])
def test_too_little_or_impossible_data_gives_no_interval(bad: list[float]) -> None:
    """Few blocks, a zero or a negative time: no interval rather than a wrong one."""
    assert spread([bad], [blocks(10)]) is None
    assert spread([blocks(10)], [bad]) is None


def test_a_change_beyond_all_noise_is_sure() -> None:
    """Fifty times faster is faster, however few and uneven the blocks of the short run are."""
    short = [1.0, 1.1, 4.0, 1.2, 0.9, 0.8, 3.0, 2.9, 3.1, 1.0, 1.1, 1.0]
    found = spread([blocks(62, 0.002, 12)], [short])
    assert found is not None
    assert found.high_share < -0.8


def test_extreme_values_stay_finite() -> None:
    """The largest and smallest numbers that a file may hold do not overflow."""
    found = spread([[1e-300] * 6], [[1e18, 1e-300] * 3])
    assert found is not None
    assert np.isfinite([found.low_share, found.high_share, found.delta_share]).all()


def test_false_alarms_are_rare_and_five_per_cent_is_caught() -> None:
    """A small copy of the calibration: 60 quiet A/A pairs without an alarm, 30 slowdowns of 5 %
    all but 2 seen.
    """
    from traceml.analyze.compare_verdict import NOISE_FLOOR, decide

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
