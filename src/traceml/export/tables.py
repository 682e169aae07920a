"""The tables of a run, and `traceml.load`: steps, device times, samples and events, as columns.

Times of all machines are on one axis, the wall clock: each machine's own clock is moved to it once, so that
what happened on one machine keeps its exact distances. What was not measured is NaN, never 0.
"""

import datetime
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from traceml.errors import CommandError, TraceMLError, printable, say
from traceml.recording.tail import Tail
from traceml.runs import summary_file
from traceml.runs.manifest import read_manifest, recorded_at
from traceml.schema import catalog as c
from traceml.schema.recorded import RankRecording, RecordedEvent

WHOLE, NUMBER, TEXT = "whole", "number", "text"
"""Kinds of columns. Whole numbers that may be missing are held as floats with NaN."""
Rows = NDArray[np.void]
Piece = dict[str, NDArray[Any]]
NS_PER_MS: Final = 1e6
MEMORY: Final = {
    "rss_bytes": c.FLAG_RSS,
    "peak_allocated_bytes": c.FLAG_DEVICE_MEMORY,
    "peak_reserved_bytes": c.FLAG_DEVICE_MEMORY,
}
WHO: Final = ("rank", "node", "pid")
SPAN: Final = ("begin_unix_ns", "end_unix_ns")
COUNTS: Final = ("step", "first_step", "last_step", "steps", "samples", "tokens", "micro_batches")
KINDS: Final = {**dict.fromkeys(WHO + COUNTS, WHOLE), **dict.fromkeys(("kind", "phase", "message"), TEXT)}
"""By the name of the column; of the others, those in `_ns` and `_bytes` are whole and the rest numbers."""


class Table(dict[str, NDArray[Any]]):
    """A table: a NumPy array for each column, all of the same length. What was not measured is NaN."""

    def __init__(self, name: str, columns: Iterable[str], pieces: Iterable[Piece]) -> None:
        self.name = name
        self.kinds = {k: KINDS.get(k, WHOLE if k.endswith(("_ns", "_bytes")) else NUMBER) for k in columns}
        found, empty = list(pieces), {WHOLE: np.int64, TEXT: np.object_}
        super().__init__(
            (key, np.concatenate([p[key] for p in found] or [np.empty(0, empty.get(kind, np.float64))]))
            for key, kind in self.kinds.items()
        )

    @property
    def rows(self) -> int:
        return len(next(iter(self.values())))

    def frame(self) -> Any:
        """The same as a pandas DataFrame."""
        try:
            import pandas as pd
        except ImportError:
            raise TraceMLError("frame() needs pandas: pip install pandas") from None
        whole = [name for name, kind in self.kinds.items() if kind == WHOLE and self[name].dtype.kind == "f"]
        return pd.DataFrame(self).astype(dict.fromkeys(whole, "Int64"))


class RunTables:
    """All tables of one run folder, as it is now."""

    def __init__(self, folder: Path, last: int | None = None) -> None:
        """`last` keeps only the newest rows of each file."""
        self.manifest = read_manifest(folder)
        self._newest = slice(-last if last is not None else None, None)
        try:
            self._recorded = Tail(recorded_at(folder, self.manifest)).read()
        except OSError as problem:
            where = printable(str(folder))
            raise CommandError(f"{where}: nothing recorded there ({problem.strerror})") from None
        for said in self._recorded.problems:
            say(f"a file is left out: {said}")
        self.ranks = sorted(self._recorded.ranks, key=lambda r: (r.rank, _clock(r) or 0, r.pid))
        self._clocks = {r.node: clock for r in reversed(self.ranks) if (clock := _clock(r)) is not None}
        """Of each node: what to add to its times to get wall-clock time."""
        begin_ns, started = self.manifest.get("begin_ns"), self.manifest.get("started_at")
        if 0 not in self._clocks and isinstance(begin_ns, int) and isinstance(started, str):
            began = datetime.datetime.fromisoformat(started)
            self._clocks[0] = int(began.timestamp() * 1e9) - begin_ns

    def tables(self) -> Iterator[Table]:
        """Every table, one after the other; one may have no rows."""
        users = {f"user.{name}": None for r in self.ranks for name in r.user_names if name}
        phases = [*(p.key for p in c.PHASES), *users, "wait", *(w.key for w in c.WAIT_PLACES)]
        times = [f"{key}_ms" for key in phases]
        work = ("samples", "tokens", "micro_batches", "gc_ms")
        step = [*WHO, "step", *SPAN, "step_ms", *times, *MEMORY, *work]
        block = [*WHO, "first_step", "last_step", "steps", *SPAN, "step_ms", *times]
        device = [*WHO, "step", *times[: -len(c.WAIT_PLACES)]]
        system = ["node", "unix_ns", *(name for name, code in c.SYSTEM_COLUMNS if code == "d")]
        process = [*WHO, "unix_ns", *(name for name, code in c.PROCESS_COLUMNS if code == "d")]
        event = [*WHO, "unix_ns", "kind", "step", "duration_ms", "phase", "message"]
        yield Table("steps", step, self._of_ranks(self.steps, step))
        yield Table("step_blocks", block, self._of_ranks(self._block, block))
        yield Table("device_steps", device, self._of_ranks(self._device, device))
        yield Table("system", system, self._gauges("system_rows", system))
        yield Table("process", process, self._gauges("process_rows", process))
        yield Table("events", event, self._events())

    def events(self) -> list[tuple[RecordedEvent, RankRecording | None]]:
        """Each notable event, with the newest recording of the rank that it is about."""
        ranks = {rank.rank: rank for rank in self.ranks}
        others = [*self._recorded.monitor_events, *self._recorded.early_events]
        own = [(event, rank) for rank in self.ranks for event in rank.events]
        return [*own, *((event, ranks.get(event.rank)) for event in others)]

    def when(self, event: RecordedEvent, rank: RankRecording | None) -> int:
        return event.wall_ns or event.time_ns + self._clocks.get(rank.node if rank is not None else 0, 0)

    def _of_ranks(
        self, piece_of: Callable[[RankRecording], Piece | None], columns: list[str]
    ) -> Iterator[Piece]:
        for rank in self.ranks:
            if (piece := piece_of(rank)) is not None:
                yield _completed(piece, {"rank": rank.rank, "node": rank.node, "pid": rank.pid}, columns)

    def steps(self, rank: RankRecording) -> Piece:
        """The steps of one process: the columns that it has."""
        rows = rank.rows[self._newest]
        piece: Piece = {"step": rows["step"], **self._span(rows, rank)}
        piece["step_ms"] = (rows["end_ns"] - rows["begin_ns"]) / NS_PER_MS
        piece |= _times(rows, rank.user_names)
        piece |= {name: _measured(rows[name], rows, flag) for name, flag in MEMORY.items()}
        piece |= {name: np.where(rows[name], rows[name], np.nan) for name in ("samples", "tokens")}
        piece |= {"micro_batches": rows["micro_batches"].astype(np.int64), "gc_ms": rows["gc_us"] / 1e3}
        return piece

    def _block(self, rank: RankRecording) -> Piece | None:
        """The sums of the old steps of a long run, which are no longer there one by one."""
        if rank.earlier is None or self._newest.start is not None:
            return None
        block = np.array([rank.earlier], dtype=rank.earlier.dtype)
        piece: Piece = {name: block[name] for name in ("first_step", "last_step", "steps")}
        piece |= {**self._span(block, rank), "step_ms": block["step_ns"] / NS_PER_MS}
        return piece | _times(block, rank.user_names)

    def _device(self, rank: RankRecording) -> Piece | None:
        if rank.device_rows is None:
            return None
        rows = rank.device_rows[self._newest]
        return {"step": rows["step"], **_phases(rows, rank.user_names), "wait_ms": rows["wait"] / NS_PER_MS}

    def _span(self, rows: Rows, rank: RankRecording) -> Piece:
        clock = self._clocks.get(rank.node, 0)
        return {"begin_unix_ns": rows["begin_ns"] + clock, "end_unix_ns": rows["end_ns"] + clock}

    def _gauges(self, kind: str, columns: list[str]) -> Iterator[Piece]:
        ranks = {(r.node, r.pid): float(r.rank) for r in self.ranks}
        for node, gauges in self._recorded.nodes.items():
            rows: Rows | None = getattr(gauges, kind)
            if rows is None or node not in self._clocks:
                continue
            rows = rows[self._newest]
            piece: Piece = {"unix_ns": rows["time_ns"] + self._clocks[node]}
            piece |= {key: rows[key] for key in (rows.dtype.names or ()) if key in columns}
            if "pid" in piece:
                ids = [ranks.get((node, pid), np.nan) for pid in piece["pid"].tolist()]
                piece["rank"] = np.array(ids, dtype=float)
            yield _completed(piece, {"node": node}, columns)

    def _events(self) -> Iterator[Piece]:
        found = self.events()
        pids = [e.pid if e.pid is not None or r is None else r.pid for e, r in found]
        yield {
            "rank": _maybe_whole([r.rank if r is not None else None for _, r in found]),
            "node": np.array([r.node if r is not None else 0 for _, r in found]),
            "pid": _maybe_whole(pids),
            "unix_ns": np.array([self.when(event, rank) for event, rank in found]),
            "kind": np.array([e.kind for e, _ in found], dtype=object),
            "step": _maybe_whole([e.step for e, _ in found]),
            "duration_ms": np.array([e.duration_ns / NS_PER_MS for e, _ in found]),
            "phase": np.array([e.phase or e.during for e, _ in found], dtype=object),
            "message": np.array([e.message for e, _ in found], dtype=object),
        }


def _clock(rank: RankRecording) -> int | None:
    """Nanoseconds from the machine's clock to the wall clock, as this process saw it."""
    process = rank.header.get("process", {})
    wall_ns, clock_ns = process.get("wall_ns"), process.get("clock_ns")
    return wall_ns - clock_ns if wall_ns and clock_ns else None


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


def _maybe_whole(values: list[int | None]) -> NDArray[np.float64]:
    return np.array(values, dtype=float)  # None becomes NaN


def _completed(piece: Piece, fixed: dict[str, int], columns: list[str]) -> Piece:
    """With a value in every column, in the order of the table."""
    count = len(next(iter(piece.values())))
    same = {name: np.full(count, value) for name, value in fixed.items()}
    missing = np.full(count, np.nan)
    return {name: piece.get(name, same.get(name, missing)) for name in columns}


class LoadedRun:
    """The tables of a run, as they were when it was loaded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tables = {table.name: table for table in RunTables(folder).tables()}

    def __getattr__(self, name: str) -> Table:
        try:
            return self.__dict__["tables"][name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(f"no table {name!r} in this run") from None

    def __repr__(self) -> str:
        rows = ", ".join(f"{table.rows} {name}" for name, table in self.tables.items())
        return f"<run {self.folder.name}: {rows}>"


def load(run: str | os.PathLike[str], logs_dir: str = "logs") -> LoadedRun:
    """Everything that was recorded in a run: a folder, or a name under `logs_dir`.

    `load("my_run").steps["input_ms"]` is a NumPy array with a value for each step of each rank, and
    `load("my_run").steps.frame()` a pandas frame. The tables: steps, step_blocks, device_steps, system,
    process, events. The run may be going on, or have crashed.
    """
    path = summary_file.find(os.fspath(run), Path(logs_dir))
    return LoadedRun(path if path.is_dir() else path.parent)
