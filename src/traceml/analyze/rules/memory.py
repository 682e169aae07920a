"""Step-memory diagnoses: pressure, imbalance and growth; on resident memory if there is no accelerator."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from traceml.analyze.rules.rule import Measured, Rule, Thresholds, informational
from traceml.analyze.window import Floats, median_low, median_over_ranks
from traceml.schema import fmt
from traceml.schema.summary import Finding

TREND_STEPS: Final = 50
TREND_SAMPLES: Final = 20
SLICES: Final = 10
SMALL_IMBALANCE_BYTES: Final = 256e6
CERTAIN: Final = {"least_bytes": 64e6, "least_share": 0.05, "pairs": SLICES // 2, "steady": 0.85}
EARLY: Final = {"least_bytes": 32e6, "least_share": 0.02, "pairs": SLICES // 2 - 1, "steady": 0.6}


@dataclass(frozen=True)
class MemoryView:
    """Peak memory per step: of the device if every rank has it, otherwise of the processes."""

    ranks: tuple[int, ...]
    steps: NDArray[np.int64]
    memory: str  # device | rss
    values: dict[str, Floats]  # by metric, (rank, step); NaN where it was not read
    capacities: Floats | None = None  # of each rank's device or machine; None unless all are known
    workers: dict[int, Floats] = field(default_factory=dict)  # bytes of each rank's loader workers, by sample

    @property
    def peak(self) -> Floats:
        return self.values["peak_allocated_bytes" if self.memory == "device" else "rss_bytes"]

    @property
    def reserved(self) -> Floats:
        """What is taken from the capacity."""
        return self.values["peak_reserved_bytes"] if self.memory == "device" else self.peak

    @cached_property
    def typical_peak(self) -> Floats:
        """For each step the median over ranks."""
        return median_over_ranks(self.peak)

    @property
    def noun(self) -> str:
        return "device memory" if self.memory == "device" else "resident memory of the process"


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
    return _creep(view, CERTAIN)


def creep_early(view: MemoryView) -> Measured | None:
    """The early form of memory creep: a rise that is not yet large or steady enough to be certain."""
    return _creep(view, EARLY)


def _creep(view: MemoryView, limits: dict[str, float]) -> Measured | None:
    if len(view.steps) < TREND_STEPS:
        return None
    at = int(np.argmax(view.peak[:, -len(view.steps) // SLICES :].mean(axis=1)))
    worst, typical = _growth(view.peak[at], **limits), _growth(view.typical_peak, **limits)
    if worst is None or typical is None:
        return None
    found, per_step = _grown(view.ranks[at], worst, len(view.steps), 1)
    capacity = None if view.capacities is None else float(view.capacities[at])
    left = None if capacity is None else max(0.0, (capacity - sum(worst)) / per_step)
    full = f"; at this rate, memory is full after {fmt.count(left)} more steps" if left else ""
    found.words.update(full=full, noun=view.noun)
    found.evidence.update(steps_until_full=left, memory=view.memory)
    return found


def worker_creep(view: MemoryView) -> Measured | None:
    """The memory of a rank's loader workers grows through the whole window, and is still growing."""
    long = {rank: held for rank, held in view.workers.items() if len(held) >= TREND_SAMPLES}
    grown = {rank: growth for rank, held in long.items() if (growth := _growth(held, **CERTAIN))}
    if not grown or len(view.steps) < TREND_STEPS:
        return None
    rank = max(grown, key=lambda r: grown[r][1])
    found, _ = _grown(rank, grown[rank], int(view.steps[-1] - view.steps[0]) + 1, 100)
    found.evidence.update(ranks_growing=len(grown))
    return found


def _grown(rank: int, growth: tuple[float, float], steps: int, per: int) -> tuple[Measured, float]:
    """The finding about this growth over `steps` steps, with its rate per `per` steps, and the bytes per
    step."""
    start, rise = growth
    apart = steps * (SLICES - 1) / SLICES  # from the middle of the first slice to that of the last one
    per_step = rise / apart
    sizes = {"start": start, "end": start + rise, "rate": per * per_step}
    words = {key: fmt.size(value) for key, value in sizes.items()}
    found = Measured(
        level=1.0,
        score=min(1.0, rise / max(start, 1.0)),
        words={"rank": f"r{rank}", "steps": fmt.count(round(apart)), **words},
        ranks=(rank,),
        evidence={"rise_bytes": rise, "bytes_per_step": per_step},
    )
    return found, per_step


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
