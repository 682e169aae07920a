"""Which recordings are analyzed, and the sums over one.

Node 0's ranks say how large the run is. What contradicts them, or cannot be, is set aside with a note, so
that no node can cost node 0 its summary: other nodes may be broken or lie.

A launcher that restarts its ranks leaves a recording per rank and attempt. An attempt begins when a rank
appears again. Each attempt numbers its steps from 1, so rows of two attempts are never compared. A process
that claims a rank while that rank trains is not a new attempt: it is a helper that inherited the rank's
environment, or one of several trainings in the same run.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final

import numpy as np

from traceml.analyze.window import PHASE_KEYS, WAIT
from traceml.analyze.window_arrays import Before, Rows
from traceml.schema import catalog as c
from traceml.schema import fmt
from traceml.schema.recorded import MOST_RANKS, RankRecording

LONGEST_STEP_NS: Final = 366 * 24 * 3600 * 10**9
LARGEST: Final = 10**18
MOST_NOTES: Final = 8
FEW_ROWS: Final = 64
ENOUGH_STEPS: Final = 2
"""An attempt with fewer steps shows nothing, so the one before it is analyzed instead."""
_NOTHING: Final = (None, 0)
_WORDS: Final = tuple(name for name, code in c.STEP_COLUMNS if code == "q")
_WAIT_COLUMNS: Final = tuple(place.key for place in c.WAIT_PLACES)

Ranks = dict[int, RankRecording]


# ---- whose are believed ---------------------------------------------------------------------------


def believed(
    recordings: Sequence[RankRecording], before: Before | None = None
) -> tuple[list[RankRecording], list[str]]:
    """Those to analyze, and a note for each reason to set others aside."""
    # Restarts may change how many ranks node 0 has. Without any of its ranks, most others decide.
    own = {r.identity.world_size or 1 for r in recordings if r.node == 0}
    most = Counter(r.identity.world_size or 1 for r in recordings).most_common(1)
    worlds = own or {size for size, _ in most}
    impossible = _impossible(recordings, before or Before())
    kept: list[RankRecording] = []
    aside: dict[str, list[str]] = {}
    notes = []
    for recording in recordings:
        who = f"r{recording.rank}" + (f" of node {recording.node}" if recording.node else "")
        size = _claimed_world(recording)
        problem = _problem(recording, size, worlds)
        if problem is None and id(recording) in impossible:
            problem = "its rows hold impossible numbers"
        if problem is not None:
            aside.setdefault(problem, []).append(who)
            continue
        kept.append(recording)
        if size != recording.identity.world_size:
            notes.append(
                f"{who} says that there are {fmt.count(size)} ranks (WORLD_SIZE); "
                f"that cannot be, and is read as {recording.identity.world_size}."
            )
    notes += [f"Set aside: {listed(who, MOST_NOTES)} ({problem})." for problem, who in aside.items()]
    return kept, notes[:MOST_NOTES]


def _claimed_world(recording: RankRecording) -> int:
    found = recording.header.get("identity")
    size = found.get("world_size") if isinstance(found, dict) else None
    return size if isinstance(size, int) and size > MOST_RANKS else recording.identity.world_size or 1


def _problem(recording: RankRecording, size: int, worlds: set[int]) -> str | None:
    """Why this recording is not believed."""
    if recording.node and size not in worlds:
        here = " or ".join(fmt.count(n) for n in sorted(worlds))
        return f"it says that there are {fmt.count(size)} ranks, node 0 says {here}"
    if recording.node and recording.rank >= size:
        return f"there is no such rank among {fmt.count(size)}"
    return None


def _impossible(recordings: Sequence[RankRecording], before: Before) -> set[int]:
    """The ids of recordings with impossible numbers. Few new rows of many ranks are looked at in one go."""
    checked: dict[int, tuple[dict[str, Any], int]] = {}
    few: dict[np.dtype[np.void], list[tuple[RankRecording, bytes]]] = {}
    found = []
    for recording in recordings:
        header, rows = recording.header, recording.rows
        known, number = before.checked.get(id(header), _NOTHING)
        last = int(rows["sequence"][-1]) if len(rows) else number
        checked[id(header)] = header, last
        if known is header:
            rows = rows[len(rows) - min(len(rows), last - number) :]
        if len(rows) <= FEW_ROWS:
            few.setdefault(rows.dtype, []).append((recording, rows.tobytes()))
        elif not _can_be(rows):
            found.append(recording)
    for dtype, new in few.items():
        if not _can_be(np.frombuffer(b"".join([data for _, data in new]), dtype)):
            found += [recording for recording, _ in new if not _can_be(recording.rows)]
    for recording in found:
        del checked[id(recording.header)]
    before.checked = checked
    return {id(recording) for recording in found}


def _can_be(rows: Rows) -> bool:
    if not len(rows):
        return True
    took_ns = rows["end_ns"] - rows["begin_ns"]
    if took_ns.min() < 0 or took_ns.max() > LONGEST_STEP_NS or rows["step"].min() < 0:
        return False
    if _begin_with_words(rows.dtype) and rows.flags.c_contiguous:  # one look at all columns
        words = rows.view(np.int64).reshape(len(rows), -1)[:, : len(_WORDS)]
        return bool(words.max() <= LARGEST and words.min() >= -LARGEST)
    return all(rows[n].max() <= LARGEST and rows[n].min() >= -LARGEST for n in _WORDS)


@lru_cache(maxsize=16)
def _begin_with_words(dtype: np.dtype[np.void]) -> bool:
    assert dtype.fields is not None
    return dtype.itemsize % 8 == 0 and all(dtype.fields[n][1] == 8 * at for at, n in enumerate(_WORDS))


# ---- attempts -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Attempts:
    """The attempt that is analyzed, one recording per rank in the order of ranks, and those before it."""

    chosen: Ranks
    before: list[Ranks]
    doubles: tuple[RankRecording, ...] = ()  # claimed a rank while a process that trained longer had it


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
    # Attempts without node 0's own ranks come from a node with a wrong clock, or from a hostile one.
    own = [any(r.node == 0 for r in attempt.values()) for attempt in attempts]
    attempts = [a for a, has_own in zip(attempts, own, strict=True) if has_own or not any(own)]
    most = [max(steps_of(r) for r in attempt.values()) for attempt in attempts]
    enough = [i for i, steps in enumerate(most) if steps >= ENOUGH_STEPS]
    some = [i for i, steps in enumerate(most) if steps]
    at = (enough or some or [len(attempts) - 1])[-1]
    return Attempts(dict(sorted(attempts[at].items())), attempts[:at], tuple(doubles))


def expected_ranks(ranks: Ranks) -> int:
    """How many ranks there should be."""
    return max(((r.identity.world_size or 1) for r in ranks.values()), default=1)


def absent_ranks(ranks: Ranks) -> list[int]:
    """Ranks that left no recording."""
    return [rank for rank in range(expected_ranks(ranks)) if rank not in ranks] if ranks else []


def listed(words: Sequence[str], most: int) -> str:
    """`r1, r2 and 3 more`."""
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def _trust(recording: RankRecording) -> tuple[bool, bool, int]:
    """Of two processes with the same rank: node 0's own counts, else the one that trained longer. A count of
    steps would let a quick helper speak for the run."""
    return recording.node == 0, steps_of(recording) >= ENOUGH_STEPS, step_ns(recording)


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


# ---- sums over a rank's whole run, exact to the nanosecond ----------------------------------------


def steps_of(recorded: RankRecording) -> int:
    """Completed steps."""
    return _earlier(recorded, "steps") + len(recorded.rows)


def step_ns(recorded: RankRecording) -> int:
    """Time inside completed steps."""
    rows = recorded.rows
    return _earlier(recorded, "step_ns") + int((rows["end_ns"] - rows["begin_ns"]).sum())


def column_sum(recorded: RankRecording, *names: str) -> int:
    """Sum of these columns over all steps."""
    return sum(_earlier(recorded, name) + int(recorded.rows[name].sum()) for name in names)


def _earlier(recorded: RankRecording, name: str) -> int:
    """This column of the steps that were rolled up; 0 if none were."""
    return int(recorded.earlier[name]) if recorded.earlier is not None else 0


def run_totals(recorded: RankRecording) -> dict[str, float | None]:
    """`run.totals`: steps and seconds of one rank, including warm-up; phases and wait add up to `step_s`."""
    measured = int(recorded.earlier["flags"]) if recorded.earlier is not None else -1
    measured &= int(np.bitwise_and.reduce(recorded.rows["flags"])) if len(recorded.rows) else -1
    found: dict[str, float | None] = {
        "rank": recorded.rank,
        "steps": steps_of(recorded),
        "step_s": step_ns(recorded) / 1e9,
    }
    for bit, key in enumerate(PHASE_KEYS):
        total = column_sum(recorded, key)
        # A phase that was not measured in some steps is unknown for the run, unless it has some time.
        found[f"{key}_s"] = total / 1e9 if measured & (1 << bit) or total else None
    for slot, name in enumerate(recorded.user_names):
        if name:
            found[f"user.{name}_s"] = column_sum(recorded, f"user{slot}") / 1e9
    found[f"{WAIT}_s"] = column_sum(recorded, *_WAIT_COLUMNS) / 1e9
    return found
