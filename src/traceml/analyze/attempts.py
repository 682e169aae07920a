"""Which recordings belong together: a launcher that restarts its ranks leaves one per rank and attempt.

An attempt begins when a rank appears again. Each attempt numbers its steps from 1, so rows of two attempts
are never compared. A process that claims a rank while that rank trains is not a new attempt: it is a helper
that inherited the rank's environment, or one of several trainings in the same run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from traceml.analyze.totals import steps_of
from traceml.schema.recorded import RankRecording

Ranks = dict[int, RankRecording]
ENOUGH_STEPS: Final = 2
"""An attempt with fewer steps shows nothing, so the one before it is analyzed instead."""


@dataclass(frozen=True, slots=True)
class Attempts:
    """The attempt that is analyzed, one recording per rank in the order of ranks, and those before it."""

    chosen: Ranks
    before: list[Ranks]
    doubles: tuple[RankRecording, ...] = ()  # claimed a rank while a process with more steps had it


def find_attempts(recordings: Sequence[RankRecording]) -> Attempts:
    """The newest attempt in which steps were completed, and those before it, oldest first."""
    if len({r.rank for r in recordings}) == len(recordings):  # nearly always
        return Attempts({r.rank: r for r in sorted(recordings, key=attrgetter("rank"))}, [])
    spans = _spans(recordings)
    attempts: list[Ranks] = [{}]
    doubles: list[RankRecording] = []
    for recording in sorted(recordings, key=lambda r: spans[id(r)][0]):
        began, there = spans[id(recording)][0], attempts[-1].get(recording.rank)
        if there is not None and spans[id(there)][1] > began:
            recording, other = sorted((there, recording), key=_trust, reverse=True)
            doubles.append(other)
        elif there is not None:
            attempts.append({n: r for n, r in attempts[-1].items() if spans[id(r)][1] > began})
        attempts[-1][recording.rank] = recording
    # Attempts without node 0's own ranks come from a node with a wrong clock, or one that lies.
    own = [any(r.node == 0 for r in attempt.values()) for attempt in attempts]
    attempts = [a for a, has_own in zip(attempts, own, strict=True) if has_own or not any(own)]
    most = [max(steps_of(r) for r in attempt.values()) for attempt in attempts]
    enough = [i for i, steps in enumerate(most) if steps >= ENOUGH_STEPS]
    some = [i for i, steps in enumerate(most) if steps]
    at = (enough or some or [len(attempts) - 1])[-1]
    return Attempts(dict(sorted(attempts[at].items())), attempts[:at], tuple(doubles))


def _trust(recording: RankRecording) -> tuple[bool, int]:
    """Of two processes with the same rank: node 0's own counts, else the one with more steps."""
    return recording.node == 0, steps_of(recording)


def _spans(recordings: Sequence[RankRecording]) -> dict[int, tuple[int, int]]:
    """When each process started recording and when its last step ended, by id. To compare several machines,
    each machine's clock is moved once to its wall clock."""
    moved: dict[tuple[int, str | None], int] = {}
    found = {}
    for recording in recordings:
        process, machine = recording.header.get("process", {}), (recording.node, recording.identity.host)
        clock_ns = int(process.get("clock_ns", 0))
        moved_ns = moved.setdefault(machine, int(process.get("wall_ns", 0)) - clock_ns)
        end_ns = clock_ns if recording.end_ns is None else recording.end_ns
        found[id(recording)] = (clock_ns + moved_ns, end_ns + moved_ns)
    return found
