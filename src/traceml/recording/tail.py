"""Everything recorded in a run folder so far, as arrays: ranks, device times, gauges, events.

Each look reads only what is new. How many rows are held is bounded, whatever the run's length and size;
the steps before them are held as one block of exact sums (`RankRecording.earlier`).
"""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from traceml.errors import printable
from traceml.recording import layout
from traceml.recording.events import EventsTail
from traceml.recording.fold import STEPS, Fold, latest_of_each_step
from traceml.recording.layers import LayersTail
from traceml.recording.names import FolderNames, Listing, node_of
from traceml.recording.reader import Live, Rows, UnreadableRecording, names_of
from traceml.recording.rollup import HEAD_ROWS, rolled_up, rollup_name
from traceml.recording.rows_tail import RowsTail
from traceml.recording.trust import checked
from traceml.schema import catalog as c
from traceml.schema.recorded import NodeGauges, RankRecording, RecordedEvent, RunRecording, identity_of

S = TypeVar("S")
T = TypeVar("T")
LIVE_NAMES: Final = slice(layout.LIVE_NAMES - layout.LIVE_OFFSET, layout.LIVE_BYTES)
HEAD_COLUMNS: Final = ("step", "begin_ns", "end_ns")

MOST_CELLS: Final = 2_000_000
"""Rows held of all ranks together: about a gigabyte once they are aligned."""
LIVE_STEPS: Final = 128
LIVE_CELLS: Final = 524_288
LIVE_ROWS: Final = 5_000
"""A live view shows the newest steps only; a few more are held for ranks that are not in step."""
MOST_OWN_NS: Final = 100_000_000
"""Of our own cost per step; more is a damaged number."""
MOST_PROBLEMS: Final = 20
MOST_GAUGE_ROWS: Final = 1_000_000
_GAUGES: Final = {"system": c.SYSTEM_COLUMNS, "process": c.PROCESS_COLUMNS}


class Tail:
    """Reads a run folder again and again."""

    def __init__(self, run_dir: Path, most_cells: int = MOST_CELLS, most_rows: int | None = None) -> None:
        self.folder = run_dir / layout.FOLDER
        self.problems: list[str] = []
        self._most_cells = most_cells
        self._most_rows = most_rows
        self._ranks: dict[str, RankTail] = {}
        self._gauges: dict[str, RowsTail] = {}
        self._events: dict[str, EventsTail] = {}
        self._likely = 0  # rows of the rank that was read last
        self._names = FolderNames(self.folder)
        self._listed = Listing([])
        self._own: list[str] = []  # recordings of this machine's processes that have not ended
        self.ended: set[str] = set()
        """Recordings of processes that have ended: `local_ranks` looks at them no more."""

    @property
    def is_whole(self) -> bool:
        """Whether every row that was read is still held."""
        return not self.ended and all(rank.is_whole for rank in self._ranks.values())

    def threads(self) -> dict[int, int]:
        """Process id to the id of the thread that trains, for each local training process."""
        found = {}
        for rank in self.local_ranks():
            pid = rank.identity.pid or 0
            found[pid] = int(rank.header.get("process", {}).get("thread") or pid)
        return found

    def names(self) -> list[str]:
        """The files of the folder, possibly a moment old; the same list object if nothing is new."""
        names = self._names.look()
        if names is not self._listed.names:
            self._listed = Listing(names)
            self._own = [n for n in self._listed.ranks if n not in self.ended and ".node" not in n]
        return names

    def local_ranks(self) -> "list[RankTail]":
        """This machine's own ranks, up to date, without ended ones and those that other nodes relayed."""
        self.names()
        return self._pulled(self._own)

    def read_again(self, rank: "RankTail") -> None:
        """For a process that is found gone: what it recorded in its last moment."""
        self._pulled([rank.name])

    def end(self, name: str) -> None:
        """The process of this recording has ended: nothing of it is held any more."""
        self.ended.add(name)
        self._own = [own for own in self._own if own != name]
        self._ranks.pop(name, None)

    def list_again(self) -> None:
        """Look for new files at the next call, however long that takes."""
        self._names.forget()

    def read(self) -> RunRecording:
        """All published rows of all files, as far as they are held."""
        self.names()
        listed, there = self._listed, self._listed.there
        ranks = self._pulled(listed.ranks)
        most_gauges = MOST_GAUGE_ROWS // (2 * len(listed.nodes))
        return RunRecording(
            ranks=self._readable(ranks, lambda rank: rank.recording(there, self._note)),
            nodes={node: self._node_gauges(node, there, most_gauges) for node in listed.nodes},
            seen=listed.seen,
            problems=list(self.problems),
            monitor_events=self._events_of(listed.monitor_events),
            early_events=self._events_of(listed.early_events),
        )

    def _pulled(self, names: list[str]) -> "list[RankTail]":
        there = self._listed.there
        most = max(self._most_cells // max(len(names), 1), LIVE_STEPS)
        most = min(most, self._most_rows or most)

        def pull(name: str) -> "RankTail":
            rank = self._ranks.get(name)
            if rank is None:
                rank = self._ranks[name] = RankTail(str(self.folder), name)
            rank.pull(there, most, self._likely)
            self._likely = rank.steps.count
            return rank

        return self._readable(names, pull)

    def _events_of(self, names: list[str]) -> list[RecordedEvent]:
        for name in names:
            if name not in self._events:
                self._events[name] = EventsTail(str(self.folder / name))
        return [event for name in names for event in self._events[name].read()]

    def _node_gauges(self, node: int, there: set[str], most_rows: int) -> NodeGauges:
        def pull(kind: str) -> Rows | None:
            name = f"{kind}.node{node}.gauges" if node else f"{kind}.gauges"
            if name not in there:
                return None
            if name not in self._gauges:
                self._gauges[name] = _rows_tail(str(self.folder / name), _GAUGES[kind], None)
            _pull(self._gauges[name], most_rows, rollup_name(name) in there, 0)
            return self._gauges[name].held

        found = [self._readable([kind], pull) or [None] for kind in _GAUGES]
        return NodeGauges(*(rows for (rows,) in found))

    def _note(self, problem: str) -> None:
        problem = printable(problem)
        if problem in self.problems or len(self.problems) > MOST_PROBLEMS:
            return
        more = "More files cannot be read; they are not listed."
        self.problems.append(more if len(self.problems) == MOST_PROBLEMS else problem)

    def _readable(self, things: Iterable[S], read: Callable[[S], T]) -> list[T]:
        """What `read` returns for each of these. One bad file hides no other: it is noted once."""
        found = []
        for thing in things:
            try:
                found.append(read(thing))
            except (UnreadableRecording, OSError) as problem:
                self._note(str(problem))
        return found


def live_tail(run_dir: Path) -> Tail:
    """A tail for live views, which look at the newest steps again and again."""
    return Tail(run_dir, LIVE_CELLS, LIVE_ROWS)


class RankTail:
    """The files of one training process."""

    def __init__(self, folder: str, name: str) -> None:
        self.name = name
        stem = name.removesuffix(".steps")
        self.steps = _rows_tail(os.path.join(folder, name), c.STEP_COLUMNS, STEPS)
        self.header = checked(self.steps.header, self.steps.path)
        self.identity = identity_of(self.header)
        self._device: RowsTail | None = None
        self._device_name = f"{stem}.device"
        self._rollup, self._device_rollup = rollup_name(name), rollup_name(self._device_name)
        self._events = EventsTail(os.path.join(folder, f"{stem}.events.jsonl"))
        self._layers_name = f"{stem}.layers.jsonl"
        self._layers = LayersTail(os.path.join(folder, self._layers_name))
        self._repeats = False  # whether a step ever has two rows
        self._checked = 0
        self._head: Rows | None = None
        self.node = node_of(name)

    @property
    def live(self) -> Live:
        """What the process reported about itself at the last look."""
        return Live.parse(self.steps.live_bytes)

    @property
    def user_names(self) -> list[str | None]:
        """What `traceml.phase(...)` named, by slot."""
        return names_of(self.steps.live_bytes[LIVE_NAMES], c.USER_SLOTS)

    @property
    def is_whole(self) -> bool:
        """Whether every row that was read is still held."""
        return self.steps.earlier is None

    def pull(self, there: set[str], most_rows: int, likely: int) -> None:
        """Read the steps that are new; `there` holds the names of all files in the folder."""
        _pull(self.steps, most_rows, self._rollup in there, likely)

    def recording(self, there: set[str], note: Callable[[str], None]) -> RankRecording:
        """Everything about the rank: its steps as of the last pull, its device times, its events."""
        try:
            device_rows = self._device_rows(there)
        except (UnreadableRecording, OSError) as problem:
            note(str(problem))
            device_rows = None
        live = self.live
        return RankRecording(
            header=self.header,
            rows=self._rows_of_steps(),
            device_rows=device_rows,
            user_names=self.user_names,
            live_phase=live.phase,
            lost_rows=live.state == layout.STATE_LOST,
            own_scale=self._own_scale(live),
            other_steps=max(live.other_steps, 0),
            events=self._events.read(),
            layers=self._layers.read() if self._layers_name in there else [],
            node=self.node,
            earlier=self.steps.earlier,
            head=self._first_rows(),
            identity=self.identity,
        )

    def _own_scale(self, live: Live) -> float | None:
        """With what cannot be timed in a sampled step, of which the header has the cost."""
        if live.own_steps <= 0 or not 0 <= live.own_ns < MOST_OWN_NS * live.own_steps:
            return None  # none sampled, or damaged
        costs = self.header.get("overhead", {})
        switch_ns, row_ns, pass_ns, step_ns = (
            float(costs.get(name, 0.0)) for name in ("switch_ns", "row_ns", "pass_ns", "step_ns")
        )
        estimated = live.own_switches * switch_ns + live.own_steps * row_ns
        measured = live.own_ns + max(live.own_passes, 0) * pass_ns + live.own_steps * step_ns
        return measured / estimated if live.own_switches > 0 and estimated > 0 else None

    def _rows_of_steps(self) -> Rows:
        """One row per step. Only new rows are searched for repeats, which are rare."""
        rows = self.steps.held
        if not self._repeats:
            new = rows["step"][-(self.steps.count - self._checked + 1) :].tolist()
            self._repeats = len(set(new)) < len(new)
            self._checked = self.steps.count
        return latest_of_each_step(rows) if self._repeats else rows

    def _first_rows(self) -> Rows | None:
        if self.steps.earlier is not None and self._head is None:
            rows = latest_of_each_step(self.steps.head(HEAD_ROWS))[list(HEAD_COLUMNS)]
            self._head = rows.astype([(name, "<i8") for name in HEAD_COLUMNS])
        return self._head

    def _device_rows(self, there: set[str]) -> Rows | None:
        if self._device_name not in there:
            return None
        if self._device is None:
            path = self.steps.path.with_name(self._device_name)
            self._device = _rows_tail(str(path), c.DEVICE_COLUMNS, None)
        # A step has at most one row, so as many rows as there are steps held reach back as far.
        _pull(self._device, len(self.steps.held), self._device_rollup in there, self.steps.count)
        return self._device.held


def _pull(tail: RowsTail, most_rows: int, has_rollup: bool, likely: int) -> None:
    """Read everything new, even if rows that we have not read yet are rolled up, before or meanwhile."""
    if has_rollup and not tail.count:
        with suppress(UnreadableRecording, OSError):  # it may not be needed: see whether rows are missing
            _skip(tail)
    while not tail.pull(most_rows, likely) and _skip(tail):
        pass


def _skip(tail: RowsTail) -> bool:
    """Go on after what is rolled up; False when that is not further than what was read."""
    earlier = rolled_up(tail.path)
    if earlier is None or int(earlier["end_row"]) <= tail.count:
        return False
    tail.restart(earlier)
    return True


def _rows_tail(path: str, columns: layout.Columns, fold: Fold | None) -> RowsTail:
    """Refuses a recording of another kind, whose rows would be taken for something else."""
    tail = RowsTail(path, fold)
    there = tail.header["columns"]
    if there != columns and not {name for name, _ in there}.issuperset(name for name, _ in columns):
        raise UnreadableRecording(f"{path}: other columns than expected")
    return tail
