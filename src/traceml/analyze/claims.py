"""Whose recordings are believed: node 0's ranks say how large the run is; other nodes may be broken or lie.

What contradicts them, or cannot be, is set aside with a note, so that no node can cost node 0 its summary.
"""

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np

from traceml.analyze.before import Before
from traceml.analyze.samples import Rows
from traceml.schema import fmt
from traceml.schema.catalog import STEP_COLUMNS
from traceml.schema.recorded import MOST_RANKS, RankRecording

LONGEST_STEP_NS: Final = 366 * 24 * 3600 * 10**9
LARGEST: Final = 10**18
MOST_NOTES: Final = 8
FEW_ROWS: Final = 64
_NOTHING: Final = (None, 0)
_WORDS: Final = tuple(name for name, code in STEP_COLUMNS if code == "q")


def believed(
    recordings: Sequence[RankRecording], before: Before | None = None
) -> tuple[list[RankRecording], list[str]]:
    """Those to analyze, and a note for each reason to set others aside."""
    worlds, impossible = _worlds(recordings), _impossible(recordings, before or Before())
    kept: list[RankRecording] = []
    aside: dict[str, list[str]] = {}
    notes = []
    for recording in recordings:
        size = _claimed_world(recording)
        problem = _problem(recording, size, worlds)
        if problem is None and id(recording) in impossible:
            problem = "its rows hold impossible numbers"
        if problem is not None:
            aside.setdefault(problem, []).append(_who(recording))
            continue
        kept.append(recording)
        if size != recording.identity.world_size:
            read_as = recording.identity.world_size
            notes.append(
                f"{_who(recording)} says that there are {fmt.count(size)} ranks (WORLD_SIZE); "
                f"that cannot be, and is read as {read_as}."
            )
    notes += [f"Set aside: {_some(who)} ({problem})." for problem, who in aside.items()]
    return kept, notes[:MOST_NOTES]


def _worlds(recordings: Sequence[RankRecording]) -> set[int]:
    """The sizes that node 0's ranks had (restarts may change it); without any, the one most ranks claim."""
    own = {r.identity.world_size or 1 for r in recordings if r.node == 0}
    most = Counter(r.identity.world_size or 1 for r in recordings).most_common(1)
    return own or {size for size, _ in most}


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


def _who(recording: RankRecording) -> str:
    return f"r{recording.rank}" + (f" of node {recording.node}" if recording.node else "")


def _some(who: list[str]) -> str:
    more = f" and {len(who) - MOST_NOTES} more" if len(who) > MOST_NOTES else ""
    return ", ".join(who[:MOST_NOTES]) + more
