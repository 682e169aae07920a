"""How busy the machine was with other work, and how much that may have slowed a run down.

Judged from the CPU time of the machine and of the training, and from the phases.
"""

import statistics
from typing import Final

from traceml.compare.side import Runs, average, known_values
from traceml.schema.summary import Summary

FULL_PERCENT: Final = 90.0
CONTENDED_SHARE: Final = 0.10
MOST_WAITING: Final = 3.0
"""With a fair scheduler, a process on a busy machine waits at most about this many times its compute time."""
UNTOUCHED: Final = 0.8
SMALL_COMPUTE: Final = 0.05
"""Compute must take at least this share of a step before it can show whether the machine was busy."""
SHARED_CORE: Final = 0.5
"""What a busy neighbour on the same physical core may cost a rank that computes all the time."""
SMALLEST_FACTOR: Final = 0.01


def contention(run: Summary) -> float:
    """The share of a full machine that other processes used. 0 if a core was free, or if unknown."""
    percent, own, cores = average(run, "cpu_percent", "system"), own_cores(run), run.environment.cpu_count
    if percent is None or own is None or not cores or cores < 1:
        return 0.0
    if max(percent, run.system.metrics["cpu_percent"].p95 or 0.0) < FULL_PERCENT:
        return 0.0
    others = percent / 100 - own / (cores * max(run.run.nodes, 1))
    return min(others, 1.0) if others >= CONTENDED_SHARE else 0.0


def own_cores(run: Summary) -> float | None:
    """How many cores the training's own processes kept busy."""
    percents = [rank.metrics.get("cpu_percent") for rank in run.process.ranks.values()]
    known = known_values(percents)
    return sum(known) / 100 if known and len(known) == len(percents) else None


def share_without_neighbours(runs: Runs, others: Runs) -> float:
    """How short the steps of these runs might be without other work on the machine; 1 is no shorter.

    The same work needs the same CPU time. A run that got less CPU than the other side may therefore be longer
    by that ratio. A run that hardly computes has hardly waited for a core either. Sharing a physical core
    costs extra, and no counter shows it.
    """
    return statistics.fmean(_factor(run, others) for run in runs)


def _factor(run: Summary, others: Runs) -> float:
    own, usual = own_cores(run), _mean_of_known([own_cores(other) for other in others])
    if not contention(run) or own is None:
        return 1.0
    ranks = max(run.run.world_size, 1)
    got = max(min(own / usual, 1.0) if usual else 1.0, 1 - MOST_WAITING * own / ranks)
    busy = min(max(own, usual or 0.0) / ranks, 1.0)
    return min(max(got * (1 - SHARED_CORE * busy), _smallest_factor(run, others)), 1.0)


def _smallest_factor(run: Summary, others: Runs) -> float:
    """Other work slows compute as much as anything else, so compute that did not grow rules it out.

    Loader workers are the exception: they can starve while the training thread computes undisturbed.
    """
    own, usual = _compute_ms(run), _mean_of_known([_compute_ms(other) for other in others])
    if run.step_time.window.loader_workers != 0 or not own or not usual:
        return SMALLEST_FACTOR
    return max(UNTOUCHED * usual / own, SMALLEST_FACTOR)


def _compute_ms(run: Summary) -> float | None:
    compute, step = average(run, "compute_ms"), average(run, "step_ms")
    return compute if compute and step and compute >= SMALL_COMPUTE * step else None


def _mean_of_known(values: list[float | None]) -> float | None:
    known = known_values(values)
    return statistics.fmean(known) if known else None
