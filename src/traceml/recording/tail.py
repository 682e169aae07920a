"""Everything recorded in a run folder so far, as arrays: ranks, device times, gauges, events.

Each look reads only what is new. How many rows are held is bounded, whatever the run's length and size;
the steps before them are held as one block of exact sums (`RankRecording.earlier`).
"""

import os
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, TypeVar

from traceml.errors import printable
from traceml.recording import layout
from traceml.recording.fold import STEPS, latest_of_each_step
from traceml.recording.lines import EventsTail, LayersTail
from traceml.recording.reader import Live, Rows, UnreadableRecording, checked, names_of
from traceml.recording.rollup import HEAD_ROWS
from traceml.recording.rows_tail import RowsTail
from traceml.schema import catalog as c
from traceml.schema.recorded import NodeGauges, RankRecording, RecordedEvent, RunRecording, identity_of

S = TypeVar("S")
T = TypeVar("T")
LIVE_NAMES: Final = slice(layout.LIVE_NAMES - layout.LIVE_OFFSET, layout.LIVE_BYTES)
HEAD_COLUMNS: Final = ("step", "begin_ns", "end_ns", c.PHASES[c.SYNC].key)

MOST_CELLS: Final = 2_000_000
"""Rows held of all ranks together: about a gigabyte once they are aligned."""
LIVE_STEPS: Final = 128
LIVE_CELLS: Final = 524_288
LIVE_ROWS: Final = 5_000
"""A live view shows the newest steps only; a few more are held for ranks that are not in step."""
MOST_OWN_NS: Final = 100_000_000
"""Of our own cost per step; more is a damaged number."""
OWN_FACTOR: Final = 2.3
"""The whole cost over what a sampled step can time: the ways into our code and out of it come on top, and
what the user's code has to fetch into the caches again. `bench/overhead.py` measures it from outside. Per
timed call that is less than a row takes: reading memory, for example, is timed as a whole."""
MOST_PROBLEMS: Final = 20
MOST_GAUGE_ROWS: Final = 1_000_000
_GAUGES: Final = {"system": c.SYSTEM_COLUMNS, "process": c.PROCESS_COLUMNS}
NODE: Final = re.compile(r"\.node([0-9]{1,7})\.")
SETTLED_NS: Final = 2_000_000_000
COSTLY_S: Final = 0.0005
PAUSES: Final = 200
"""After a listing that took longer than `COSTLY_S`, this many times as long passes before the next one: what
is done with the names takes several times as long as the listing."""


class FolderNames:
    """The file names of a folder that may hold very many: a sweep leaves a few files per ended process.
    Listed again only if the folder has changed, and seldom if listing takes long."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._changed_ns = 0
        self._names: list[str] = []
        self._not_before_s = 0.0

    def look(self) -> list[str]:
        """The names; the same list object as long as they were not listed again."""
        began_s = time.monotonic()
        if began_s < self._not_before_s:
            return self._names
        changed_ns = os.stat(self._folder).st_mtime_ns
        if changed_ns != self._changed_ns:
            cpu_s = time.thread_time()  # on a busy machine the time that passes says little
            self._names = os.listdir(self._folder)
            # A file that comes within the same tick of the file system's clock does not change it again.
            self._changed_ns = changed_ns if time.time_ns() - changed_ns > SETTLED_NS else 0
            took_s = time.thread_time() - cpu_s
            self._not_before_s = began_s + PAUSES * took_s if took_s > COSTLY_S else 0.0
        return self._names

    def forget(self) -> None:
        """List again at the next look, however long that takes."""
        self._changed_ns, self._not_before_s = 0, 0.0


class Listing:
    """What these names are, found out once for all looks that see the same names."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.there = set(names)
        self.ranks = sorted(n for n in names if n.startswith("rank-") and n.endswith(".steps"))
        self.nodes = sorted({0, *(node_of(n) for n in names if ".node" in n)})
        """The nodes with files here; node 0 always."""
        self.seen = frozenset(n.removeprefix("seen-") for n in names if n.startswith("seen-"))
        """How far the command got."""
        events = sorted(n for n in names if n.endswith(".events.jsonl"))
        self.monitor_events = [n for n in events if n.startswith("monitor")]
        self.early_events = [n for n in events if n.startswith("early")]
        """The files of what monitors saw, and of processes that never became a rank."""


def node_of(name: str) -> int:
    """The node that a file comes from."""
    return int(found.group(1)) if (found := NODE.search(name)) is not None else 0


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
        self.list_again = self._names.forget
        self._listed = Listing([])
        self._own: list[str] = []  # recordings of this machine's processes that have not ended
        self.ended: set[str] = set()
        """Recordings of processes that have ended: `local_ranks` looks at them no more."""

    @property
    def is_whole(self) -> bool:
        """Whether every row that was read is still held."""
        return not self.ended and all(rank.steps.earlier is None for rank in self._ranks.values())

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

    def read(self) -> RunRecording:
        """All published rows of all files, as far as they are held."""
        self.names()
        listed, ranks = self._listed, self._pulled(self._listed.ranks)
        return RunRecording(
            ranks=self._readable(ranks, lambda rank: rank.recording(listed.there, self._note)),
            nodes={node: self._node_gauges(node) for node in listed.nodes},
            seen=listed.seen,
            problems=list(self.problems),
            monitor_events=self._events_of(listed.monitor_events),
            early_events=self._events_of(listed.early_events),
        )

    def _pulled(self, names: list[str]) -> "list[RankTail]":
        most = max(self._most_cells // max(len(names), 1), LIVE_STEPS)
        most = min(most, self._most_rows or most)

        def pull(name: str) -> "RankTail":
            rank = self._ranks.get(name)
            if rank is None:
                rank = self._ranks[name] = RankTail(str(self.folder), name)
            rank.steps.pull(most, self._likely)
            self._likely = rank.steps.count
            return rank

        return self._readable(names, pull)

    def _events_of(self, names: list[str]) -> list[RecordedEvent]:
        for name in names:
            if name not in self._events:
                self._events[name] = EventsTail(str(self.folder / name))
        return [event for name in names for event in self._events[name].read()]

    def _node_gauges(self, node: int) -> NodeGauges:
        def pull(kind: str) -> Rows | None:
            name = f"{kind}.node{node}.gauges" if node else f"{kind}.gauges"
            if name not in self._listed.there:
                return None
            if name not in self._gauges:
                self._gauges[name] = RowsTail(str(self.folder / name), _GAUGES[kind], None)
            self._gauges[name].pull(MOST_GAUGE_ROWS // (2 * len(self._listed.nodes)))
            return self._gauges[name].held

        found = [self._readable([kind], pull) or [None] for kind in _GAUGES]
        return NodeGauges(*(rows for (rows,) in found))

    def _note(self, problem: Exception) -> None:
        line = printable(str(problem))
        if line in self.problems or len(self.problems) > MOST_PROBLEMS:
            return
        more = "More files cannot be read; they are not listed."
        self.problems.append(more if len(self.problems) == MOST_PROBLEMS else line)

    def _readable(self, things: Iterable[S], read: Callable[[S], T]) -> list[T]:
        """What `read` returns for each of these. One bad file hides no other: it is noted once."""
        found = []
        for thing in things:
            try:
                found.append(read(thing))
            except (UnreadableRecording, OSError) as problem:
                self._note(problem)
        return found


def live_tail(run_dir: Path) -> Tail:
    """A tail for live views, which look at the newest steps again and again."""
    return Tail(run_dir, LIVE_CELLS, LIVE_ROWS)


class RankTail:
    """The files of one training process."""

    def __init__(self, folder: str, name: str) -> None:
        self.name, self.node = name, node_of(name)
        stem = os.path.join(folder, name.removesuffix(".steps"))
        self.steps = RowsTail(f"{stem}.steps", c.STEP_COLUMNS, STEPS)
        self.header = checked(self.steps.header, self.steps.path)
        self.identity = identity_of(self.header)
        self._events, self._layers = EventsTail(f"{stem}.events.jsonl"), LayersTail(f"{stem}.layers.jsonl")
        self._device: RowsTail | None = None
        self._stem = stem
        self._device_name = name.removesuffix("steps") + "device"
        self._layers_name = name.removesuffix("steps") + "layers.jsonl"
        self._repeats = False  # whether a step ever has two rows
        self._checked = 0
        self._head: Rows | None = None

    @property
    def live(self) -> Live:
        """What the process reported about itself at the last look."""
        return Live.parse(self.steps.live_bytes)

    def recording(self, there: set[str], note: Callable[[Exception], None]) -> RankRecording:
        """Everything about the rank: its steps as of the last pull, its device times, its events. `there`
        holds the names of all files in the folder."""
        device_rows = None
        if self._device_name in there:
            try:
                device_rows = self._device_rows()
            except (UnreadableRecording, OSError) as problem:
                note(problem)
        live = self.live
        return RankRecording(
            header=self.header,
            rows=self._rows_of_steps(),
            device_rows=device_rows,
            user_names=names_of(self.steps.live_bytes[LIVE_NAMES], c.USER_SLOTS),
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
        """Measured over estimated cost of the sampled steps. The part that cannot be timed in them is in the
        header."""
        if live.own_steps <= 0 or not 0 <= live.own_ns < MOST_OWN_NS * live.own_steps:
            return None  # none sampled, or damaged
        costs = self.header.get("overhead", {})
        switch_ns, row_ns, pass_ns, step_ns = (
            float(costs.get(name, 0.0)) for name in ("switch_ns", "row_ns", "pass_ns", "step_ns")
        )
        estimated = live.own_switches * switch_ns + live.own_steps * row_ns
        unseen = min((OWN_FACTOR - 1) * live.own_ns, live.own_switches * row_ns)
        measured = live.own_ns + unseen + max(live.own_passes, 0) * pass_ns + live.own_steps * step_ns
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
        """Warm-up is recognized by them; they are never rolled up."""
        if self.steps.earlier is not None and self._head is None:
            rows = latest_of_each_step(self.steps.copied(0, HEAD_ROWS))[list(HEAD_COLUMNS)]
            self._head = rows.astype([(name, "<i8") for name in HEAD_COLUMNS])
        return self._head

    def _device_rows(self) -> Rows:
        if self._device is None:
            self._device = RowsTail(f"{self._stem}.device", c.DEVICE_COLUMNS, None)
        # A step has at most one row, so as many rows as there are steps held reach back as far.
        self._device.pull(len(self.steps.held), self.steps.count)
        return self._device.held
