"""Patterns in step times: a lasting shift, slow steps, and the period at which slow steps occur."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from traceml.analyze.window import RARE_SHARE, Floats

SLOW_FACTOR: Final = 1.5
FEWEST_SLOW: Final = 3
STALL_FACTOR: Final = 3.0
STALL_LEAST_NS: Final = 50e6
"""A stall takes at least so many times the median step, and so much longer: any machine has hiccups."""
STRETCH_SHARE: Final = 0.8
PERIOD_SHARE: Final = 0.8
LOOSE_FROM: Final = 5
"""From this period on, a distance that is one step off still agrees with it."""
RUN_SHARE: Final = 0.1
"""A shorter part of a series is noise between two runs."""
SHIFT_SHARE: Final = 0.15
SHIFT_SIDE_STEPS: Final = 20


@dataclass(frozen=True, slots=True)
class Shift:
    """Step time rose and stayed up."""

    at: int  # index of the first step after the rise
    before: float
    after: float


def find_shift(values: Floats) -> Shift | None:
    """The place where a series rises and stays up, or None. Both sides must be long enough, their medians
    must differ by 15 %, and they must hardly overlap: nine out of ten blocks before the rise are below the
    middle of both levels, nine out of ten after it are above, and so are the last ones."""
    count = len(values)
    if count < 2 * SHIFT_SIDE_STEPS:
        return None
    width = max(1, count // 200)
    blocks = np.median(values[: count // width * width].reshape(-1, width), axis=1)
    side = max(SHIFT_SIDE_STEPS // width, 4)
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
    """The split with the smallest sum of squared deviations, with outliers clipped."""
    low, high = np.percentile(blocks, [2, 98])
    clipped = np.clip(blocks, low, high)
    sums, squares = np.cumsum(clipped), np.cumsum(clipped**2)
    at = np.arange(side, len(blocks) - side + 1)
    left = squares[at - 1] - sums[at - 1] ** 2 / at
    rest = len(blocks) - at
    right = (squares[-1] - squares[at - 1]) - (sums[-1] - sums[at - 1]) ** 2 / rest
    return int(at[np.argmin(left + right)])


def slow_steps(values: Floats) -> NDArray[np.int64]:
    """Indices of steps that took 1.5 times the median step; none if they are too few or no minority.

    Where step times vary so much that those are no minority: the dominant ones of them, if they are regular.
    """
    middle = float(np.median(values)) if len(values) else 0.0
    slow = np.flatnonzero(values > SLOW_FACTOR * middle)
    most = RARE_SHARE * len(values)
    if len(slow) > most:
        slow = dominant_slow_steps(slow, values[slow] - middle)
        return slow if len(slow) <= most and find_period(slow) is not None else slow[:0]
    return slow if len(slow) >= FEWEST_SLOW else slow[:0]


def dominant_slow_steps(slow: NDArray[np.int64], excess: Floats) -> NDArray[np.int64]:
    """The slow steps of the size that causes most of the loss; a busy machine adds smaller ones."""
    largest = np.sort(excess)[::-1]
    core = int(np.searchsorted(np.cumsum(largest), largest.sum() / 2))
    found: NDArray[np.int64] = slow[excess >= largest[core] / 2]
    return found


def find_stalls(values: Floats) -> NDArray[np.int64]:
    """The one or two steps that take far longer than any others; more of their size are no single event."""
    extra = values - np.median(values) if len(values) else values
    at = np.flatnonzero((values - extra) * (STALL_FACTOR - 1) < extra)
    at = at[extra[at] >= STALL_LEAST_NS]
    largest = dominant_slow_steps(at, extra[at]) if len(at) else at
    return largest if len(largest) < FEWEST_SLOW else largest[:0]


def find_stretch(indices: NDArray[np.int64]) -> tuple[int, int] | None:
    """(first, last) of the longest stretch with nearly all of these steps and hardly any others, or None."""
    for most in range(len(indices), max(FEWEST_SLOW, math.ceil(STRETCH_SHARE * len(indices))) - 1, -1):
        lengths = indices[most - 1 :] - indices[: len(indices) - most + 1] + 1
        at = int(np.argmin(lengths))
        if lengths[at] * STRETCH_SHARE <= most:
            return int(indices[at]), int(indices[at + most - 1])
    return None


def find_runs(values: NDArray[np.intp], most: int) -> list[tuple[int, int, int]]:
    """(value, first, last) of a series that keeps one value for long and then another, at most so many."""
    if not len(values):
        return []
    begins = np.flatnonzero(np.diff(values, prepend=values[0] - 1))
    ends = np.append(begins[1:], len(values)) - 1
    found: list[tuple[int, int, int]] = []
    for first, last in zip(begins.tolist(), ends.tolist(), strict=True):
        value, is_same = int(values[first]), bool(found) and found[-1][0] == values[first]
        if is_same:
            found[-1] = (value, found[-1][1], last)
        elif last - first + 1 >= RUN_SHARE * len(values):
            found.append((value, first, last))
    kept = sum(int(np.sum(values[first : last + 1] == value)) for value, first, last in found)
    return found if 2 <= len(found) <= most and kept >= STRETCH_SHARE * len(values) else []


def find_period(indices: NDArray[np.int64]) -> int | None:
    """The period of these steps: at least 80 % of the distances between them agree, and from the first to the
    last at least 80 % of the steps that it calls for are there. A burst of slow steps has no period."""
    if len(indices) < FEWEST_SLOW + 1:
        return None
    distances = np.diff(indices)
    values, counts = np.unique(distances, return_counts=True)
    period = int(values[np.argmax(counts)])
    near = np.abs(distances - period) <= max(period >= LOOSE_FROM, period // 20)
    if period <= 1 or np.mean(near) < PERIOD_SHARE:
        return None
    called_for = (indices[-1] - indices[0]) / period
    return int(np.median(distances[near])) if len(distances) >= PERIOD_SHARE * called_for else None
