"""How far apart the two sides are, and how certain that is: one resampling that covers every source of noise.

The steps of a run are autocorrelated, so they are never resampled one by one. The units are the block means
of the summary, drawn in stretches of consecutive blocks (circular moving-block bootstrap); their own
autocorrelation decides how long a stretch is. Two identical runs also differ by more than either run shows
inside. For one run per side a fixed allowance covers that; with several runs it is measured.
docs/compare.md has the calibration.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

CONFIDENCE: Final = 0.99
DRAWS: Final = 4000
SEED: Final = 20_240_607
"""The same two files always give the same interval."""
RUN_TO_RUN: Final = 0.008
"""Allowance for the difference between identical runs: one standard deviation, as a share of step time."""
WANDER: Final = 1.0
"""How much of the slow movement inside a run (its variance) is expected between runs, too."""
ENOUGH_DEGREES: Final = 4
"""Degrees of freedom (three runs per side) from which the runs themselves show all the noise."""
MIN_DEGREES: Final = 2.0
MIN_BLOCKS: Final = 5
MIN_STRETCHES: Final = 4
"""A run is cut into at least this many stretches, however long its autocorrelation is."""
LARGEST_LOG: Final = 20.0


@dataclass(frozen=True, slots=True)
class Spread:
    """What the resampling found. Changes are shares of A's value: 0.05 means that B is 5 % more."""

    a_value: float
    b_value: float
    delta_share: float
    low_share: float
    high_share: float
    run_noise_share: float  # between runs of one side: measured, or the allowance


Center = Callable[..., Any]
"""`np.median` of the block means is the typical step of a run, `np.mean` also counts its slow stretches."""


def spread(
    a_runs: Sequence[Sequence[float]], b_runs: Sequence[Sequence[float]], center: Center = np.median
) -> Spread | None:
    """The change from A to B with its interval; None if a run has too few blocks."""
    a = [np.asarray(run, dtype=float) for run in a_runs]
    b = [np.asarray(run, dtype=float) for run in b_runs]
    if not a or not b or any(len(run) < MIN_BLOCKS or (run <= 0).any() for run in (*a, *b)):
        return None
    random = np.random.default_rng(SEED)
    logs_a, logs_b = (np.log([center(run) for run in side]) for side in (a, b))
    delta = float(logs_b.mean() - logs_a.mean())
    free = len(a) + len(b) - 2
    # How much the runs of one side differ from each other: the pooled standard deviation.
    squares = float(((logs_a - logs_a.mean()) ** 2).sum() + ((logs_b - logs_b.mean()) ** 2).sum())
    run_noise = math.sqrt(squares / free) if free else RUN_TO_RUN
    width = math.sqrt(1 / len(a) + 1 / len(b))
    draws = random.normal(0.0, RUN_TO_RUN * width, DRAWS)
    if free >= ENOUGH_DEGREES:
        draws += random.standard_t(free, DRAWS) * run_noise * width
    else:
        wobbles_a, wobbles_b = ([_wobble(run, center, random) for run in side] for side in (a, b))
        draws += np.mean(wobbles_b, axis=0) - np.mean(wobbles_a, axis=0)
        draws += random.normal(0.0, math.sqrt(_wander(a) / len(a) + _wander(b) / len(b)), DRAWS)
        known = RUN_TO_RUN**2 + float(np.mean([np.var(w) for w in (*wobbles_a, *wobbles_b)]))
        if run_noise**2 > known:
            draws += random.standard_t(free, DRAWS) * math.sqrt(run_noise**2 - known) * width
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(draws, [tail, 100 - tail])
    return Spread(
        a_value=math.exp(float(logs_a.mean())),
        b_value=math.exp(float(logs_b.mean())),
        delta_share=_change(delta),
        low_share=_change(delta + float(low)),
        high_share=_change(delta + float(high)),
        run_noise_share=run_noise,
    )


def _wobble(blocks: Floats, center: Center, random: np.random.Generator) -> Floats:
    """Draws of (log center of a resampled run) - (log center of the run). Few stretches mean heavy tails."""
    count = len(blocks)
    wanted = _stretch(blocks)
    length = min(wanted, max(count // MIN_STRETCHES, 1))
    pieces = -(-count // length)
    starts = random.integers(0, count, size=(DRAWS, pieces))
    at = (starts[:, :, None] + np.arange(length)) % count
    drawn = blocks[at.reshape(DRAWS, pieces * length)[:, :count]]
    middle = math.log(center(blocks))
    wobble = np.log(center(drawn, axis=1)) - middle
    free = max(count / wanted - 1, MIN_DEGREES)
    unseen = math.sqrt(wanted / length)  # a movement longer than a stretch shows only partly
    wobble = wobble * unseen * np.sqrt(free / random.chisquare(free, DRAWS))
    # The center always lies within the range of the blocks.
    nearest, furthest = np.log(np.min(blocks)) - middle, np.log(np.max(blocks)) - middle
    return np.asarray(np.clip(wobble, nearest, furthest))


def _stretch(blocks: Floats) -> int:
    """How many consecutive blocks are drawn together.

    Three times their autocorrelation time, because so few blocks always underestimate it.
    """
    count = len(blocks)
    ranks = np.argsort(np.argsort(blocks)).astype(float)
    ranks -= ranks.mean()
    power = float((ranks**2).sum())
    time = 1.0
    for lag in range(1, count // 2):
        correlation = float((ranks[:-lag] * ranks[lag:]).sum()) / power
        if correlation <= 0:
            break
        time += 2 * correlation
    shortest = math.ceil(count ** (1 / 3))
    return int(max(shortest, math.ceil(3 * time)))


def _wander(runs: list[Floats]) -> float:
    """The variance of slow movement inside these runs.

    A machine whose speed wanders within a run also wanders between runs. Independent noise does not count,
    and bursts are clipped.
    """
    found = []
    for run in runs:
        log = np.log(run)
        middle = float(np.median(log))
        reach = 2 * 1.4826 * float(np.median(np.abs(log - middle)))
        calm = np.clip(log, middle - reach, middle + reach) - middle
        found.append(max(float(np.mean(calm[:-1] * calm[1:])), 0.0))
    return WANDER * float(np.mean(found))


def _change(log: float) -> float:
    """A difference of logarithms as a relative change, clipped so that it stays finite."""
    return math.expm1(min(max(log, -LARGEST_LOG), LARGEST_LOG))
