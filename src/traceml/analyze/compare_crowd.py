"""Was the machine shared: what other processes may have cost a run, told from CPU shares and
phases.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from traceml.schema.summary import Summary

FULL_PERCENT: Final = 90.0
CONTENDED_SHARE: Final = 0.10
MOST_WAITING: Final = 3.0
"""On a fair scheduler a crowded process waits about this many times as long as it computes."""
UNTOUCHED: Final = 0.8
SMALL_COMPUTE: Final = 0.05
"""A compute phase of at least this share of a step is trusted to show a crowd, within the first."""
SHARED_CORE: Final = 0.5
"""What a busy neighbour on the same physical core may cost a rank that computes all the time."""


def contention(summary: Summary) -> float:
    """The share of the machine that others used while it had no core to spare; 0 when it had, or
    when that is unknown.
    """
    system = summary.system.metrics.get("cpu_percent")
    cores, own = summary.environment.get("cpu_count"), own_cores(summary)
    if system is None or system.average is None or own is None:
        return 0.0
    busiest = system.average if system.p95 is None else max(system.average, system.p95)
    if not isinstance(cores, int) or cores < 1 or busiest < FULL_PERCENT:
        return 0.0
    others = system.average / 100 - own / (cores * max(summary.run.nodes, 1))
    return min(others, 1.0) if others >= CONTENDED_SHARE else 0.0


def own_cores(summary: Summary) -> float | None:
    """Cores that the training's own processes kept busy."""
    own = [m.metrics.get("cpu_percent") for m in summary.process.ranks.values()]
    known = [v for v in own if v is not None]
    return sum(known) / 100 if known and len(known) == len(own) else None


def crowded_out(runs: Sequence[Summary], others: Sequence[Summary]) -> float:
    """What the steps of these runs may shrink to without their neighbours: 1 is nothing.

    The same work takes the same CPU time, so a crowded run that got less CPU than the other side
    may be longer by that ratio; one that hardly computes has hardly waited for a core either.
    Sharing a core's hardware costs on top, and shows nowhere.
    """
    usual = _mean([own_cores(run) for run in others])
    factors = []
    for run in runs:
        own = own_cores(run)
        if not contention(run) or own is None:
            factors.append(1.0)
            continue
        ranks = max(run.run.world_size, 1)
        got = max(min(own / usual, 1.0) if usual else 1.0, 1 - MOST_WAITING * own / ranks)
        busy = min(max(own, usual or 0.0) / ranks, 1.0)
        least = _at_least(run, others)
        factors.append(min(max(got * (1 - SHARED_CORE * busy), least), 1.0))
    return sum(factors) / len(factors)


def _at_least(run: Summary, others: Sequence[Summary]) -> float:
    """A crowd slows computing as much as anything else: compute that did not grow rules it out.

    Not so with loader workers, which can starve while the training thread computes undisturbed.
    """
    own, usual = _compute_ms(run), _mean([_compute_ms(other) for other in others])
    if run.step_time.window.get("loader_workers") != 0 or not own or not usual:
        return 0.01
    return max(UNTOUCHED * usual / own, 0.01)


def _compute_ms(summary: Summary) -> float | None:
    stat, step = (summary.step_time.metrics.get(key) for key in ("compute_ms", "step_ms"))
    if stat is None or step is None or not stat.average or not step.average:
        return None
    return stat.average if stat.average >= SMALL_COMPUTE * step.average else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None
