"""Everything recorded in a run folder so far, as arrays: ranks, device times, gauges, events.

Each look reads only what is new. How many rows are held is bounded, whatever the run's length and size;
the steps before them are held as one block of exact sums (`RankRecording.earlier`).
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from traceml.collect.events_tail import EventsTail, read_events
from traceml.collect.rollup import HEAD_ROWS, rolled_up, rolled_up_rows, rollup_name
from traceml.collect.rows_tail import RowsTail
from traceml.collect.rundir import RECORDING
from traceml.recording import format as fmt
from traceml.recording.fold import STEPS, Fold, latest_of_each_step
from traceml.recording.reader import RecordingReader, UnreadableRecording, names_of
from traceml.schema import catalog as c
from traceml.schema.recorded import NodeGauges, RankRecording, RunRecording

__all__ = ["LIVE_STEPS", "Tail", "latest_of_each_step", "live_tail", "read_events"]

Columns: TypeAlias = tuple[tuple[str, str], ...]
NODE: Final = re.compile(r"\.node(\d+)\.")
HEAD_COLUMNS: Final = ("step", "begin_ns", "end_ns")

MOST_CELLS: Final = 2_000_000
"""Rows held of all ranks together: about a gigabyte once they are aligned."""
LIVE_STEPS: Final = 200
LIVE_CELLS: Final = 900_000
LIVE_ROWS: Final = 5_000
"""A live view looks at the newest steps only; a few more are held for ranks that are not in step."""
MOST_GAUGE_ROWS: Final = 1_000_000
_GAUGES: Final = (("system", c.SYSTEM_COLUMNS), ("process", c.PROCESS_COLUMNS))


class Tail:
    """Reads a run folder again and again."""

    def __init__(self, run_dir: Path, most_cells: int = MOST_CELLS, most_rows: int | None = None) -> None:
        self.folder = run_dir / RECORDING
        self.problems: list[str] = []
        self._most_cells = most_cells
        self._most_rows = most_rows
        self._readers: dict[str, RecordingReader] = {}
        self._ranks: dict[str, _RankTail] = {}
        self._gauges: dict[str, RowsTail] = {}
        self._events: dict[str, EventsTail] = {}
        self._likely = 0  # rows of the rank that was read last

    def threads(self) -> dict[int, int]:
        """Process id to the thread that trains, of every process that does."""
        found = {}
        for reader in self.local_ranks():
            pid = int(reader.header["identity"].get("pid", 0))
            found[pid] = int(reader.header.get("process", {}).get("thread") or pid)
        return found

    def local_ranks(self) -> list[RecordingReader]:
        """The recordings of this machine's own ranks; what other nodes relayed is not among them."""
        names = (n for n in _rank_names(os.listdir(self.folder)) if ".node" not in n)
        readers = (self._reader(name) for name in names)
        return [reader for reader in readers if reader is not None]

    def read(self) -> RunRecording:
        """All published rows of all files, as far as they are held."""
        names = os.listdir(self.folder)
        there = set(names)
        steps = _rank_names(names)
        most = max(self._most_cells // max(len(steps), 1), LIVE_STEPS)
        most = min(most, self._most_rows or most)
        ranks = [r for name in steps if (r := self._rank(name, there, most)) is not None]
        nodes = sorted({int(m.group(1)) for n in names if (m := NODE.search(n)) is not None})
        most_gauges = MOST_GAUGE_ROWS // (2 * len(nodes) + 2)
        gauges = {node: self._node_gauges(node, there, most_gauges) for node in (0, *nodes)}
        return RunRecording(
            ranks=ranks,
            system_rows=gauges[0].system_rows,
            process_rows=gauges[0].process_rows,
            seen=frozenset(n.removeprefix("seen-") for n in names if n.startswith("seen-")),
            problems=list(self.problems),
            other_nodes={node: gauges[node] for node in nodes},
            monitor_events=[
                event
                for name in sorted(there)
                if name.startswith("monitor") and name.endswith(".events.jsonl")
                for event in self._events.setdefault(name, EventsTail(str(self.folder / name))).read()
            ],
        )

    def _rank(self, name: str, there: set[str], most_rows: int) -> RankRecording | None:
        try:
            tail = self._ranks.get(name)
            if tail is None:
                tail = self._ranks[name] = _RankTail(str(self.folder), name)
            recording = tail.read(there, most_rows, self._likely)
            self._likely = tail.newest
            return recording
        except (UnreadableRecording, OSError) as problem:
            self._note(problem)
            return None

    def _node_gauges(self, node: int, there: set[str], most_rows: int) -> NodeGauges:
        found: list[NDArray[np.void] | None] = []
        for kind, columns in _GAUGES:
            name = f"{kind}.node{node}.gauges" if node else f"{kind}.gauges"
            rows = None
            try:
                if name in there:
                    if name not in self._gauges:
                        self._gauges[name] = _rows_tail(str(self.folder / name), columns, None)
                    _pull(self._gauges[name], most_rows, rollup_name(name) in there, 0)
                    rows = self._gauges[name].rows
            except (UnreadableRecording, OSError) as problem:
                self._note(problem)
            found.append(rows)
        return NodeGauges(*found)

    def _reader(self, name: str) -> RecordingReader | None:
        if name not in self._readers:
            try:
                path = self.folder / name
                reader = RecordingReader(path, rolled_up_rows(path))
                _check(path, reader.header, c.STEP_COLUMNS, of_rank=True)
                self._readers[name] = reader
            except (UnreadableRecording, OSError) as problem:
                self._note(problem)
                return None
        return self._readers[name]

    def _note(self, problem: Exception) -> None:
        """One bad file hides no other: it is named once."""
        if str(problem) not in self.problems:
            self.problems.append(str(problem))


def live_tail(run_dir: Path) -> Tail:
    """A tail for live views, which look at the newest steps again and again."""
    return Tail(run_dir, LIVE_CELLS, LIVE_ROWS)


class _RankTail:
    """The files of one training process."""

    def __init__(self, folder: str, name: str) -> None:
        stem = name.removesuffix(".steps")
        self._steps = _rows_tail(os.path.join(folder, name), c.STEP_COLUMNS, STEPS, of_rank=True)
        self._device: RowsTail | None = None
        self._device_name = f"{stem}.device"
        self._rollup, self._device_rollup = rollup_name(name), rollup_name(self._device_name)
        self._events = EventsTail(os.path.join(folder, f"{stem}.events.jsonl"))
        self._repeats = False  # whether a step ever has two rows
        self._checked = 0
        self._head: NDArray[np.void] | None = None
        self._names_bytes = bytes(c.USER_SLOTS * fmt.NAME_BYTES)
        self._names: list[str | None] = [None] * c.USER_SLOTS
        self._node = int(found.group(1)) if (found := NODE.search(name)) is not None else 0

    @property
    def newest(self) -> int:
        return self._steps.newest

    def read(self, there: set[str], most_rows: int, likely: int) -> RankRecording:
        steps = self._steps
        _pull(steps, most_rows, self._rollup in there, likely)
        live = steps.live
        return RankRecording(
            header=steps.header,
            rows=self._rows_of_steps(),
            device_rows=self._device_rows(there),
            user_names=self._user_names(live),
            live_phase=live[0] if live else 0,
            lost_rows=len(live) > 1 and live[1] == fmt.STATE_LOST,
            events=self._events.read(),
            node=self._node,
            earlier=steps.earlier,
            head=self._first_rows(),
        )

    def _rows_of_steps(self) -> NDArray[np.void]:
        """One row a step. What was looked at before is not looked at again: repeats are rare."""
        rows = self._steps.rows
        new = rows[-(self._steps.newest - self._checked + 1) :]
        self._checked = self._steps.newest
        self._repeats = self._repeats or len(latest_of_each_step(new)) < len(new)
        return latest_of_each_step(rows) if self._repeats else rows

    def _first_rows(self) -> NDArray[np.void] | None:
        if self._steps.earlier is not None and self._head is None:
            rows = latest_of_each_step(self._steps.head(HEAD_ROWS))[list(HEAD_COLUMNS)]
            self._head = rows.astype([(name, "<i8") for name in HEAD_COLUMNS])
        return self._head

    def _device_rows(self, there: set[str]) -> NDArray[np.void] | None:
        """Device times of the steps that are held."""
        if self._device_name not in there:
            return None
        if self._device is None:
            path = self._steps.path.with_name(self._device_name)
            self._device = _rows_tail(str(path), c.DEVICE_COLUMNS, None)
        # A step has one row at most, so that as many rows as there are steps reach back as far.
        _pull(self._device, len(self._steps.rows), self._device_rollup in there, self.newest)
        return self._device.rows

    def _user_names(self, live: bytes) -> list[str | None]:
        data = live[fmt.LIVE_NAMES - fmt.LIVE_OFFSET :][: c.USER_SLOTS * fmt.NAME_BYTES]
        if data != self._names_bytes:
            self._names_bytes, self._names = data, names_of(data, c.USER_SLOTS)
        return self._names


def _pull(tail: RowsTail, most_rows: int, has_rollup: bool, likely: int) -> None:
    """Everything new, also when rows that we had not read yet are rolled up, before or meanwhile."""
    if has_rollup and not tail.newest:
        _skip(tail)
    while not tail.pull(most_rows, likely) and _skip(tail):
        pass


def _skip(tail: RowsTail) -> bool:
    """Go on after what is rolled up; False when that is not further than what was read."""
    earlier = rolled_up(tail.path)
    if earlier is None or int(earlier["end_row"]) <= tail.newest:
        return False
    tail.restart(earlier)
    return True


def _rank_names(names: list[str]) -> list[str]:
    return sorted(n for n in names if n.startswith("rank-") and n.endswith(".steps"))


def _rows_tail(path: str, columns: Columns, fold: Fold | None, of_rank: bool = False) -> RowsTail:
    tail = RowsTail(path, fold)
    _check(path, tail.header, columns, of_rank)
    return tail


def _check(path: str | Path, header: dict[str, Any], columns: Columns, of_rank: bool) -> None:
    """Refuse what is a recording but not of this kind: its rows would be taken for something else."""
    there = header["columns"]
    if there != columns and not {name for name, _ in there}.issuperset(name for name, _ in columns):
        raise UnreadableRecording(f"{path}: other columns than expected")
    who = header.get("identity")
    if of_rank and not (isinstance(who, dict) and all(type(who.get(k, 0)) is int for k in ("rank", "pid"))):
        raise UnreadableRecording(f"{path}: does not say which rank it is of")
