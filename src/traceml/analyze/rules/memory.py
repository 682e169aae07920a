"""Step-memory diagnoses: pressure, imbalance and growth; on resident memory if there is no accelerator."""

from typing import Final

import numpy as np

from traceml.analyze.resource_views import MemoryView
from traceml.analyze.rules.rule import Measured, Rule, Thresholds, informational
from traceml.analyze.window import Floats, median_low
from traceml.schema import fmt
from traceml.schema.summary import Finding

TREND_STEPS: Final = 50
TREND_SAMPLES: Final = 20
SLICES: Final = 10
SMALL_IMBALANCE_BYTES: Final = 256e6


def high_pressure(view: MemoryView) -> Measured | None:
    """Memory use is close to the capacity. Never guessed if the capacity is unknown."""
    if view.capacities is None:
        return None
    per_rank = view.reserved.max(axis=1)
    at = int(np.argmax(per_rank / view.capacities))
    peak, capacity = float(per_rank[at]), float(view.capacities[at])
    return Measured(
        level=peak / capacity,
        score=min(peak / capacity, 1.0),
        words={"rank": f"r{view.ranks[at]}", "noun": view.noun},
        ranks=(view.ranks[at],),
        evidence={"peak_bytes": peak, "capacity_bytes": capacity},
    )


def imbalance(view: MemoryView) -> Measured | None:
    """One rank needs clearly more memory than the typical rank."""
    if len(view.ranks) < 2:
        return None
    peaks = view.peak.max(axis=1)
    at, typical = int(np.argmax(peaks)), median_low(peaks)
    if typical <= 0 or peaks[at] - typical < SMALL_IMBALANCE_BYTES:
        return None
    level = float(peaks[at] / typical - 1)
    return Measured(
        level=level,
        score=min(level, 1.0),
        words={"rank": f"r{view.ranks[at]}", "noun": view.noun},
        ranks=(view.ranks[at],),
        evidence={"worst_bytes": float(peaks[at]), "median_bytes": typical, "skew": level},
    )


def creep_confirmed(view: MemoryView) -> Measured | None:
    """Memory grows through the whole window, on the worst and on the typical rank, and is still growing."""
    return _creep(view, least_bytes=64e6, least_share=0.05, pairs=SLICES // 2, steady=0.85)


def creep_early(view: MemoryView) -> Measured | None:
    """The early form of memory creep: a rise that is not yet large or steady enough to be certain."""
    return _creep(view, least_bytes=32e6, least_share=0.02, pairs=SLICES // 2 - 1, steady=0.6)


def _creep(view: MemoryView, **limits: float) -> Measured | None:
    if len(view.steps) < TREND_STEPS:
        return None
    at = int(np.argmax(view.peak[:, -len(view.steps) // SLICES :].mean(axis=1)))
    worst, typical = _growth(view.peak[at], **limits), _growth(view.typical_peak, **limits)
    if worst is None or typical is None:
        return None
    start, rise = worst
    end, per_step = start + rise, rise / len(view.steps) * SLICES / (SLICES - 1)
    capacity = None if view.capacities is None else float(view.capacities[at])
    left = None if capacity is None else max(0.0, (capacity - end) / per_step)
    return Measured(
        level=1.0,
        score=min(1.0, rise / max(start, 1.0)),
        words={
            "start": fmt.size(start),
            "end": fmt.size(end),
            "steps": fmt.count(len(view.steps)),
            "rate": fmt.size(per_step),
            "full": f"; at this rate, memory is full after {fmt.count(left)} more steps" if left else "",
            "noun": view.noun,
        },
        ranks=(view.ranks[at],),
        evidence={
            "rise_bytes": rise,
            "bytes_per_step": per_step,
            "steps_until_full": left,
            "memory": view.memory,
        },
    )


def worker_creep(view: MemoryView) -> Measured | None:
    """The memory of a rank's loader workers grows through the whole window, and is still growing."""
    grown = {
        rank: found
        for rank, held in view.workers.items()
        if len(held) >= TREND_SAMPLES
        and (found := _growth(held, least_bytes=64e6, least_share=0.05, pairs=SLICES // 2, steady=0.85))
    }
    if not grown or len(view.steps) < TREND_STEPS:
        return None
    rank = max(grown, key=lambda r: grown[r][1])
    start, rise = grown[rank]
    steps = int(view.steps[-1] - view.steps[0]) + 1
    per_step = rise / steps * SLICES / (SLICES - 1)
    return Measured(
        level=1.0,
        score=min(1.0, rise / max(start, 1.0)),
        words={
            "rank": f"r{rank}",
            "start": fmt.size(start),
            "end": fmt.size(start + rise),
            "steps": fmt.count(steps),
            "rate": fmt.size(100 * per_step),
        },
        ranks=(rank,),
        evidence={"rise_bytes": rise, "bytes_per_step": per_step, "ranks_growing": len(grown)},
    )


def _growth(
    series: Floats, least_bytes: float, least_share: float, pairs: float, steady: float
) -> tuple[float, float] | None:
    """(start, rise) of a series whose slices grow from head to tail, unlike a jump or a wave; else None."""
    medians = np.array([np.median(part) for part in np.array_split(series, SLICES)])
    start, rise = float(medians[0]), float(medians[-1] - medians[0])
    small = max(0.0, 0.02 * rise)
    pairs_up = sum(medians[-1 - i] - medians[i] > small for i in range(SLICES // 2))
    not_falling = np.mean(np.diff(medians) >= -small)
    still_rising = medians[-1] - medians[-4] > 0.15 * rise
    enough = rise >= max(least_bytes, least_share * start)
    grows = enough and still_rising and pairs_up >= pairs and not_falling >= steady
    return (start, rise) if grows else None


_CREEP: Final = (
    "The {noun} rose by {rise_bytes} over {steps} steps ({start} to {end}, {rate} per step){full}."
)
RULES: Final[tuple[Rule[MemoryView], ...]] = (
    Rule(
        "HIGH_PRESSURE",
        high_pressure,
        "The peak {noun} on {rank} is {peak_bytes}, {level} of {capacity_bytes}.",
        "Try a smaller batch, fewer activations or less optimizer state before memory runs out.",
        Thresholds(0.92, 0.97, "{} of the capacity"),
    ),
    Rule(
        "IMBALANCE",
        imbalance,
        "{rank} peaks at {worst_bytes}, {level} above the median rank's {median_bytes} ({noun}).",
        "Compare batch shapes, and what else {rank} keeps in memory.",
        Thresholds(0.20, 0.30, "{} above the median rank"),
    ),
    Rule(
        "CREEP_CONFIRMED",
        creep_confirmed,
        _CREEP,
        "Look for state that every step adds to: losses or outputs stored without detach(), caches, lists.",
        Thresholds(1.0, 1.0, of=""),
        status="MEMORY CREEP",
    ),
    Rule(
        "CREEP_EARLY",
        creep_early,
        _CREEP,
        "Watch the next window, and look for tensors or caches that outlive a step.",
        Thresholds(1.0, None, of=""),
        status="MEMORY RISING",
        unless=("CREEP_CONFIRMED",),
    ),
    Rule(
        "WORKER_CREEP",
        worker_creep,
        "The memory of the loader workers of {rank} rose by {rise_bytes} over {steps} steps ({start} to "
        "{end}, {rate} per 100 steps).",
        "Look for what the dataset, collate_fn or transforms keep in the worker processes: caches, lists, "
        "open files.",
        Thresholds(1.0, 1.0, of=""),
        status="WORKER MEMORY CREEP",
    ),
)


def balanced(view: MemoryView) -> Finding:
    """The finding if no rule fires."""
    peak, steps = float(view.peak.max()), len(view.steps)
    note = "" if steps >= TREND_STEPS else f" A trend needs {TREND_STEPS} steps; there are {steps}."
    summary = f"No pressure and no growth in the {view.noun} (peak {fmt.size(peak)}).{note}"
    return informational("BALANCED", summary, "Nothing to do.", peak_bytes=peak, memory=view.memory)
