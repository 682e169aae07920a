"""Gauge samples of many nodes or ranks as tables over (member, sample)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from traceml.schema.recorded import RankRecording, RunRecording

Rows: TypeAlias = NDArray[np.void]
Floats: TypeAlias = NDArray[np.float64]
Times: TypeAlias = dict[int, tuple[int, int] | None]


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


def machines(recording: RunRecording, ranks: dict[int, RankRecording]) -> list[int]:
    """Nodes, one for each machine: under Slurm several tasks, each a node to us, share one."""
    of_node = {r.node: (r.identity.get("host"), r.identity.get("node_rank")) for r in ranks.values()}
    first: dict[object, int] = {}
    for node in (0, *recording.other_nodes):
        first.setdefault(of_node.get(node, node), node)
    return list(first.values())


def system_samples(recording: RunRecording, nodes: list[int], when: Times) -> Samples:
    """The samples of these nodes while they trained."""
    found: dict[int, Rows] = {}
    for node in nodes:
        rows = in_training(recording.gauges(node).system_rows, when.get(node))
        if rows is not None and len(rows):
            found[node] = rows
    counts = np.array([len(rows) for rows in found.values()], dtype=np.int64)
    return Samples(tuple(found), joined(list(found.values())), counts)


def process_samples(recording: RunRecording, ranks: dict[int, RankRecording], when: Times) -> Samples:
    """Each rank's own samples while its node trained, from the monitor of its node."""
    found: dict[int, Rows] = {}
    for node in when:
        rows = in_training(recording.gauges(node).process_rows, when[node])
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


def training_times(ranks: dict[int, RankRecording]) -> Times:
    """For each node that has ranks: when its first step began and its last one ended, None before that."""
    found: dict[int, tuple[int, int] | None] = {}
    for recorded in ranks.values():
        begin, end, known = recorded.begin_ns, recorded.end_ns, found.get(recorded.node)
        if not len(recorded.rows) or begin is None or end is None:
            found.setdefault(recorded.node, None)
        else:
            found[recorded.node] = (min(begin, known[0]), max(end, known[1])) if known else (begin, end)
    return found


def in_training(rows: Rows | None, when: tuple[int, int] | None) -> Rows | None:
    """Samples from the first step's begin to the last step's end, if there are any; else all of them."""
    if rows is None or when is None:
        return rows
    begin, end = np.searchsorted(rows["time_ns"], [when[0], when[1] + 1])  # samples are in order of time
    return rows[begin:end] if end > begin else rows
