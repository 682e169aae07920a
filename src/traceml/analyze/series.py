"""What charts are drawn from: columns over steps or seconds, block means, a heatmap of ranks by steps."""

from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from traceml.analyze.metrics import number, numbers
from traceml.analyze.rules.memory import MemoryView
from traceml.analyze.window import Floats, Window
from traceml.schema import catalog as c
from traceml.schema.summary import Blocks, Column, Heatmap

MOST_POINTS: Final = 300
MOST_BLOCKS: Final = 40
FEWEST_BLOCKS: Final = 20
MOST_ROWS: Final = 256
MOST_LIVE_ROWS: Final = 128
FEWEST_BINS: Final = 60
MOST_BINS: Final = 120
MANY_CELLS: Final = 4_000
"""With more cells than this, the bins are as few as allowed: the summary must stay small."""


def blocks(window: Window) -> Blocks:
    """Means of step and phases over consecutive blocks, for statistics on autocorrelated steps."""
    if window.count == 0:
        return Blocks()
    pieces = min(MOST_BLOCKS, max(window.count // 5, min(window.count, FEWEST_BLOCKS)))
    cuts = np.linspace(0, window.count, pieces + 1).astype(int)
    return Blocks(
        steps_per_block=int(cuts[1] - cuts[0]),
        start_steps=window.steps[cuts[:-1]].tolist(),
        metrics={k: numbers(_means(t, cuts)) for k, t in window.typical_ms.items()},
    )


def step_series(window: Window) -> dict[str, Column]:
    """Step and phase times for charts: means over buckets of steps, and the slowest step of each bucket."""
    if window.count == 0:
        return {"steps": []}
    cuts = np.linspace(0, window.count, min(MOST_POINTS, window.count) + 1).astype(int)
    series: dict[str, Column] = {"steps": window.steps[cuts[:-1]].tolist()}
    for key, values in window.typical_ms.items():
        series[key] = [*numbers(np.round(_means(values, cuts), 4))]
    slowest = np.maximum.reduceat(window.step_ns.max(axis=0), cuts[:-1]) / 1e6
    series["step_ms_max"] = np.round(slowest, 4).tolist()
    return series


def _means(values: Floats, cuts: NDArray[np.int64]) -> Floats:
    """Means of the pieces between the cuts, none of which is empty."""
    means: Floats = np.add.reduceat(values, cuts[:-1]) / np.diff(cuts)
    return means


def memory_series(view: MemoryView | None) -> dict[str, Column]:
    """Peak memory for charts, at evenly spread steps."""
    if view is None:
        return {"steps": []}
    at = _evenly_spread(len(view.steps))
    return {
        "steps": view.steps[at].tolist(),
        "worst_bytes": view.peak.max(axis=0)[at].tolist(),
        "median_bytes": view.typical_peak[at].tolist(),
    }


def _evenly_spread(count: int) -> NDArray[np.int64]:
    return np.unique(np.linspace(0, count - 1, min(MOST_POINTS, count)).astype(int))


def gauge_series(
    rows: NDArray[np.void] | None, begin_ns: int | None, metrics: tuple[c.Metric, ...]
) -> dict[str, Column]:
    """Gauges for charts, at evenly spread times, in seconds since the run began. Of several processes at the
    same time, the highest value."""
    if rows is None or not len(rows):
        return {"seconds": []}
    rows = rows[np.argsort(rows["time_ns"], kind="stable")]
    times, first = np.unique(rows["time_ns"], return_index=True)
    at = _evenly_spread(len(times))
    origin = begin_ns if begin_ns is not None else int(times[0])
    series: dict[str, Column] = {"seconds": [round((int(t) - origin) / 1e9, 2) for t in times[at]]}
    for metric in metrics:
        if not np.isnan(rows[metric.key]).all():
            highest = np.fmax.reduceat(rows[metric.key], first)
            series[metric.key] = [number(float(v)) for v in highest[at]]
    return series


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
    # A picture shows no more than three digits of the smallest value.
    decimals = max(0, 2 - int(np.floor(np.log10(max(float(means.min()), 1e-3)))))
    overall = window.own_work.values.mean(axis=1)
    worst = [first + int(np.argmax(overall[first:end])) for first, end in pairwise(rows)]
    return Heatmap(
        first_ranks=[window.ranks[at] for at in rows[:-1]],
        worst_ranks=[window.ranks[at] for at in worst],
        steps=window.steps[bins[:-1]].tolist(),
        own_ms=np.round(np.maximum.reduceat(means, rows[:-1], axis=0), decimals).tolist(),
    )
