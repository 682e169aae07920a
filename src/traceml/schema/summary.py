"""The one object that everything shown is made from. Missing is None; ms, bytes, shares of 0..1."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

SCHEMA: Final = "traceml.summary/1"
INFO, WARN, CRIT = "info", "warn", "crit"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a rule has to say."""

    kind: str
    status: str
    severity: str
    summary: str
    action: str
    score: float = 0.0
    phase: str | None = None
    ranks: list[int] = field(default_factory=list)
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Primary:
    """The answer to "why is it slow or unstable", and what it would bring to mend it."""

    kind: str = "NO_DATA"
    status: str = "NO DATA"
    severity: str = INFO
    section: str = "step_time"
    summary: str = ""
    action: str = ""
    score: float = 0.0
    phase: str | None = None
    ranks: list[int] = field(default_factory=list)
    potential_speedup: float | None = None
    potential_how: str | None = None
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RankValue:
    """A number and the rank (or node) that it comes from."""

    value: float | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class MetricStat:
    """A metric over ranks: average, the median rank's value, the worst rank's, the spread over steps."""

    average: float | None = None
    median: RankValue = field(default_factory=RankValue)
    worst: RankValue = field(default_factory=RankValue)
    p5: float | None = None
    p95: float | None = None
    skew: float | None = None
    share: float | None = None  # of step time: median of per-rank shares


@dataclass(frozen=True, slots=True)
class Member:
    """One rank's (or node's) own numbers."""

    identity: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the result: step time, step memory, system or process."""

    diagnosis: Finding
    issues: list[Finding]
    window: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, MetricStat] = field(default_factory=dict)
    ranks: dict[str, Member] = field(default_factory=dict)
    nodes: dict[str, Member] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Run:
    """What ran, how it ended, how its time adds up."""

    name: str = ""
    status: str = "running"
    exit_code: int | None = None
    reason: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    duration_s: float | None = None
    command: list[str] = field(default_factory=list)
    nodes: int = 1
    world_size: int = 1
    ranks: dict[str, Any] = field(default_factory=dict)
    steps: dict[str, Any] = field(default_factory=dict)
    mode: str = "summary"
    accounting: dict[str, float | None] = field(default_factory=dict)
    totals: dict[str, float | None] = field(default_factory=dict)
    """Of the same rank as `accounting`: seconds in each phase over the whole run, warm-up included."""
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Summary:
    """final_summary.json."""

    run: Run
    primary_diagnosis: Primary
    step_time: Section
    step_memory: Section
    system: Section
    process: Section
    schema: str = SCHEMA
    final: bool = True
    series: dict[str, Any] = field(default_factory=dict)
    blocks: dict[str, Any] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    overhead: dict[str, Any] = field(default_factory=dict)
    catalog: list[dict[str, str]] = field(default_factory=list)
