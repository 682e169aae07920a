"""The result of `traceml compare`: its JSON file, and the only thing that its presenters read.

Times in ms, memory in bytes, shares 0..1. A delta is always B - A. What could not be compared is None.
"""

from dataclasses import dataclass, field
from typing import Final

SCHEMA: Final = "traceml.compare/1"

VERDICTS: Final = ("IMPROVEMENT", "REGRESSION", "NO CHANGE", "MIXED", "INCONCLUSIVE")
IMPROVEMENT, REGRESSION, NO_CHANGE, MIXED, INCONCLUSIVE = VERDICTS
BETTER, WORSE, SAME, CHANGED, UNCLEAR = "improved", "worsened", "same", "changed", "unclear"
TYPICAL, MEAN = "typical", "mean"


@dataclass(frozen=True, slots=True)
class RunRef:
    """One run of a side: its name, and the file that its summary was read from."""

    name: str
    path: str = ""
    schema: str = ""
    status: str = ""
    steps: int | None = None
    started_at: str | None = None


@dataclass(frozen=True, slots=True)
class Side:
    """A or B: one run, or several runs of the same thing."""

    name: str
    runs: list[RunRef]


@dataclass(frozen=True, slots=True)
class Interval:
    """How much the typical step changed, or the mean step if that alone did, and how certain that is."""

    basis: str  # step | sample | token: what the time is per
    statistic: str = TYPICAL  # or MEAN: slow steps came or went
    a_ms: float | None = None
    b_ms: float | None = None
    delta_share: float | None = None
    low_share: float | None = None  # None: the files have no block means
    high_share: float | None = None
    confidence: float | None = None
    noise_floor_share: float | None = None
    run_noise_share: float | None = None
    a_blocks: int = 0
    b_blocks: int = 0
    contention_share: float = 0.0  # of a full machine, used by other processes
    change: str = UNCLEAR


@dataclass(frozen=True, slots=True)
class Shift:
    """A diagnosis before and after."""

    a: str | None
    b: str | None
    change: str


@dataclass(frozen=True, slots=True)
class Change:
    """One number before and after. `delta_share` is None for shares and percentages."""

    label: str
    section: str
    unit: str  # as in the catalogue, or "share"
    a: float | None
    b: float | None
    delta: float | None
    delta_share: float | None
    notable: bool = True  # False: a short report leaves it out


@dataclass(frozen=True, slots=True)
class Cause:
    """How much of the step's change one phase accounts for: on all ranks, or on one `rank`."""

    phase: str
    label: str
    delta_ms: float
    share: float
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Mover:
    """A rank, or all ranks of a node, whose own work changed differently from the others' work."""

    ranks: list[int]
    node: int | None
    phase: str
    label: str
    a_ms: float
    b_ms: float
    delta_ms: float
    others_delta_ms: float


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that is not the same in A and B, apart from the numbers."""

    what: str
    a: str
    b: str
    matters: bool  # True: it can change the step time; False: context


@dataclass(frozen=True, slots=True)
class Comparison:
    """compare/<a>_vs_<b>.json."""

    schema: str = field(default=SCHEMA, kw_only=True)
    a: Side
    b: Side
    verdict: str
    why: str
    next: str
    interval: Interval
    diagnosis: dict[str, Shift]
    metrics: dict[str, Change]
    memory_change: str = UNCLEAR
    explained_by: list[Cause] = field(default_factory=list)
    moved: list[Mover] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
