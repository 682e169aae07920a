"""Numbers of the summary: per-rank means, then average, median rank, worst rank and spread."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from traceml.analyze.window import WAIT, Window, middle
from traceml.schema import catalog as c
from traceml.schema.summary import MetricStat, RankValue

Floats = NDArray[np.float64]


def number(value: float) -> float | None:
    """A float for the summary: NaN and infinities were not measured."""
    return float(value) if math.isfinite(value) else None


def stat(ranks: tuple[int, ...], values: Floats, smaller_is_worse: bool = False) -> MetricStat:
    """Statistics of one metric over (rank, step or sample). The median and the worst are real ranks'."""
    if values.size == 0 or np.isnan(values).all():
        return MetricStat()
    known = [i for i in range(len(ranks)) if not np.isnan(values[i]).all()]
    means = {ranks[i]: float(np.nanmean(values[i])) for i in known}
    order = sorted(means, key=lambda r: (means[r], r))
    median = order[(len(order) - 1) // 2]
    worst = order[0] if smaller_is_worse else order[-1]
    p5, p95 = np.nanpercentile(values, [5, 95])
    skew = means[worst] / means[median] - 1 if means[median] else None
    return MetricStat(
        average=number(float(np.mean(list(means.values())))),
        median=RankValue(number(means[median]), median),
        worst=RankValue(number(means[worst]), worst),
        p5=number(float(p5)),
        p95=number(float(p95)),
        skew=skew,
    )


def step_time_values(window: Window) -> dict[str, Floats]:
    """Every step-time metric as (rank, step), in the metric's unit; NaN where not measured."""
    values: dict[str, Floats] = {"step_ms": window.step_ns / 1e6}
    for at, key in enumerate(window.keys):
        values[f"{key}_ms"] = window.phases[:, :, at] / 1e6
    compute = [window.keys.index(c.PHASES[i].key) for i in c.COMPUTE_PHASES]
    values["compute_ms"] = window.phases[:, :, compute].sum(axis=2) / 1e6
    values["gc_ms"] = window.gc_ns / 1e6
    seconds = window.step_ns / 1e9
    values["samples_per_s"] = _rate(window.samples, seconds)
    values["tokens_per_s"] = _rate(window.tokens, seconds)
    order = [m.key for m in c.STEP_TIME_METRICS]
    users = [f"{k}_ms" for k in window.user_keys]
    wait_at = order.index(f"{WAIT}_ms")
    return {k: values[k] for k in (*order[:wait_at], *users, *order[wait_at:])}


def _rate(amount: Floats, seconds: Floats) -> Floats:
    """Per rank the overall rate, repeated a step: a mean of ratios would favour short steps."""
    if amount.size == 0:
        return amount
    total = np.nansum(amount, axis=1) / np.maximum(seconds.sum(axis=1), 1e-12)
    unknown = np.isnan(amount).all(axis=1)
    per_rank = np.where(unknown, np.nan, total)
    return np.repeat(per_rank[:, None], amount.shape[1], axis=1)


def step_time_metrics(window: Window) -> dict[str, MetricStat]:
    """`step_time.metrics`."""
    found = {}
    for key, values in step_time_values(window).items():
        if key.endswith("_per_s"):
            found[key] = stat(window.ranks, values, smaller_is_worse=True)
        else:
            found[key] = replace(stat(window.ranks, values), share=_share(window, values))
    return found


def _share(window: Window, values_ms: Floats) -> float | None:
    if not window.count or np.isnan(values_ms).any():
        return None
    return middle(values_ms.sum(axis=1) * 1e6 / window.step_ns.sum(axis=1))


def rank_means(ranks: tuple[int, ...], values: dict[str, Floats]) -> dict[int, dict[str, float | None]]:
    """Each rank's own mean of each metric."""
    found: dict[int, dict[str, float | None]] = {}
    for i, rank in enumerate(ranks):
        found[rank] = {
            key: None if np.isnan(v[i]).all() else number(float(np.nanmean(v[i])))
            for key, v in values.items()
        }
    return found


def blocks(window: Window, most: int = 40, least: int = 20) -> dict[str, object]:
    """Means of step and phases over consecutive blocks, for statistics on autocorrelated steps."""
    count = window.count
    if count == 0:
        return {"steps_per_block": 0, "start_steps": [], "metrics": {}}
    pieces = min(most, max(count // 5, min(count, least)))
    cuts = np.linspace(0, count, pieces + 1).astype(int)
    metrics = {}
    for key, values in step_time_values(window).items():
        if key.endswith("_per_s") or np.isnan(values).all():
            continue
        typical = np.median(values, axis=0)
        metrics[key] = [number(float(typical[a:b].mean())) for a, b in pairwise(cuts)]
    return {
        "steps_per_block": int(cuts[1] - cuts[0]),
        "start_steps": [int(window.steps[a]) for a in cuts[:-1]],
        "metrics": metrics,
    }


def step_series(window: Window, most: int = 300) -> dict[str, object]:
    """Step and phase times for charts: means over buckets of steps, and the slowest step of each."""
    count = window.count
    if count == 0:
        return {"steps": []}
    cuts = np.linspace(0, count, min(most, count) + 1).astype(int)
    pairs = list(pairwise(cuts))
    series: dict[str, object] = {"steps": [int(window.steps[a]) for a, _ in pairs]}
    for key, values in step_time_values(window).items():
        if key.endswith("_per_s") or np.isnan(values).all():
            continue
        typical = np.median(values, axis=0)
        series[key] = [number(round(float(typical[a:b].mean()), 4)) for a, b in pairs]
    slowest = window.step_ns.max(axis=0) / 1e6
    series["step_ms_max"] = [round(float(slowest[a:b].max()), 4) for a, b in pairs]
    return series
