"""What a diagnosis is: a small function that measures, and a row with its thresholds and sentences."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from traceml.schema import fmt
from traceml.schema.summary import CRIT, INFO, WARN, EvidenceValue, Finding

WARN_SHARE: Final = 0.10
CRIT_SHARE: Final = 0.20
EXPLAINED_SHARE: Final = 0.80
"""A cause is named only if it explains at least this much of the excess."""
MOST_SHARE: Final = 0.5
"""A run that lost so much to one thing is not balanced."""
TYPICAL_PART: Final = 0.5
"""A bound shows in many steps with at least this part of its overall share; otherwise it is jitter."""

View = TypeVar("View")


@dataclass(frozen=True, slots=True)
class Measured:
    """What a rule's function found. Sentences can name `level`, `score`, any of `evidence` and `words`."""

    level: float  # compared with the row's thresholds
    score: float = 0.0  # share of step time at stake
    words: dict[str, str] = field(default_factory=dict)
    phase: str | None = None
    ranks: tuple[int, ...] = ()
    evidence: dict[str, EvidenceValue] = field(default_factory=dict)
    cost_ms: float | None = None  # what a typical step would save; part of the evidence
    summary: str | None = None  # replaces the row's
    action: str | None = None


def judged_share(share: float, typical: float) -> float:
    """The share that a bound is judged by: the typical one if slow steps are too rare to be a bound."""
    return share if typical >= TYPICAL_PART * share else typical


def beyond_delay(share: float, delay: float) -> float:
    """The share that a lack of cores does not explain. Half of all time is a warning whatever explains it."""
    return max(share - delay, WARN_SHARE if share >= MOST_SHARE else 0.0)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The levels from which a finding is a warning or critical."""

    warn: float = WARN_SHARE
    crit: float | None = CRIT_SHARE  # None: never critical
    of: str = "{} of the step"  # what the level is, for the docs; empty if the function decides alone
    unit: Callable[[float], str] = fmt.share


@dataclass(frozen=True, slots=True)
class Rule(Generic[View]):
    """One diagnosis. The docstring of `measure` is its text in the docs."""

    kind: str
    measure: Callable[[View], Measured | None]
    summary: str
    action: str
    thresholds: Thresholds | None = field(default_factory=Thresholds)  # None: only informational
    status: str = ""  # the label shown; without it, the kind with spaces
    needs: tuple[str, ...] = ()  # phases that must have been measured
    unless: tuple[str, ...] = ()  # kinds that make this one redundant
    unless_same_phase: bool = False  # a finding about the same phase makes this one redundant
    only_if_nothing_else: bool = False
    of_all_time: bool = False  # the level is a share of all time, also where single steps are left out

    @property
    def label(self) -> str:
        return self.status or self.kind.replace("_", " ")

    def finding(self, measured: Measured, critical_allowed: bool) -> Finding | None:
        """The finding, or None if the level is below the thresholds."""
        severity, limits = INFO, self.thresholds
        if limits is not None:
            if measured.level < limits.warn:
                return None
            is_crit = limits.crit is not None and measured.level >= limits.crit
            severity = CRIT if is_crit and critical_allowed else WARN
        cost = {} if measured.cost_ms is None else {"cost_ms": measured.cost_ms}
        evidence = {**measured.evidence, **cost}
        unit = fmt.share if limits is None else limits.unit
        words = {"level": unit(measured.level), "score": fmt.share(measured.score)}
        words |= {key: _in_words(key, value) for key, value in evidence.items()} | measured.words
        return Finding(
            kind=self.kind,
            status=self.label,
            severity=severity,
            summary=(measured.summary or self.summary).format(**words),
            action=(measured.action or self.action).format(**words),
            score=measured.score,
            phase=measured.phase,
            ranks=list(measured.ranks),
            evidence=evidence,
        )


_UNITS: Final = {**fmt.BY_UNIT, "share": fmt.share, "skew": fmt.share}


def _in_words(key: str, value: EvidenceValue) -> str:
    """Evidence as a sentence shows it: the end of its name is its unit."""
    unit = _UNITS.get(key.rpartition("_")[2])
    return unit(value) if unit is not None and isinstance(value, float) else f"{value}"


def informational(kind: str, summary: str, action: str, **evidence: EvidenceValue) -> Finding:
    """A finding that no rule makes: nothing stands out, or there is too little data."""
    return Finding(kind, kind.replace("_", " "), INFO, summary, action, evidence=evidence)


_ORDER: Final = {CRIT: 0, WARN: 1, INFO: 2}


def ordered(findings: list[Finding]) -> list[Finding]:
    """Severity first, then score."""
    return sorted(findings, key=lambda f: (_ORDER.get(f.severity, 3), -f.score))
