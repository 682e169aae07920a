"""Patterns in step times: a lasting shift, slow steps, and the period at which slow steps occur."""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from traceml.analyze.window import RARE_SHARE, Floats

SLOW_FACTOR: Final = 1.5
FEWEST_SLOW: Final = 3
FAR_FACTOR: Final = 2.0
MOST_SLOW: Final = 0.3
"""More than what is rare (`RARE_SHARE`), so that no number of slow steps is neither jitter nor usual."""
STALL_FACTOR: Final = 3.0
STALL_LEAST_NS: Final = 50e6
"""A stall takes at least this many times the median step, and this much longer: any machine has hiccups."""
STRETCH_SHARE: Final = 0.8
PERIOD_SHARE: Final = 0.8
LOOSE_FROM: Final = 5
"""From this period on, a distance that is one step off still agrees with it."""
RUN_SHARE: Final = 0.1
"""A shorter part of a series is noise between two runs."""
SHIFT_SHARE: Final = 0.15
SHIFT_SIDE_STEPS: Final = 20
RAMP_BLOCKS: Final = 50
RAMP_LEAST_SHARE: Final = 0.2
"""A rise over a shorter part of the steps is sudden."""
RAMP_LEAVES: Final = 0.3
"""A line may leave at most this much of the variation unexplained."""
BURST_SHARE: Final = 0.15
JUMP_FACTOR: Final = 4.0
MOST_JUMPED: Final = 0.4
"""A rise between neighbouring blocks of this many times the usual rise is a jump. A ramp has few jumps."""
CERTAIN_GAIN: Final = 12.0
"""How much better the line must fit, in squared standard errors."""


@dataclass(frozen=True, slots=True)
class Ramp:
    """Step time rose little by little."""

    first: int  # index of the step where it begins to rise
    last: int  # index of the last step, or of the one where it stops rising
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Shift:
    """Step time rose and stayed up."""

    at: int  # index of the first step after the rise, or in the middle of the ramp
    before: float
    after: float
    ramp: Ramp | None = None  # it did not rise at once

    def levels(self, count: int) -> Floats:
        """What each step takes without noise."""
        if self.ramp is None:
            return np.where(np.arange(count) < self.at, self.before, self.after)
        known = (self.ramp.first, self.ramp.last), (self.ramp.start, self.ramp.end)
        return np.interp(np.arange(count), *known)


def find_shift(values: Floats) -> Shift | None:
    """The place where a series rises and stays up, or None. Both sides must be long enough, their medians
    must differ by 15 %, and they must hardly overlap: nine out of ten blocks before the rise are below the
    middle of both levels, nine out of ten after it are above, and so are the last ones. The two sides of a
    ramp may overlap."""
    count = len(values)
    if count < 2 * SHIFT_SIDE_STEPS:
        return None
    blocks, width = _in_blocks(values, 200)
    side = max(SHIFT_SIDE_STEPS // width, 4)
    at = _best_split(blocks, side)
    before, after = blocks[:at], blocks[at:]
    low, high = float(np.median(before)), float(np.median(after))
    if low <= 0 or high < low * (1 + SHIFT_SHARE):
        return None
    border = (low + high) / 2
    tail = after[-max(side // 2, 3) :]
    ramp = _find_ramp(values)
    apart = np.mean(before < border) >= 0.9 and np.mean(after > border) >= 0.9
    if not (apart or ramp) or np.median(tail) < border:
        return None
    return Shift(at * width, low, high, ramp)


def _in_blocks(values: Floats, most: int) -> tuple[Floats, int]:
    """The medians of about this many parts, and the steps of each."""
    width = max(1, len(values) // most)
    return np.median(values[: len(values) // width * width].reshape(-1, width), axis=1), width


def _find_ramp(values: Floats) -> Ramp | None:
    """The line from one level to a higher one, if it is long and without jumps, leaves little to explain, and
    fits far better than a sudden rise at any one place. Some blocks may be bursts of something else."""
    blocks, width = _in_blocks(values, RAMP_BLOCKS)
    count = len(blocks)
    places = np.arange(count)
    first, last = (places[i] for i in np.triu_indices(count, max(1, round(RAMP_LEAST_SHARE * count))))
    shapes = np.clip((places - first[:, None]) / (last - first)[:, None], 0.0, 1.0)
    centred = shapes - shapes.mean(axis=1, keepdims=True)
    rises = centred @ blocks / (centred**2).sum(axis=1)
    off = blocks - blocks.mean() - rises[:, None] * centred  # from the best line of each shape
    best = int(np.argmin(_without_bursts(off**2)))
    kept = np.sort(np.argsort(np.abs(off[best]))[: _kept(count)])
    shape = shapes[best, kept] - shapes[best, kept].mean()
    rise = float(shape @ blocks[kept] / (shape**2).sum())
    start = float(blocks[kept].mean() - rise * shapes[best, kept].mean())
    left = float(_without_bursts(off[best] ** 2))
    levels = (np.where(places < at, *(np.median(p) for p in (blocks[:at], blocks[at:]))) for at in places[1:])
    sudden = min(float(_without_bursts((blocks - level) ** 2)) for level in levels)
    whole = float(_without_bursts((blocks - np.median(blocks)) ** 2))
    usual = max(float(np.median(np.abs(np.diff(blocks[kept])))), rise / (last[best] - first[best]))
    jumps = blocks[kept][2:] - blocks[kept][:-2]  # a jump may be in the middle of a block
    jumped = float(np.maximum(jumps - JUMP_FACTOR * usual, 0.0).sum()) / 2
    is_one = left * (1 + CERTAIN_GAIN / count) < sudden and left <= RAMP_LEAVES * whole
    if not is_one or start <= 0 or rise < SHIFT_SHARE * start or jumped > MOST_JUMPED * rise:
        return None
    return Ramp(int(first[best]) * width, int(last[best] + 1) * width - 1, start, start + rise)


def _kept(count: int) -> int:
    return math.ceil((1 - BURST_SHARE) * count)


def _without_bursts(squares: Floats) -> Floats:
    """The sum along the last axis without the largest ones."""
    count = _kept(squares.shape[-1])
    found: Floats = np.partition(squares, count - 1, axis=-1)[..., :count].sum(axis=-1)
    return found


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
    """Indices of steps that took 1.5 times the median step; none if they are too few or no minority. If many
    steps are that slow, as on a busy machine, those of the size that causes most of the loss, if hardly any
    other step comes near them, or they are regular."""
    slow = np.flatnonzero(values > SLOW_FACTOR * np.median(values)) if len(values) else np.zeros(0, np.int64)
    if len(slow) > RARE_SHARE * len(values):
        excess = values - np.median(values)
        slow = dominant_slow_steps(slow, excess[slow])
        others = np.delete(excess, slow)
        is_apart = len(others) and excess[slow].min() >= FAR_FACTOR * np.percentile(others, 95)
        slow = slow if is_apart or find_period(slow) is not None else slow[:0]
    return slow if FEWEST_SLOW <= len(slow) <= MOST_SLOW * len(values) else slow[:0]


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
    least = max(FEWEST_SLOW, math.ceil(STRETCH_SHARE * len(indices)))
    for most in range(len(indices), least - 1, -max(1, len(indices) // 100)):
        lengths = indices[most - 1 :] - indices[: len(indices) - most + 1] + 1
        at = int(np.argmin(lengths))
        if lengths[at] * STRETCH_SHARE <= most:
            return int(indices[at]), int(indices[at + most - 1])
    return None


def find_runs(values: NDArray[np.intp], most: int) -> list[tuple[int, int, int]]:
    """The stretches (value, first, last) of a series that keeps one value for long and then another; empty
    unless there are 2 to `most`."""
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
    last at least 80 % of the steps that it calls for are there. A burst of slow steps has no period. A few
    slow steps with another cause do not hide one: steps without a neighbour one period away are left out."""
    if len(indices) < FEWEST_SLOW + 1:
        return None
    values, counts = np.unique(np.diff(indices), return_counts=True)
    period = int(values[np.argmax(counts)])
    called_for = (indices[-1] - indices[0]) / max(period, 1)
    loose = max(period >= LOOSE_FROM, period // 20)
    follows = [np.searchsorted(indices, indices + sign * period - loose) for sign in (-1, 1)]
    ends = [np.searchsorted(indices, indices + sign * period + loose, "right") for sign in (-1, 1)]
    in_rhythm = indices[(follows[0] < ends[0]) | (follows[1] < ends[1])]
    if len(in_rhythm) >= PERIOD_SHARE * len(indices):
        indices = in_rhythm
    distances = np.diff(indices)
    near = np.abs(distances - period) <= loose
    if period <= 1 or np.mean(near) < PERIOD_SHARE:
        return None
    return int(np.median(distances[near])) if len(distances) >= PERIOD_SHARE * called_for else None
