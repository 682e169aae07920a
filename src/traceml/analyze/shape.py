"""The shape of step time over a run: where it shifted for good, which steps were slow, in what rhythm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from traceml.analyze.window import RARE_SHARE, Floats

SLOW_FACTOR: Final = 1.5
FEWEST_SLOW: Final = 3
SHIFT_SHARE: Final = 0.15
SHIFT_SIDE_STEPS: Final = 20


@dataclass(frozen=True, slots=True)
class Shift:
    """Step time changed for good."""

    at: int  # index of the first slow step
    before: float
    after: float


def find_shift(values: Floats) -> Shift | None:
    """The one place where a series steps up and stays up, or None.

    Both sides must be long enough, the medians must differ by 15 %, and the sides must hardly overlap: nine
    of ten blocks after the change lie above nine of ten before it, the last ones included.
    """
    count = len(values)
    if count < 2 * SHIFT_SIDE_STEPS:
        return None
    width = max(1, count // 200)
    blocks = np.median(values[: count // width * width].reshape(-1, width), axis=1)
    side = max(SHIFT_SIDE_STEPS // width, 4)
    if len(blocks) < 2 * side:
        return None
    at = _best_split(blocks, side)
    before, after = blocks[:at], blocks[at:]
    low, high = float(np.median(before)), float(np.median(after))
    if low <= 0 or high < low * (1 + SHIFT_SHARE):
        return None
    border = (low + high) / 2
    tail = after[-max(side // 2, 3) :]
    apart = np.mean(before < border) >= 0.9 and np.mean(after > border) >= 0.9
    if not apart or np.median(tail) < border:
        return None
    return Shift(at=at * width, before=low, after=high)


def _best_split(blocks: Floats, side: int) -> int:
    """The split that leaves the least absolute deviation, on values clipped against outliers."""
    low, high = np.percentile(blocks, [2, 98])
    clipped = np.clip(blocks, low, high)
    sums, squares = np.cumsum(clipped), np.cumsum(clipped**2)
    at = np.arange(side, len(blocks) - side + 1)
    left = squares[at - 1] - sums[at - 1] ** 2 / at
    rest = len(blocks) - at
    right = (squares[-1] - squares[at - 1]) - (sums[-1] - sums[at - 1]) ** 2 / rest
    return int(at[np.argmin(left + right)])


def slow_steps(values: Floats) -> NDArray[np.int64]:
    """Indices of steps that took half as long again as the median step; none if they are no minority."""
    if len(values) == 0:
        return np.zeros(0, dtype=np.int64)
    slow = np.flatnonzero(values > SLOW_FACTOR * np.median(values))
    if len(slow) < FEWEST_SLOW or len(slow) > RARE_SHARE * len(values):
        return np.zeros(0, dtype=np.int64)
    return slow


def main_ones(slow: NDArray[np.int64], excess: Floats) -> NDArray[np.int64]:
    """Those of the size that makes up most of the loss: a busy machine adds small ones of its own."""
    largest = np.sort(excess)[::-1]
    core = int(np.searchsorted(np.cumsum(largest), largest.sum() / 2))
    found: NDArray[np.int64] = slow[excess >= largest[core] / 2]
    return found


def find_period(indices: NDArray[np.int64]) -> int | None:
    """The rhythm of these steps, if at least 80 % of the distances agree."""
    if len(indices) < FEWEST_SLOW + 1:
        return None
    distances = np.diff(indices)
    values, counts = np.unique(distances, return_counts=True)
    best = int(np.argmax(counts))
    period = int(values[best])
    near = np.abs(distances - period) <= max(1, period // 20)
    if period <= 1 or np.mean(near) < 0.8:
        return None
    return int(np.median(distances[near]))
