"""Numbers of the summary: each rank's mean, then the average, median rank, worst rank and spread; and what
charts are drawn from."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from traceml.analyze.rules.memory import MemoryView
from traceml.analyze.window import Floats, Window, median_low
from traceml.schema import catalog as c
from traceml.schema.summary import Blocks, Column, Finding, Heatmap, MetricStat, RankValue

KNOWN_SHARE: Final = 0.5
MOST_FOR_SPREAD: Final = 100_000
"""Percentiles of more values than this are taken over an even selection of them."""
MOST_POINTS: Final = 300
MOST_BLOCKS: Final = 40
FEWEST_BLOCKS: Final = 20
MOST_ROWS: Final = 256
MOST_LIVE_ROWS: Final = 128
FEWEST_BINS: Final = 60
MOST_BINS: Final = 120
MANY_CELLS: Final = 4_000
"""With more cells than this, the bins are as few as allowed: the summary must stay small."""


def number(value: float) -> float | None:
    """A float for the summary: None for NaN and infinities, which were not measured."""
    return float(value) if math.isfinite(value) else None


def numbers(values: Floats) -> list[float | None]:
    """Floats for the summary: None for what was not measured."""
    return [value if math.isfinite(value) else None for value in values.tolist()]


class Table:
    """Metrics of some members (ranks or nodes): arrays over (member, step or sample) with their scale."""

    def __init__(self, members: tuple[int, ...], values: dict[str, tuple[Floats, float]]) -> None:
        self.members = members
        self._values = values
        self.means = {key: row_means(array) * scale for key, (array, scale) in values.items()}

    def peaks(self) -> dict[str, Floats]:
        """Each member's maximum of each metric."""
        return {key: np.fmax.reduce(a, axis=1) * scale for key, (a, scale) in self._values.items()}

    def stats(self, smaller_is_worse: tuple[str, ...] = ()) -> dict[str, MetricStat]:
        """Each metric's statistics."""
        return {
            key: stat(self.members, values, self.means[key], scale, key in smaller_is_worse)
            for key, (values, scale) in self._values.items()
        }

    def of_members(self, chosen: Sequence[int]) -> dict[int, dict[str, float | None]]:
        """The means of these members, to the nanosecond: thousands of ranks make a long file."""
        place = {member: i for i, member in enumerate(self.members)}
        there = [member for member in chosen if member in place]
        at = [place[member] for member in there]
        columns = [numbers(np.round(means[at], 6)) for means in self.means.values()]
        rows = zip(there, *columns, strict=True)
        return {member: dict(zip(self.means, row, strict=True)) for member, *row in rows}


def stat(
    ranks: tuple[int, ...],
    values: Floats,
    of_ranks: Floats,
    scale: float = 1.0,
    smaller_is_worse: bool = False,
) -> MetricStat:
    """Statistics of one metric over (rank, step or sample), and of each rank's mean or peak of it, which is
    scaled already. The median and the worst belong to real ranks."""
    known = np.flatnonzero(~np.isnan(of_ranks))
    if not len(known):
        return MetricStat()
    order = known[np.lexsort((np.asarray(ranks)[known], of_ranks[known]))]
    median = int(order[(len(order) - 1) // 2])
    worst = int(order[0] if smaller_is_worse else order[-1])
    middle, most = float(of_ranks[median]), float(of_ranks[worst])
    p5, p95 = spread(values)
    return MetricStat(
        average=number(float(of_ranks[known].mean())),
        median=RankValue(number(middle), ranks[median]),
        worst=RankValue(number(most), ranks[worst]),
        p5=number(p5 * scale),
        p95=number(p95 * scale),
        skew=number(most / middle - 1) if middle else None,
    )


def members_to_list(
    members: Sequence[int], metrics: dict[str, MetricStat], findings: Sequence[Finding], most: int | None
) -> list[int]:
    """All members; of more than `most` those that a finding or a metric names, and an even selection."""
    if most is None or len(members) <= most:
        return list(members)
    named = {rank for finding in findings for rank in finding.ranks}
    named.update(rank for s in metrics.values() for rank in (s.median.rank, s.worst.rank) if rank is not None)
    every = -(-len(members) // max(most - len(named), 1))
    return sorted(named.intersection(members).union(members[::every]))


def row_means(values: Floats) -> Floats:
    """Each rank's mean of its values; NaN for a rank that has none."""
    if values.size == 0:
        return np.full(len(values), np.nan)
    if not any(values.strides):  # a single number for all
        return np.repeat(values[:1, 0], len(values))
    means: Floats = values.mean(axis=1)
    if np.isnan(means).any():
        counts = (~np.isnan(values)).sum(axis=1)
        means = np.where(counts > 0, np.nansum(values, axis=1) / np.maximum(counts, 1), np.nan)
    return means


def spread(values: Floats) -> tuple[float, float]:
    """The 5th and the 95th percentile over all ranks and steps."""
    every = values.size // MOST_FOR_SPREAD + 1
    while math.gcd(every, values.shape[1]) > 1:
        every += 1  # so that slow steps at regular intervals are neither all selected nor all skipped
    chosen = values.ravel()[::every]
    low, high = float(np.fmin.reduce(chosen)), float(np.fmax.reduce(chosen))
    if low == high:
        return low, high
    p5, p95 = np.nanpercentile(chosen, [5, 95])
    return float(p5), float(p95)


def step_time_table(window: Window) -> Table:
    """Every step-time metric of every rank in the window; user phases come before wait."""
    times = {"step": window.step_ns, **{key: window.plane(key) for key in window.keys}}
    times |= {"compute": window.compute.values, "gc": window.gc_ns}
    rates = {"samples": window.samples, "tokens": window.tokens}
    values = {f"{key}_ms": (plane, 1e-6) for key, plane in times.items()}
    values |= {f"{key}_per_s": (_rate(amount, window.step_ns), 1e9) for key, amount in rates.items()}
    return Table(window.ranks, values)


def _rate(amount: Floats, step_ns: Floats) -> Floats:
    """The overall rate of each rank, (rank, 1): a mean over steps would favour short steps. It is unknown if
    most steps have no amount: itertools.cycle keeps the batches that the loader gave once."""
    if amount.size == 0:
        return amount
    unknown = np.count_nonzero(amount > 0, axis=1) < KNOWN_SHARE * amount.shape[1]
    total = np.nansum(amount, axis=1) if not unknown.all() else np.zeros(len(amount))
    return np.where(unknown, np.nan, total / np.maximum(step_ns.sum(axis=1), 1.0))[:, None]


def step_time_metrics(table: Table) -> dict[str, MetricStat]:
    """`step_time.metrics`, with the median rank's share of step time; of rates, with the total of all ranks,
    which is known only if each rank's is."""
    rates = tuple(key for key in table.means if key.endswith("_per_s"))
    found = {}
    for key, stats in table.stats(smaller_is_worse=rates).items():
        means = table.means[key]
        shares = means / table.means["step_ms"]
        is_known = len(means) > 0 and not np.isnan(shares).any()
        if key in rates:
            found[key] = replace(stats, total=number(float(means.sum())) if len(means) else None)
        else:
            found[key] = replace(stats, share=median_low(shares) if is_known else None)
    return found


# ---- for charts ----------------------------------------------------------------------------------


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
