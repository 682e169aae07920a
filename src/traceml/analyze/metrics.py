"""Numbers of the summary: each rank's mean, then the average, median rank, worst rank and spread."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from traceml.analyze.window import WAIT, Floats, Window, median_low
from traceml.schema import catalog as c
from traceml.schema.summary import Blocks, Column, Finding, MetricStat, RankValue

MOST_FOR_SPREAD: Final = 100_000
"""Percentiles of more values than this are taken over an even selection of them."""


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
        return {key: row_peaks(array) * scale for key, (array, scale) in self._values.items()}

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


def row_peaks(values: Floats) -> Floats:
    """Each rank's maximum; NaN for a rank that has no values."""
    peaks: Floats = np.fmax.reduce(values, axis=1)
    return peaks


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
    """Every step-time metric of every rank in the window."""
    users = [f"{k}_ms" for k in window.user_keys]
    values = {f"{key}_ms": (window.plane(key), 1e-6) for key in window.keys}
    values["step_ms"] = (window.step_ns, 1e-6)
    values["compute_ms"] = (window.compute.values, 1e-6)
    values["gc_ms"] = (window.gc_ns, 1e-6)
    values["samples_per_s"] = (_rate(window.samples, window.step_ns), 1e9)
    values["tokens_per_s"] = (_rate(window.tokens, window.step_ns), 1e9)
    order = [m.key for m in c.STEP_TIME_METRICS]
    wait_at = order.index(f"{WAIT}_ms")
    return Table(window.ranks, {k: values[k] for k in (*order[:wait_at], *users, *order[wait_at:])})


def _rate(amount: Floats, step_ns: Floats) -> Floats:
    """The overall rate of each rank, (rank, 1): a mean over steps would favour short steps."""
    if amount.size == 0:
        return amount
    unknown = np.isnan(amount).all(axis=1)
    total = np.nansum(amount, axis=1) if not unknown.all() else np.zeros(len(amount))
    return np.where(unknown, np.nan, total / np.maximum(step_ns.sum(axis=1), 1.0))[:, None]


def step_time_metrics(table: Table) -> dict[str, MetricStat]:
    """`step_time.metrics`."""
    rates = tuple(key for key in table.means if key.endswith("_per_s"))
    found = table.stats(smaller_is_worse=rates)
    return {
        k: replace(s, total=_total(table, k)) if k in rates else replace(s, share=_share(table, k))
        for k, s in found.items()
    }


def _total(table: Table, key: str) -> float | None:
    """The rate of all ranks together; None unless it is known for each."""
    means = table.means[key]
    return number(float(means.sum())) if len(means) else None


def _share(table: Table, key: str) -> float | None:
    """The median rank's share of step time."""
    shares = table.means[key] / table.means["step_ms"]
    return median_low(shares) if len(shares) and not np.isnan(shares).any() else None


def blocks(window: Window, most: int = 40, least: int = 20) -> Blocks:
    """Means of step and phases over consecutive blocks, for statistics on autocorrelated steps."""
    if window.count == 0:
        return Blocks()
    pieces = min(most, max(window.count // 5, min(window.count, least)))
    cuts = np.linspace(0, window.count, pieces + 1).astype(int)
    return Blocks(
        steps_per_block=int(cuts[1] - cuts[0]),
        start_steps=window.steps[cuts[:-1]].tolist(),
        metrics={k: numbers(_means(t, cuts)) for k, t in window.typical_ms.items()},
    )


def step_series(window: Window, most: int = 300) -> dict[str, Column]:
    """Step and phase times for charts: means over buckets of steps, and the slowest step of each bucket."""
    if window.count == 0:
        return {"steps": []}
    cuts = np.linspace(0, window.count, min(most, window.count) + 1).astype(int)
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
