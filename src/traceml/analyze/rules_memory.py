"""Step-memory diagnoses: pressure, imbalance, growth; on resident memory where there is no accelerator."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from traceml.analyze.rule import STEPS_FOR_ANY, STEPS_FOR_CRITICAL, Measured, Rule, ordered
from traceml.analyze.window import median_of_ranks, middle
from traceml.schema import fmt
from traceml.schema.summary import INFO, Finding

Floats = NDArray[np.float64]

TREND_STEPS: Final = 50
SLICES: Final = 10
IMBALANCE_BYTES: Final = 256e6


@dataclass(frozen=True)
class MemoryView:
    """Peak memory a step, (rank, step), of the kind that says most here."""

    ranks: tuple[int, ...]
    steps: NDArray[np.int64]
    peak: Floats
    reserved: Floats
    memory: str  # device | rss
    capacity: float | None  # of the smallest; None unless it is known of every rank
    total_steps: int = 0
    capacities: Floats | None = None  # of each rank: its device, or its machine's memory
    values: dict[str, Floats] = field(default_factory=dict)  # by metric; NaN where it was not read

    @cached_property
    def typical_peak(self) -> Floats:
        """For each step the median over ranks."""
        return median_of_ranks(self.peak)

    def capacity_of(self, at: int) -> float | None:
        """What there is for this rank, by its index."""
        return float(self.capacities[at]) if self.capacities is not None else self.capacity

    @property
    def noun(self) -> str:
        return "device memory" if self.memory == "device" else "resident memory of the process"


@dataclass(frozen=True, slots=True)
class Trend:
    """How a series moved, in slices from head to tail."""

    rise: float
    start: float
    pairs_up: int  # of SLICES // 2 head-versus-tail pairs
    still_rising: bool
    steady: float  # share of neighbouring slices that do not fall


def trend(series: Floats) -> Trend:
    """Head against tail, slice by slice: a single jump or a wave does not look like growth."""
    medians = np.array([np.median(part) for part in np.array_split(series, SLICES)])
    rise = float(medians[-1] - medians[0])
    half = SLICES // 2
    small = max(0.0, 0.02 * rise)
    ups = int(sum(medians[-1 - i] - medians[i] > small for i in range(half)))
    tail = float(medians[-1] - medians[-4])
    falls = np.diff(medians) < -small
    return Trend(rise, float(medians[0]), ups, tail > 0.15 * rise, float(1 - falls.mean()))


def high_pressure(view: MemoryView) -> Measured | None:
    """Memory in use is close to what there is. Never guessed when the capacity is unknown."""
    if view.capacity is None:
        return None
    per_rank = (view.reserved if view.memory == "device" else view.peak).max(axis=1)
    at = int(np.argmax(per_rank / (view.capacities if view.capacities is not None else view.capacity)))
    capacity = view.capacity_of(at) or view.capacity
    level = float(per_rank[at] / capacity)
    return Measured(
        level=level,
        score=min(level, 1.0),
        words={
            "peak": fmt.size(float(per_rank[at])),
            "capacity": fmt.size(capacity),
            "share": fmt.share(level),
            "rank": f"r{view.ranks[at]}",
            "noun": view.noun,
        },
        ranks=(view.ranks[at],),
        evidence={"peak_bytes": float(per_rank[at]), "capacity_bytes": capacity},
    )


def imbalance(view: MemoryView) -> Measured | None:
    """One rank needs clearly more memory than the typical rank."""
    if len(view.ranks) < 2:
        return None
    peaks = view.peak.max(axis=1)
    at, typical = int(np.argmax(peaks)), middle(peaks)
    if typical <= 0 or peaks[at] - typical < IMBALANCE_BYTES:
        return None
    level = float(peaks[at] / typical - 1)
    return Measured(
        level=level,
        score=min(level, 1.0),
        words={
            "rank": f"r{view.ranks[at]}",
            "peak": fmt.size(float(peaks[at])),
            "typical": fmt.size(typical),
            "skew": fmt.share(level),
            "noun": view.noun,
        },
        ranks=(view.ranks[at],),
        evidence={"worst_bytes": float(peaks[at]), "median_bytes": typical, "skew": level},
    )


def _creep(
    view: MemoryView, least_bytes: float, least_share: float, pairs: int, steady: float
) -> Measured | None:
    if len(view.steps) < TREND_STEPS:
        return None
    at = int(np.argmax(view.peak[:, -len(view.steps) // SLICES :].mean(axis=1)))
    worst, typical = trend(view.peak[at]), trend(view.typical_peak)
    for found in (worst, typical):
        enough = found.rise >= max(least_bytes, least_share * found.start)
        if not (enough and found.pairs_up >= pairs and found.still_rising and found.steady >= steady):
            return None
    per_step = worst.rise / len(view.steps) * SLICES / (SLICES - 1)
    capacity = view.capacity_of(at)
    left = max(0.0, (capacity - worst.start - worst.rise) / per_step) if capacity else None
    full = f"; at this rate it is full after {fmt.count(left)} more steps" if left else ""
    return Measured(
        level=1.0,
        score=min(1.0, worst.rise / max(worst.start, 1.0)),
        words={
            "rise": fmt.size(worst.rise),
            "start": fmt.size(worst.start),
            "end": fmt.size(worst.start + worst.rise),
            "steps": fmt.count(len(view.steps)),
            "rate": fmt.size(per_step),
            "full": full,
            "noun": view.noun[:1].upper() + view.noun[1:],
        },
        ranks=(view.ranks[at],),
        evidence={
            "rise_bytes": worst.rise,
            "bytes_per_step": per_step,
            "steps_until_full": left,
            "memory": view.memory,
        },
    )


def creep_confirmed(view: MemoryView) -> Measured | None:
    """Memory grows through the whole window, on the worst and on the typical rank, and is still growing."""
    return _creep(view, 64e6, 0.05, pairs=SLICES // 2, steady=0.85)


def creep_early(view: MemoryView) -> Measured | None:
    """The early form of memory creep: a rise that is not yet large or not yet steady enough to be sure."""
    return _creep(view, 32e6, 0.02, pairs=SLICES // 2 - 1, steady=0.6)


_CREEP = "{noun} rose by {rise} over {steps} steps ({start} to {end}, {rate} a step){full}."
RULES: Final[tuple[Rule[MemoryView], ...]] = (
    Rule(
        "HIGH_PRESSURE",
        "HIGH PRESSURE",
        high_pressure,
        "The peak {noun} on {rank} is {peak}, {share} of {capacity}.",
        "Reduce the batch size or the activation and optimizer footprint before it runs out.",
        warn=0.92,
        crit=0.97,
    ),
    Rule(
        "IMBALANCE",
        "IMBALANCE",
        imbalance,
        "{rank} peaks at {peak}, {skew} above the median rank's {typical} ({noun}).",
        "Compare batch shapes and what else lives on {rank}.",
        warn=0.20,
        crit=0.30,
    ),
    Rule(
        "CREEP_CONFIRMED",
        "MEMORY CREEP",
        creep_confirmed,
        _CREEP,
        "Look for state that is kept every step: losses or outputs stored without detach(), caches, lists.",
        warn=1.0,
        crit=1.0,
    ),
    Rule(
        "CREEP_EARLY",
        "MEMORY RISING",
        creep_early,
        _CREEP,
        "Watch the next window; look for tensors or caches that live longer than a step.",
        warn=1.0,
        crit=None,
    ),
)


def diagnose_memory(view: MemoryView | None) -> list[Finding]:
    """Sorted findings; never empty."""
    if view is None or len(view.steps) < STEPS_FOR_ANY:
        return [
            Finding(
                "NO_DATA",
                "NO DATA",
                INFO,
                "Too few completed steps with a memory reading.",
                "Let the run complete more steps.",
            )
        ]
    allowed = len(view.steps) >= STEPS_FOR_CRITICAL
    found = []
    for rule in RULES:
        measured = rule.measure(view)
        finding = rule.finding(measured, allowed) if measured is not None else None
        if finding is not None:
            found.append(finding)
    if any(f.kind == "CREEP_CONFIRMED" for f in found):
        found = [f for f in found if f.kind != "CREEP_EARLY"]
    return ordered(found) or [_balanced(view)]


def _balanced(view: MemoryView) -> Finding:
    peak = float(view.peak.max())
    trend_known = len(view.steps) >= TREND_STEPS
    note = "" if trend_known else f" A trend needs {TREND_STEPS} steps; there are {len(view.steps)}."
    return Finding(
        "BALANCED",
        "BALANCED",
        INFO,
        f"No pressure and no growth in the {view.noun} (peak {fmt.size(peak)}).{note}",
        "Nothing to do.",
        evidence={"peak_bytes": peak, "memory": view.memory},
    )
