"""One line of `traceml runs`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ListedRun:
    """What a folder's summary (or, without one, its manifest) says about a run."""

    name: str
    path: str
    started_at: str | None = None
    status: str | None = None
    exit_code: int | None = None
    verdict: str | None = None
    severity: str | None = None
    step_ms: float | None = None
    steps: int | None = None
    world_size: int | None = None
    duration_s: float | None = None
    problem: str | None = None
