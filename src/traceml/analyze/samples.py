"""Gauge samples of many nodes or ranks as tables over (member, sample)."""

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from traceml.analyze.window import Floats
from traceml.schema.recorded import RankRecording, RunRecording

Rows: TypeAlias = NDArray[np.void]
Times: TypeAlias = dict[int, tuple[int, int] | None]
MORE_THAN_PIDS: Final = 1 << 40


class Samples:
    """The samples of some members: `rows` sorted by member, `counts` of them each, possibly 0."""

    def __init__(self, members: tuple[int, ...], rows: Rows | None, counts: NDArray[np.int64]) -> None:
        self.members = members
        self.total = 0 if rows is None else len(rows)
        self._rows = rows
        self._shape = (len(members), max(counts.tolist(), default=0) or 1)
        self._member = np.repeat(np.arange(len(members)), counts)
        self._place = np.arange(self.total) - np.repeat(np.cumsum(counts) - counts, counts)

    def table(self, key: str) -> Floats:
        """One gauge; members with fewer samples are padded with NaN."""
        table = np.full(self._shape, np.nan)
        if self._rows is not None:
            table[self._member, self._place] = self._rows[key]
        return table


def machines(recording: RunRecording, ranks: dict[int, RankRecording]) -> list[int]:
    """One node per machine: under Slurm each task is a node to us, and several tasks share a machine."""
    of_node = {r.node: (r.identity.host, r.identity.node_rank) for r in ranks.values()}
    first: dict[object, int] = {}
    for node in recording.nodes:
        first.setdefault(of_node.get(node, node), node)
    return list(first.values())


def system_samples(recording: RunRecording, nodes: list[int], when: Times) -> Samples:
    """The samples of these nodes while they trained."""
    found = _in_training({node: recording.gauges(node).system_rows for node in nodes}, when)
    counts = np.array([len(rows) for rows in found.values()], dtype=np.int64)
    return Samples(tuple(found), _concatenated(list(found.values())), counts)


def process_samples(recording: RunRecording, ranks: dict[int, RankRecording], when: Times) -> Samples:
    """The samples of each rank while its node trained, from the monitor of its node."""
    by_node = _in_training({node: recording.gauges(node).process_rows for node in when}, when)
    every = _concatenated(list(by_node.values()))
    if every is None:
        return Samples(tuple(ranks), None, np.zeros(len(ranks), dtype=np.int64))
    nodes = np.repeat(np.array(list(by_node), dtype=np.int64), [len(rows) for rows in by_node.values()])
    keys = nodes * MORE_THAN_PIDS + every["pid"].astype(np.int64)
    wanted = np.array([r.node * MORE_THAN_PIDS + r.pid for r in ranks.values()], dtype=np.int64)
    order = np.argsort(wanted, kind="stable")
    at = order[np.minimum(np.searchsorted(wanted[order], keys), len(order) - 1)]
    owner = np.where(wanted[at] == keys, at, -1)
    by_owner = np.argsort(owner, kind="stable")[int(np.sum(owner < 0)) :]
    counts = np.bincount(owner[by_owner], minlength=len(ranks))
    return Samples(tuple(ranks), every[by_owner], counts)


def _concatenated(pieces: Sequence[Rows]) -> Rows | None:
    """All rows in one array; copied as bytes, because column by column is slow for many small pieces."""
    if not pieces:
        return None
    first = pieces[0].dtype
    if any(p.dtype != first or not p.flags.c_contiguous for p in pieces):
        return np.concatenate(pieces)
    return np.concatenate([p.view(np.uint8) for p in pieces]).view(first)


def training_times(ranks: dict[int, RankRecording]) -> Times:
    """For each node with ranks: when its first step began and its last one ended; None without a step."""
    found: Times = {}
    for recorded in ranks.values():
        begin, end, known = recorded.begin_ns, recorded.end_ns, found.get(recorded.node)
        if not len(recorded.rows) or begin is None or end is None:
            found.setdefault(recorded.node, None)
        else:
            found[recorded.node] = (min(begin, known[0]), max(end, known[1])) if known else (begin, end)
    return found


def _in_training(by_node: dict[int, Rows | None], when: Times) -> dict[int, Rows]:
    """The samples of each node between these times; all of its samples if there are none in between."""
    found = {}
    for node, rows in by_node.items():
        if rows is not None and len(rows):
            times = when.get(node)
            begin, end = np.searchsorted(rows["time_ns"], [times[0], times[1] + 1]) if times else (0, 0)
            found[node] = rows[begin:end] if end > begin else rows
    return found
