"""The tables of a run: steps, device times, samples and events, as columns, a piece at a time.

Times of all machines are on one axis, the wall clock: each machine's own clock is moved to it once, so that
what happened on one machine keeps its exact distances. What was not measured is NaN, never 0.
"""

import datetime
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from traceml.errors import CommandError, printable, say
from traceml.recording import layout
from traceml.recording.events import EventsTail
from traceml.recording.names import node_of
from traceml.recording.pieces import RecordingPieces
from traceml.recording.reader import Rows, UnreadableRecording
from traceml.recording.rollup import read_blocks
from traceml.recording.tail import RankTail
from traceml.runs.manifest import read_manifest, recorded_at
from traceml.schema import catalog as c
from traceml.schema.recorded import RecordedEvent

WHOLE, MAYBE_WHOLE, NUMBER, TEXT = "whole", "maybe whole", "number", "text"
"""Kinds of columns. A whole number that may be missing is held as a float with NaN."""
Piece = dict[str, NDArray[Any]]
NS_PER_MS: Final = 1e6
MEMORY: Final = {
    "rss_bytes": c.FLAG_RSS,
    "peak_allocated_bytes": c.FLAG_DEVICE_MEMORY,
    "peak_reserved_bytes": c.FLAG_DEVICE_MEMORY,
}
WHO: Final = {"rank": WHOLE, "node": WHOLE, "pid": WHOLE}
SPAN: Final = {"begin_unix_ns": WHOLE, "end_unix_ns": WHOLE}


@dataclass(frozen=True, slots=True)
class Table:
    """A table: its columns with their kinds, and its rows, piece by piece."""

    name: str
    columns: dict[str, str]
    pieces: Callable[[], Iterator[Piece]]


class RankFile(RankTail):
    """The recording of one training process."""

    @property
    def who(self) -> dict[str, int]:
        """What tells its rows from those of others."""
        return {"rank": self.identity.rank or 0, "node": self.node, "pid": self.identity.pid or 0}

    @property
    def clock(self) -> int | None:
        """Nanoseconds from the machine's clock to the wall clock, as this process saw it."""
        process = self.header.get("process", {})
        wall_ns, clock_ns = process.get("wall_ns"), process.get("clock_ns")
        return wall_ns - clock_ns if wall_ns and clock_ns else None


class RunTables:
    """All tables of one run folder."""

    def __init__(self, folder: Path, last: int | None = None) -> None:
        """`last` keeps only the newest rows of each file."""
        self.manifest = read_manifest(folder)
        self._folder = recorded_at(folder, self.manifest) / layout.FOLDER
        self._last = last
        try:
            self._names = sorted(os.listdir(self._folder))
        except OSError as problem:
            where = printable(str(folder))
            raise CommandError(f"{where}: nothing recorded there ({problem.strerror})") from None

    @cached_property
    def ranks(self) -> list[RankFile]:
        """The recordings that can be read, in the order of ranks."""
        names = [n for n in self._names if n.startswith("rank-") and n.endswith(".steps")]
        read = partial(RankFile, str(self._folder))
        found = [rank for name in names if (rank := _readable(read, name)) is not None]
        return sorted(found, key=lambda r: (r.identity.rank or 0, r.clock or 0, r.identity.pid or 0))

    def tables(self) -> list[Table]:
        """Every table; one may have no rows."""
        users = {f"user.{name}": None for r in self.ranks for name in r.user_names if name}
        phases = [*(p.key for p in c.PHASES), *users, "wait", *(w.key for w in c.WAIT_PLACES)]
        times = {f"{key}_ms": NUMBER for key in phases}
        memory = dict.fromkeys(MEMORY, MAYBE_WHOLE)
        work = {"samples": MAYBE_WHOLE, "tokens": MAYBE_WHOLE, "micro_batches": WHOLE, "gc_ms": NUMBER}
        step = {**WHO, "step": WHOLE, **SPAN, "step_ms": NUMBER, **times, **memory, **work}
        totals = {"steps": WHOLE, **SPAN, "step_ms": NUMBER, **times}
        block = {**WHO, "first_step": WHOLE, "last_step": WHOLE, **totals}
        device = {**WHO, "step": WHOLE, **{f"{k}_ms": NUMBER for k in phases[: -len(c.WAIT_PLACES)]}}
        system = {"node": WHOLE, "unix_ns": WHOLE, **_gauge_kinds(c.SYSTEM_COLUMNS)}
        process = {**WHO, "rank": MAYBE_WHOLE, "unix_ns": WHOLE, **_gauge_kinds(c.PROCESS_COLUMNS)}
        event = {**WHO, "rank": MAYBE_WHOLE, "pid": MAYBE_WHOLE, "unix_ns": WHOLE, "kind": TEXT}
        event |= {"step": MAYBE_WHOLE, "duration_ms": NUMBER, "phase": TEXT, "message": TEXT}
        return [
            Table("steps", step, lambda: self._of_ranks(self._steps, step)),
            Table("step_blocks", block, lambda: self._of_ranks(self._blocks, block)),
            Table("device_steps", device, lambda: self._of_ranks(self._device, device)),
            Table("system", system, lambda: self._gauges("system", system)),
            Table("process", process, lambda: self._gauges("process", process)),
            Table("events", event, self._events),
        ]

    @cached_property
    def _clocks(self) -> dict[int, int]:
        """For each node, what its clock is moved by."""
        found: dict[int, int] = {}
        for rank in self.ranks:
            if rank.clock is not None:
                found.setdefault(rank.node, rank.clock)
        begin_ns, started = self.manifest.get("begin_ns"), self.manifest.get("started_at")
        if 0 not in found and isinstance(begin_ns, int) and isinstance(started, str):
            began = datetime.datetime.fromisoformat(started)
            found[0] = int(began.timestamp() * 1e9) - begin_ns
        return found

    def clock_of(self, node: int) -> int:
        """What to add to a time of this node to get wall-clock time."""
        return self._clocks.get(node, 0)

    def _of_ranks(
        self, pieces: Callable[[RankFile], Iterator[Piece]], columns: dict[str, str]
    ) -> Iterator[Piece]:
        for rank in self.ranks:
            try:
                for piece in pieces(rank):
                    yield _completed(piece, rank.who, columns)
            except (UnreadableRecording, OSError) as problem:
                say(f"a part is left out: {problem}")

    def _steps(self, rank: RankFile) -> Iterator[Piece]:
        for rows in RecordingPieces(rank.steps.path).pieces(self._last):
            step_ms = (rows["end_ns"] - rows["begin_ns"]) / NS_PER_MS
            piece: Piece = {"step": rows["step"], **self._span(rows, rank), "step_ms": step_ms}
            piece |= _times(rows, rank.user_names)
            piece |= {name: _measured(rows[name], rows, flag) for name, flag in MEMORY.items()}
            piece |= {name: np.where(rows[name], rows[name], np.nan) for name in ("samples", "tokens")}
            piece |= {"micro_batches": rows["micro_batches"].astype(np.int64), "gc_ms": rows["gc_us"] / 1e3}
            yield piece

    def _blocks(self, rank: RankFile) -> Iterator[Piece]:
        """Old steps of a long run, which were folded into blocks: the sum of each block."""
        blocks = read_blocks(rank.steps.path) if self._last is None else None
        if blocks is not None:
            piece: Piece = {name: blocks[name] for name in ("first_step", "last_step", "steps")}
            piece |= {**self._span(blocks, rank), "step_ms": blocks["step_ns"] / NS_PER_MS}
            yield piece | _times(blocks, rank.user_names)

    def _device(self, rank: RankFile) -> Iterator[Piece]:
        path = rank.steps.path.with_suffix(".device")
        if path.name in self._names:
            for rows in RecordingPieces(path).pieces(self._last):
                wait = {"wait_ms": rows["wait"] / NS_PER_MS}
                yield {"step": rows["step"], **_phases(rows, rank.user_names), **wait}

    def _span(self, rows: Rows, rank: RankFile) -> Piece:
        clock = self.clock_of(rank.node)
        return {"begin_unix_ns": rows["begin_ns"] + clock, "end_unix_ns": rows["end_ns"] + clock}

    def _gauges(self, kind: str, columns: dict[str, str]) -> Iterator[Piece]:
        ranks = {(r.node, r.identity.pid): float(r.identity.rank or 0) for r in self.ranks}
        for name in (n for n in self._names if n.startswith(f"{kind}.") and n.endswith(".gauges")):
            node = node_of(name)
            if node not in self._clocks or (file := _readable(RecordingPieces, self._folder / name)) is None:
                continue
            for rows in file.pieces(self._last):
                piece: Piece = {"unix_ns": rows["time_ns"] + self.clock_of(node)}
                piece |= {key: rows[key] for key in (rows.dtype.names or ()) if key in columns}
                if "pid" in piece:
                    ids = [ranks.get((node, pid), np.nan) for pid in piece["pid"].tolist()]
                    piece["rank"] = np.array(ids, dtype=float)
                yield _completed(piece, {"node": node}, columns)

    def events(self) -> list[tuple[RecordedEvent, int, RankFile | None]]:
        """Each notable event with its node, and its rank's recording if that wrote it."""
        files = {r.steps.path.with_suffix(".events.jsonl").name: r for r in self.ranks}
        return [
            (event, node_of(name), files.get(name))
            for name in self._names
            if name.endswith(".events.jsonl")
            for event in EventsTail(str(self._folder / name)).read()
        ]

    def when(self, event: RecordedEvent, node: int) -> int:
        """Wall-clock time of an event."""
        return event.wall_ns or event.time_ns + self.clock_of(node)

    def _events(self) -> Iterator[Piece]:
        found = self.events()
        if not found:
            return
        ranks = [r.identity.rank if r is not None else e.rank for e, _, r in found]
        pids = [r.identity.pid if r is not None else e.pid for e, _, r in found]
        yield {
            "rank": np.array([np.nan if rank is None or rank < 0 else rank for rank in ranks], dtype=float),
            "node": np.array([node for _, node, _ in found]),
            "pid": np.array([np.nan if pid is None else pid for pid in pids], dtype=float),
            "unix_ns": np.array([self.when(e, node) for e, node, _ in found]),
            "kind": np.array([e.kind for e, _, _ in found], dtype=object),
            "step": np.array([np.nan if e.step is None else e.step for e, _, _ in found], dtype=float),
            "duration_ms": np.array([e.duration_ns / NS_PER_MS for e, _, _ in found]),
            "phase": np.array([e.phase or e.during for e, _, _ in found], dtype=object),
            "message": np.array([e.message for e, _, _ in found], dtype=object),
        }


def _readable(read: Callable[[Any], Any], path: str | Path) -> Any:
    try:
        return read(path)
    except (UnreadableRecording, OSError) as problem:
        say(f"a file is left out: {problem}")
        return None


def _gauge_kinds(columns: layout.Columns) -> dict[str, str]:
    return {name: MAYBE_WHOLE if name.endswith("_bytes") else NUMBER for name, code in columns if code == "d"}


def _times(rows: Rows, names: list[str | None]) -> Piece:
    """Phases, the rest (`wait`) and its places, in ms."""
    places = {f"{w.key}_ms": rows[w.key] / NS_PER_MS for w in c.WAIT_PLACES}
    return {**_phases(rows, names), "wait_ms": np.sum(list(places.values()), axis=0), **places}


def _phases(rows: Rows, names: list[str | None]) -> Piece:
    found: Piece = {}
    for slot, phase in enumerate(c.PHASES):
        found[f"{phase.key}_ms"] = _measured(rows[phase.key], rows, 1 << slot) / NS_PER_MS
    for slot, name in enumerate(names):
        if name:
            found[f"user.{name}_ms"] = rows[f"user{slot}"] / NS_PER_MS
    return found


def _measured(values: NDArray[Any], rows: Rows, flag: int) -> NDArray[np.float64]:
    """NaN where the row's flags say that this was not measured; device rows have none."""
    if "flags" not in (rows.dtype.names or ()):
        return values.astype(np.float64)
    return np.where(rows["flags"] & flag, values, np.nan)


def _completed(piece: Piece, who: dict[str, int], columns: dict[str, str]) -> Piece:
    """With a value in every column, in the order of the table."""
    count = len(next(iter(piece.values())))
    fixed = {name: np.full(count, value) for name, value in who.items()}
    missing = np.full(count, np.nan)
    return {name: piece.get(name, fixed.get(name, missing)) for name in columns}
