"""Numbers of the summary: per-rank means, then average, median rank, worst rank and spread."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from traceml.analyze.window import WAIT, Window, middle
from traceml.schema import catalog as c
from traceml.schema.summary import Finding, MetricStat, RankValue

Floats = NDArray[np.float64]

MOST_FOR_SPREAD: Final = 100_000
"""Percentiles of more values than this are those of an even choice of them."""


def number(value: float) -> float | None:
    """A float for the summary: NaN and infinities were not measured."""
    return float(value) if math.isfinite(value) else None


class Table:
    """Metrics of some members (ranks or nodes) over (member, step or sample): means are taken once.

    `values` has each metric's array, NaN where it was not measured, and what to multiply it with.
    """

    def __init__(self, members: tuple[int, ...], values: dict[str, tuple[Floats, float]]) -> None:
        self.members = members
        self._values = values
        self.means = {key: row_means(array) * scale for key, (array, scale) in values.items()}

    def stats(self, smaller_is_worse: tuple[str, ...] = ()) -> dict[str, MetricStat]:
        """Each metric's statistics."""
        return {k: self._stat(k, k in smaller_is_worse) for k in self._values}

    def _stat(self, key: str, smaller_is_worse: bool) -> MetricStat:
        values, scale = self._values[key]
        return stat(self.members, values, smaller_is_worse, scale, self.means[key])

    def of_members(self, chosen: Sequence[int]) -> dict[int, dict[str, float | None]]:
        """The means of these members, to the nanosecond: thousands of ranks make a long file."""
        place = {member: i for i, member in enumerate(self.members)}
        there = [member for member in chosen if member in place]
        at = [place[member] for member in there]
        columns = [numbers(np.round(means[at], 6)) for means in self.means.values()]
        rows = zip(*columns, strict=True) if columns else iter(())
        return {r: dict(zip(self.means, row, strict=True)) for r, row in zip(there, rows, strict=True)}


def stat(
    ranks: tuple[int, ...],
    values: Floats,
    smaller_is_worse: bool = False,
    scale: float = 1.0,
    means: Floats | None = None,
) -> MetricStat:
    """Statistics of one metric over (rank, step or sample). The median and the worst are real ranks'."""
    means = row_means(values) * scale if means is None else means
    known = np.flatnonzero(~np.isnan(means))
    if not len(known):
        return MetricStat()
    order = known[np.lexsort((np.asarray(ranks)[known], means[known]))]
    median = int(order[(len(order) - 1) // 2])
    worst = int(order[0] if smaller_is_worse else order[-1])
    p5, p95 = spread(values)
    return MetricStat(
        average=number(float(means[known].mean())),
        median=RankValue(number(float(means[median])), ranks[median]),
        worst=RankValue(number(float(means[worst])), ranks[worst]),
        p5=number(p5 * scale),
        p95=number(p95 * scale),
        skew=float(means[worst] / means[median] - 1) if means[median] else None,
    )


def listed(
    members: Sequence[int], metrics: dict[str, MetricStat], findings: Sequence[Finding], most: int | None
) -> list[int]:
    """The members that a section lists: all of them, or of more than `most` those that anything names."""
    if most is None or len(members) <= most:
        return list(members)
    named = {rank for finding in findings for rank in finding.ranks}
    named.update(rank for s in metrics.values() for rank in (s.median.rank, s.worst.rank) if rank is not None)
    every = -(-len(members) // max(most - len(named), 1))
    return sorted(named.intersection(members).union(members[::every]))


def row_means(values: Floats) -> Floats:
    """Each rank's mean of what it has; NaN for a rank that has nothing."""
    if values.size == 0:
        return np.full(len(values), np.nan)
    means: Floats = values.mean(axis=1)
    if np.isnan(means).any():
        there = ~np.isnan(values)
        counts = there.sum(axis=1)
        sums = np.where(there, values, 0.0).sum(axis=1)
        means = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    return means


def row_peaks(values: Floats) -> Floats:
    """Each rank's maximum of what it has; NaN for a rank that has nothing."""
    peaks: Floats = np.fmax.reduce(values, axis=1)
    return peaks


def spread(values: Floats) -> tuple[float, float]:
    """The 5th and the 95th percentile over all ranks and steps; of very many values, of some of them."""
    low, high = float(np.fmin.reduce(values, axis=None)), float(np.fmax.reduce(values, axis=None))
    if low == high:
        return low, high
    every = values.size // MOST_FOR_SPREAD + 1
    while math.gcd(every, values.shape[1]) > 1:
        every += 1  # so that all places of a step's rhythm are among them
    p5, p95 = np.nanpercentile(values.ravel()[::every], [5, 95])
    return float(p5), float(p95)


def step_time_values(window: Window) -> dict[str, tuple[Floats, float]]:
    """Every step-time metric as (rank, step) and what to multiply it with to get its unit.

    NaN where it was not measured. Rates are the same for all steps of a rank: (rank, 1).
    """
    values = {"step_ms": (window.step_ns, 1e-6)}
    for key in window.keys:
        values[f"{key}_ms"] = (window.plane(key), 1e-6)
    values["compute_ms"] = (window.compute.values, 1e-6)
    values["gc_ms"] = (window.gc_ns, 1e-6)
    values["samples_per_s"] = (_rate(window.samples, window.step_ns), 1e9)
    values["tokens_per_s"] = (_rate(window.tokens, window.step_ns), 1e9)
    order = [m.key for m in c.STEP_TIME_METRICS]
    users = [f"{k}_ms" for k in window.user_keys]
    wait_at = order.index(f"{WAIT}_ms")
    return {k: values[k] for k in (*order[:wait_at], *users, *order[wait_at:])}


def _rate(amount: Floats, step_ns: Floats) -> Floats:
    """Per rank the overall rate: a mean of ratios would favour short steps."""
    if amount.size == 0:
        return amount
    unknown = np.isnan(amount).all(axis=1)
    total = np.nansum(amount, axis=1) if not unknown.all() else np.zeros(len(amount))
    return np.where(unknown, np.nan, total / np.maximum(step_ns.sum(axis=1), 1.0))[:, None]


def step_time_table(window: Window) -> Table:
    """Every step-time metric of every rank in the window."""
    return Table(window.ranks, step_time_values(window))


def step_time_metrics(table: Table) -> dict[str, MetricStat]:
    """`step_time.metrics`."""
    rates = tuple(key for key in table.means if key.endswith("_per_s"))
    found = table.stats(smaller_is_worse=rates)
    return {k: s if k in rates else replace(s, share=_share(table, k)) for k, s in found.items()}


def _share(table: Table, key: str) -> float | None:
    """Of the median rank's step."""
    shares = table.means[key] / table.means["step_ms"]
    return middle(shares) if len(shares) and not np.isnan(shares).any() else None


def numbers(values: Floats) -> list[float | None]:
    """Floats for the summary, None for what was not measured."""
    found: list[float | None] = values.tolist()
    return found if np.isfinite(values).all() else [v if math.isfinite(v) else None for v in values.tolist()]


def blocks(window: Window, most: int = 40, least: int = 20) -> dict[str, object]:
    """Means of step and phases over consecutive blocks, for statistics on autocorrelated steps."""
    count = window.count
    if count == 0:
        return {"steps_per_block": 0, "start_steps": [], "metrics": {}}
    pieces = min(most, max(count // 5, min(count, least)))
    cuts = np.linspace(0, count, pieces + 1).astype(int)
    return {
        "steps_per_block": int(cuts[1] - cuts[0]),
        "start_steps": [int(window.steps[a]) for a in cuts[:-1]],
        "metrics": {k: numbers(_means(t, cuts)) for k, t in window.typical_ms.items()},
    }


def step_series(window: Window, most: int = 300) -> dict[str, object]:
    """Step and phase times for charts: means over buckets of steps, and the slowest step of each."""
    count = window.count
    if count == 0:
        return {"steps": []}
    cuts = np.linspace(0, count, min(most, count) + 1).astype(int)
    series: dict[str, object] = {"steps": window.steps[cuts[:-1]].tolist()}
    for key, values in window.typical_ms.items():
        series[key] = numbers(np.round(_means(values, cuts), 4))
    slowest = np.maximum.reduceat(window.step_ns.max(axis=0), cuts[:-1]) / 1e6
    series["step_ms_max"] = np.round(slowest, 4).tolist()
    return series


def _means(values: Floats, cuts: NDArray[np.int64]) -> Floats:
    """Means of the pieces between the cuts, none of which is empty."""
    means: Floats = np.add.reduceat(values, cuts[:-1]) / np.diff(cuts)
    return means
