"""How far apart are two sides, and how sure is that: one resampling that holds every source of
noise.

Steps of a run are autocorrelated, so they are never resampled one by one. The units are the
summary's block means, drawn in stretches of consecutive blocks (circular moving-block bootstrap),
as long as the blocks' own autocorrelation asks for. Two identical runs also differ by more than
either shows inside: that part is an allowance for a single run a side, and is measured when
several runs are given. docs/compare.md has the calibration.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

CONFIDENCE: Final = 0.99
DRAWS: Final = 4000
SEED: Final = 20_240_607
"""The same two files always give the same interval."""
RUN_TO_RUN: Final = 0.008
"""Allowed for between identical runs, as a share of step time (one standard deviation of one
run).
"""
WANDER: Final = 1.0
"""How much of the slow movement inside a run (its variance) is expected between runs, too."""
ENOUGH_FREE: Final = 4
"""From three runs a side on, the runs themselves show all noise there is; what a single run shows
inside is no longer needed.
"""
LARGEST_LOG: Final = 20.0
LEAST_BLOCKS: Final = 5
FEWEST_FREE: Final = 2.0
FEWEST_STRETCHES: Final = 4
"""However long the autocorrelation, a run is cut into at least this many stretches."""


@dataclass(frozen=True, slots=True)
class Spread:
    """What the resampling found. Shares of A's value: 0.05 is five per cent more in B."""

    a_value: float
    b_value: float
    delta_share: float
    low_share: float
    high_share: float
    a_blocks: int
    b_blocks: int
    run_noise_share: float  # between runs of one side: measured, or the allowance

    @property
    def half_width_share(self) -> float:
        """How small a change this comparison can see."""
        return (self.high_share - self.low_share) / 2


def typical(blocks: Sequence[float]) -> float:
    """The typical step time of a run: the median of its block means."""
    return float(np.median(np.asarray(blocks, dtype=float)))


def spread(a_runs: Sequence[Sequence[float]], b_runs: Sequence[Sequence[float]]) -> Spread | None:
    """The change from A to B with its interval; None when a run has too few blocks to say."""
    a = [np.asarray(run, dtype=float) for run in a_runs]
    b = [np.asarray(run, dtype=float) for run in b_runs]
    if not a or not b or any(len(run) < LEAST_BLOCKS or (run <= 0).any() for run in (*a, *b)):
        return None
    random = np.random.default_rng(SEED)
    logs_a, logs_b = _medians(a), _medians(b)
    delta = float(logs_b.mean() - logs_a.mean())
    free = len(a) + len(b) - 2
    run_noise = _between(logs_a, logs_b) if free else RUN_TO_RUN
    width = math.sqrt(1 / len(a) + 1 / len(b))
    draws = random.normal(0.0, RUN_TO_RUN * width, DRAWS)
    if free >= ENOUGH_FREE:
        draws += random.standard_t(free, DRAWS) * run_noise * width
    else:
        wobbles_a, wobbles_b = ([_wobble(run, random) for run in side] for side in (a, b))
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
        a_blocks=sum(map(len, a)),
        b_blocks=sum(map(len, b)),
        run_noise_share=run_noise,
    )


def _medians(runs: list[Floats]) -> Floats:
    return np.array([math.log(float(np.median(run))) for run in runs])


def _wobble(blocks: Floats, random: np.random.Generator) -> Floats:
    """Draws of (log median of a resampled run) - (log median of the run), with the tails of few
    stretches.
    """
    count = len(blocks)
    wanted = _stretch(blocks)
    length = min(wanted, max(count // FEWEST_STRETCHES, 1))
    pieces = -(-count // length)
    starts = random.integers(0, count, size=(DRAWS, pieces))
    at = (starts[:, :, None] + np.arange(length)) % count
    drawn = blocks[at.reshape(DRAWS, pieces * length)[:, :count]]
    middle = math.log(float(np.median(blocks)))
    wobble = np.log(np.median(drawn, axis=1)) - middle
    free = max(count / wanted - 1, FEWEST_FREE)
    unseen = math.sqrt(wanted / length)  # a movement longer than a stretch shows only in part
    wobble = wobble * unseen * np.sqrt(free / random.chisquare(free, DRAWS))
    # However heavy its tails, no median leaves the blocks that it is one of.
    nearest, furthest = np.log(np.min(blocks)) - middle, np.log(np.max(blocks)) - middle
    return np.asarray(np.clip(wobble, nearest, furthest))


def _stretch(blocks: Floats) -> int:
    """How many consecutive blocks are drawn together: three times their autocorrelation
    time, which so few blocks always show too short.
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
    """Variance of what moves slowly inside these runs: a machine that wanders within a run does so
    between runs as well. Independent noise has none of it, and a burst is cut off.
    """
    found = []
    for run in runs:
        log = np.log(run)
        middle = float(np.median(log))
        reach = 2 * 1.4826 * float(np.median(np.abs(log - middle)))
        calm = np.clip(log, middle - reach, middle + reach) - middle
        found.append(max(float(np.mean(calm[:-1] * calm[1:])), 0.0))
    return WANDER * float(np.mean(found))


def _between(a: Floats, b: Floats) -> float:
    """How much one run differs from the next of its side: the pooled standard deviation."""
    squares = float(((a - a.mean()) ** 2).sum() + ((b - b.mean()) ** 2).sum())
    return math.sqrt(squares / (len(a) + len(b) - 2))


def _change(log: float) -> float:
    """A difference of logarithms as a relative change, within what can be written down."""
    return math.expm1(min(max(log, -LARGEST_LOG), LARGEST_LOG))
