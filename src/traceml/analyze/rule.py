"""What a rule is: a small function that measures, and a row that speaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from traceml.schema.summary import CRIT, INFO, WARN, Finding

WARN_SHARE: Final = 0.10
CRIT_SHARE: Final = 0.20
STEPS_FOR_ANY: Final = 2
STEPS_FOR_CRITICAL: Final = 20
EXPLAINED: Final = 0.80
"""A cause is named only when it explains at least this much of the excess."""
TYPICAL_PART: Final = 0.5
"""A bound shows in many steps with at least this part of its overall share; else it is jitter."""

View = TypeVar("View")


@dataclass(frozen=True, slots=True)
class Measured:
    """What a rule's function found: how much, and the words for the row's sentences."""

    level: float  # compared with the row's thresholds
    score: float  # share of step time at stake
    words: dict[str, str]
    phase: str | None = None
    ranks: tuple[int, ...] = ()
    evidence: dict[str, Any] = field(default_factory=dict)
    cost_ms: float | None = None  # what a typical step would save
    action: str | None = None  # in place of the row's


def typical_level(share: float, typical: float) -> float:
    """What a bound is judged by. Rare slow steps are jitter: more than a quarter of steps must show it."""
    return share if typical >= TYPICAL_PART * share else typical


@dataclass(frozen=True, slots=True)
class Rule(Generic[View]):
    """One diagnosis. The docstring of `measure` is its page in the docs."""

    kind: str
    status: str
    measure: Callable[[View], Measured | None]
    summary: str
    action: str
    warn: float | None = WARN_SHARE  # None: the finding is informational
    crit: float | None = CRIT_SHARE
    needs: tuple[str, ...] = ()

    def finding(self, measured: Measured, critical_allowed: bool) -> Finding | None:
        """The finding, or None when the level is below the thresholds."""
        severity = INFO
        if self.warn is not None:
            if measured.level < self.warn:
                return None
            severity = WARN
            if self.crit is not None and measured.level >= self.crit and critical_allowed:
                severity = CRIT
        evidence = dict(measured.evidence)
        if measured.cost_ms is not None:
            evidence["cost_ms"] = measured.cost_ms
        return Finding(
            kind=self.kind,
            status=self.status,
            severity=severity,
            summary=self.summary.format(**measured.words),
            action=(measured.action or self.action).format(**measured.words),
            score=measured.score,
            phase=measured.phase,
            ranks=list(measured.ranks),
            evidence=evidence,
        )


_ORDER = {CRIT: 0, WARN: 1, INFO: 2}


def ordered(findings: list[Finding]) -> list[Finding]:
    """Severity first, then score."""
    return sorted(findings, key=lambda f: (_ORDER.get(f.severity, 3), -f.score))
