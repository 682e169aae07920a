"""What a live view shows besides the Summary: whether there is news, and since when the verdict holds."""

from dataclasses import dataclass
from typing import Final

from traceml.schema.summary import Summary

WAITING, LIVE, STALE, FINISHED, CRASHED = "waiting", "live", "stale", "finished", "crashed"
STATES: Final = {
    WAITING: "waiting for the first step",
    LIVE: "live",
    STALE: "no news",
    FINISHED: "finished",
    CRASHED: "ended early",
}
"""Each state, and how a view calls it."""


@dataclass(frozen=True, slots=True)
class Live:
    """One look at a run: its Summary, and how fresh that is."""

    summary: Summary
    state: str = WAITING
    quiet_s: float = 0.0  # since the last completed step that this view saw
    since_step: int | None = None  # the step at which the verdict was first seen; None while there is none
    since_start: bool = False  # the verdict was there at the first look, so it may be older than `since_step`
    steps_per_s: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether no later look can show anything new."""
        return self.state in (FINISHED, CRASHED)
