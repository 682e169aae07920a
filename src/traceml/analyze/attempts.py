"""Which recordings belong together: a launcher that restarts its ranks leaves one for each rank and attempt.

An attempt begins when a rank that is there appears once more. Steps are numbered anew in each attempt, so
that rows of two attempts are never put side by side. A process that says to be a rank while that rank
trains is no attempt: a helper that inherited the rank's environment, or several trainings in one run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from traceml.analyze.totals import steps_of
from traceml.schema.recorded import RankRecording

ENOUGH_STEPS: Final = 2
"""Below this an attempt tells nothing, and the one before it is looked at instead."""


@dataclass(frozen=True, slots=True)
class Attempts:
    """The attempt that is analyzed, one recording a rank in the order of ranks, and those before it."""

    chosen: dict[int, RankRecording]
    before: list[dict[int, RankRecording]]
    doubles: tuple[RankRecording, ...] = ()  # at the same time as a rank that has more steps


def find_attempts(recordings: Sequence[RankRecording]) -> Attempts:
    """The newest attempt in which steps were completed, and those before it, oldest first."""
    if len({r.rank for r in recordings}) == len(recordings):  # nearly always
        return Attempts({r.rank: r for r in sorted(recordings, key=attrgetter("rank"))}, [])
    clock = _Clock(recordings)
    attempts: list[dict[int, RankRecording]] = [{}]
    doubles: list[RankRecording] = []
    for recording in sorted(recordings, key=clock.begin):
        began, there = clock.begin(recording), attempts[-1].get(recording.rank)
        if there is not None and clock.end(there) > began:
            recording, other = sorted((there, recording), key=steps_of, reverse=True)
            doubles.append(other)
        elif there is not None:
            attempts.append({n: r for n, r in attempts[-1].items() if clock.end(r) > began})
        attempts[-1][recording.rank] = recording
    most = [max(steps_of(r) for r in attempt.values()) for attempt in attempts]
    enough = [i for i, steps in enumerate(most) if steps >= ENOUGH_STEPS]
    some = [i for i, steps in enumerate(most) if steps]
    at = (enough or some or [len(attempts) - 1])[-1]
    return Attempts(dict(sorted(attempts[at].items())), attempts[:at], tuple(doubles))


class _Clock:
    """Times of several machines on about one clock: a machine's own, moved once to what its wall says."""

    def __init__(self, recordings: Sequence[RankRecording]) -> None:
        self._moved: dict[tuple[int, str], int] = {}
        for recording in recordings:
            process = recording.header.get("process", {})
            moved = int(process.get("wall_ns", 0)) - int(process.get("clock_ns", 0))
            self._moved.setdefault(_machine(recording), moved)

    def begin(self, recording: RankRecording) -> int:
        """When the process began to record."""
        clock_ns = int(recording.header.get("process", {}).get("clock_ns", 0))
        return clock_ns + self._moved[_machine(recording)]

    def end(self, recording: RankRecording) -> int:
        """When its last step ended."""
        if recording.end_ns is None:
            return self.begin(recording)
        return recording.end_ns + self._moved[_machine(recording)]


def _machine(recording: RankRecording) -> tuple[int, str]:
    return recording.node, str(recording.identity.get("host", ""))
