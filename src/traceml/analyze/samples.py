"""Gauge samples of many nodes or ranks as tables over (member, sample)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from traceml.schema.recorded import RankRecording, RunRecording

Rows: TypeAlias = NDArray[np.void]
Floats: TypeAlias = NDArray[np.float64]


class Samples:
    """The samples of some members: `rows` sorted by member, `counts` of them each."""

    def __init__(self, members: tuple[int, ...], rows: Rows | None, counts: NDArray[np.int64]) -> None:
        self.members = members
        self.total = 0 if rows is None else len(rows)
        self._rows = rows
        self._shape = (len(members), int(counts.max()) if len(counts) else 1)
        self._member = np.repeat(np.arange(len(members)), counts)
        self._place = np.arange(self.total) - np.repeat(np.cumsum(counts) - counts, counts)

    def table(self, key: str) -> Floats:
        """One gauge; members with fewer samples are padded with NaN."""
        table = np.full(self._shape, np.nan)
        if self._rows is not None:
            table[self._member, self._place] = self._rows[key]
        return table


def joined(pieces: Sequence[Rows]) -> Rows | None:
    """One array of all rows; copied as bytes, because column by column is slow for many small pieces."""
    if not pieces:
        return None
    first = pieces[0].dtype
    if any(p.dtype != first or not p.flags.c_contiguous for p in pieces):
        return np.concatenate(pieces)
    rows: Rows = np.concatenate([p.view(np.uint8) for p in pieces]).view(first)
    return rows


def system_samples(recording: RunRecording, ranks: dict[int, RankRecording]) -> Samples:
    """Each node's samples while it trained."""
    here = by_node(ranks)
    found: dict[int, Rows] = {}
    for node in (0, *recording.other_nodes):
        rows = in_training(recording.gauges(node).system_rows, here.get(node, ()))
        if rows is not None and len(rows):
            found[node] = rows
    counts = np.array([len(rows) for rows in found.values()], dtype=np.int64)
    return Samples(tuple(found), joined(list(found.values())), counts)


def process_samples(recording: RunRecording, ranks: dict[int, RankRecording]) -> Samples:
    """Each rank's own samples while its node trained, from the monitor of its node."""
    here = by_node(ranks)
    found: dict[int, Rows] = {}
    for node, those in here.items():
        rows = in_training(recording.gauges(node).process_rows, those)
        if rows is not None and len(rows):
            found[node] = rows
    every = joined(list(found.values()))
    if every is None:
        return Samples((), None, np.zeros(0, dtype=np.int64))
    nodes = np.repeat(np.array(list(found), dtype=np.int64), [len(rows) for rows in found.values()])
    numbers = np.array(list(ranks), dtype=np.int64)
    wanted = np.array([_name(r.node, r.pid) for r in ranks.values()], dtype=np.int64)
    order = np.argsort(wanted, kind="stable")
    names = _name(nodes, every["pid"].astype(np.int64))
    at = np.minimum(np.searchsorted(wanted[order], names), len(order) - 1)
    owner = np.where(wanted[order][at] == names, numbers[order[at]], -1)
    by_owner = np.argsort(owner, kind="stable")[int(np.sum(owner < 0)) :]
    members, counts = np.unique(owner[by_owner], return_counts=True)
    return Samples(tuple(members.tolist()), every[by_owner] if len(members) else None, counts)


def _name(node: NDArray[np.int64] | int, pid: NDArray[np.int64] | int) -> NDArray[np.int64] | int:
    """A process among those of all nodes."""
    return node * (1 << 40) + pid


def by_node(ranks: dict[int, RankRecording]) -> dict[int, list[RankRecording]]:
    """The ranks of each node."""
    found: dict[int, list[RankRecording]] = {}
    for recorded in ranks.values():
        found.setdefault(recorded.node, []).append(recorded)
    return found


def in_training(rows: Rows | None, ranks: Iterable[RankRecording]) -> Rows | None:
    """Samples from the first step's begin to the last step's end, if there are any; else all of them."""
    lit = [r for r in ranks if len(r.rows)]
    if rows is None or not lit:
        return rows
    first = min(r.begin_ns or 0 for r in lit)
    last = max(r.end_ns or 0 for r in lit)
    begin, end = np.searchsorted(rows["time_ns"], [first, last + 1])  # samples are in the order of time
    return rows[begin:end] if end > begin else rows
