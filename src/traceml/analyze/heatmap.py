"""Ranks by steps, small enough for a picture: neighbouring ranks and steps are put together."""

from itertools import pairwise
from typing import Final

import numpy as np

from traceml.analyze.window import Floats, Window
from traceml.schema.summary import Heatmap

MOST_ROWS: Final = 256
MOST_LIVE_ROWS: Final = 128
FEWEST_BINS: Final = 60
MOST_BINS: Final = 120
MANY_CELLS: Final = 4_000
"""With more cells than this, the bins are as few as allowed: the summary must stay small."""


def heatmap(window: Window, final: bool) -> Heatmap:
    """Own work of each rank over the window. Of ranks that wait for each other all steps take the same time,
    so step time itself would not show the slow one."""
    if not window.count:
        return Heatmap()
    count, most = len(window.ranks), MOST_ROWS if final else MOST_LIVE_ROWS
    rows = np.linspace(0, count, min(most, count) + 1).astype(int)
    fitting = min(max(MANY_CELLS // (len(rows) - 1), FEWEST_BINS), MOST_BINS)
    bins = np.linspace(0, window.count, min(fitting, window.count) + 1).astype(int)
    means = np.add.reduceat(window.own_work.values, bins[:-1], axis=1) / np.diff(bins) / 1e6
    overall = window.own_work.values.mean(axis=1)
    worst = [first + int(np.argmax(overall[first:end])) for first, end in pairwise(rows)]
    return Heatmap(
        first_ranks=[window.ranks[at] for at in rows[:-1]],
        worst_ranks=[window.ranks[at] for at in worst],
        steps=window.steps[bins[:-1]].tolist(),
        own_ms=np.round(np.maximum.reduceat(means, rows[:-1], axis=0), _digits(means)).tolist(),
    )


def _digits(values: Floats) -> int:
    """How many decimals leave three digits of the smallest value: a picture shows no more."""
    return max(0, 2 - int(np.floor(np.log10(max(float(values.min()), 1e-3)))))
