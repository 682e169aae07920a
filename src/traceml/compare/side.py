"""One side of a comparison: how a number is read from its runs, and how busy their machines were."""

import statistics
from collections.abc import Callable, Sequence
from typing import Final

from traceml.schema.summary import Section, Summary

Runs = Sequence[Summary]
"""One run, or several runs of the same thing."""
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


def average(run: Summary, key: str, section: str = "step_time") -> float | None:
    """A metric's average over the ranks of a run."""
    of: Section = getattr(run, section)
    return of.metrics[key].average if key in of.metrics else None


def mean(values: Sequence[float | None]) -> float | None:
    """The mean over the runs of a side. A value that is missing in one run is missing for the side."""
    known = [v for v in values if v is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None


def means(a: Runs, b: Runs, of: Callable[[Summary], float | None]) -> tuple[float | None, float | None]:
    """The mean of each side."""
    return mean([of(run) for run in a]), mean([of(run) for run in b])


def work_per_step(run: Summary, rate: str) -> float | None:
    """Samples or tokens that all ranks together process in a step."""
    per_s, step_ms = average(run, rate), average(run, "step_ms")
    if not per_s or not step_ms:
        return None
    return per_s * step_ms / 1000 * max(run.run.world_size, 1)


def steps_of(run: Summary) -> int:
    """How many steps the numbers of a run are based on."""
    return run.step_time.window.num_steps or run.run.steps.analyzed or 0


def memory_kind(run: Summary) -> str | None:
    """Which memory was measured: device or rss."""
    return run.step_memory.window.memory


def contention(run: Summary) -> float:
    """The share of a full machine that other processes used, judged from the CPU time of both it and the
    training. 0 if a core was free, or if unknown."""
    percent, own, cores = average(run, "cpu_percent", "system"), _own_cores(run), run.environment.cpu_count
    if percent is None or own is None or not cores or cores < 1:
        return 0.0
    if max(percent, run.system.metrics["cpu_percent"].p95 or 0.0) < FULL_PERCENT:
        return 0.0
    others = percent / 100 - own / (cores * max(run.run.nodes, 1))
    return min(others, 1.0) if others >= CONTENDED_SHARE else 0.0


def share_alone(runs: Runs, others: Runs) -> float:
    """How short the steps of these runs might be without other work on the machine; 1 is no shorter.

    The same work needs the same CPU time. A run that got less CPU than the other side may therefore be longer
    by that ratio. A run that hardly computes has hardly waited for a core either. Sharing a physical core
    costs extra, and no counter shows it.
    """
    return statistics.fmean(_factor(run, others) for run in runs)


def _factor(run: Summary, others: Runs) -> float:
    own, usual = _own_cores(run), _usual(others, _own_cores)
    if not contention(run) or own is None:
        return 1.0
    ranks = max(run.run.world_size, 1)
    got = max(min(own / usual, 1.0) if usual else 1.0, 1 - MOST_WAITING * own / ranks)
    busy = min(max(own, usual or 0.0) / ranks, 1.0)
    # Other work slows compute as much as anything else, so compute that did not grow rules it out. Loader
    # workers are the exception: they can starve while the training thread computes undisturbed.
    smallest, own_ms, usual_ms = SMALLEST_FACTOR, _compute_ms(run), _usual(others, _compute_ms)
    if run.step_time.window.loader_workers == 0 and own_ms and usual_ms:
        smallest = max(UNTOUCHED * usual_ms / own_ms, SMALLEST_FACTOR)
    return min(max(got * (1 - SHARED_CORE * busy), smallest), 1.0)


def _own_cores(run: Summary) -> float | None:
    """How many cores the training's own processes kept busy."""
    percents = [rank.metrics.get("cpu_percent") for rank in run.process.ranks.values()]
    known = [percent for percent in percents if percent is not None]
    return sum(known) / 100 if known and len(known) == len(percents) else None


def _compute_ms(run: Summary) -> float | None:
    compute, step = average(run, "compute_ms"), average(run, "step_ms")
    return compute if compute and step and compute >= SMALL_COMPUTE * step else None


def _usual(runs: Runs, of: Callable[[Summary], float | None]) -> float | None:
    """The mean over the runs that have a value."""
    return mean([value for run in runs if (value := of(run)) is not None])
