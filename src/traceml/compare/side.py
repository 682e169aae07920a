"""One side of a comparison: the runs of A, or the runs of B, and how a number is read from them."""

import statistics
from collections.abc import Sequence

from traceml.schema.summary import Section, Summary

Runs = Sequence[Summary]
"""One run, or several runs of the same thing."""


def average(run: Summary, key: str, section: str = "step_time") -> float | None:
    """A metric's average over the ranks of a run."""
    of: Section = getattr(run, section)
    return of.metrics[key].average if key in of.metrics else None


def mean(values: Sequence[float | None]) -> float | None:
    """The mean over the runs of a side. A value that is missing in one run is missing for the side."""
    known = known_values(values)
    return statistics.fmean(known) if known and len(known) == len(values) else None


def known_values(values: Sequence[float | None]) -> list[float]:
    """The values that were measured."""
    return [v for v in values if v is not None]


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
