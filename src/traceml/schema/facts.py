"""What is known of a run from outside: the manifest's part of the summary."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Filled by the monitor (or by `traceml view` from the manifest)."""

    name: str
    status: str = "running"
    exit_code: int | None = None
    reason: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    begin_ns: int | None = None  # on the monotonic clock that the ranks use
    end_ns: int | None = None
    command: list[str] = field(default_factory=list)
    mode: str = "summary"
    environment: dict[str, Any] = field(default_factory=dict)
    monitor: dict[str, Any] = field(default_factory=dict)
    cores: int = 1
    notes: list[str] = field(default_factory=list)  # what went wrong outside the training
