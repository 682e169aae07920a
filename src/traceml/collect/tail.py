"""Everything recorded in a run folder so far, as arrays: ranks, device times, gauges, events."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from traceml.collect.rundir import RECORDING
from traceml.recording.format import STATE_LOST
from traceml.recording.reader import RecordingReader, UnreadableRecording
from traceml.schema import catalog as c
from traceml.schema.recorded import NodeGauges, RankRecording, RunRecording

NODE = re.compile(r"\.node(\d+)\.")

Columns: TypeAlias = tuple[tuple[str, str], ...]


class Tail:
    """Reads a run folder again and again; each look maps only what is new."""

    def __init__(self, run_dir: Path) -> None:
        self.folder = run_dir / RECORDING
        self._readers: dict[Path, RecordingReader] = {}
        self.problems: list[str] = []

    def pids(self) -> dict[int, int]:
        """Process id to rank, of every process that trains."""
        found: dict[int, int] = {}
        for reader in self.local_ranks():
            identity = reader.header["identity"]
            found[identity["pid"]] = identity["rank"]
        return found

    def local_ranks(self) -> list[RecordingReader]:
        """The recordings of this machine's own ranks; what other nodes relayed is not among them."""
        return [reader for path, reader in self._ranks() if NODE.search(path.name) is None]

    def read(self) -> RunRecording:
        """All published rows of all files."""
        return RunRecording(
            ranks=[self._rank(path, reader) for path, reader in self._ranks()],
            system_rows=self._rows(self.folder / "system.gauges", c.SYSTEM_COLUMNS),
            process_rows=self._rows(self.folder / "process.gauges", c.PROCESS_COLUMNS),
            seen=frozenset(p.name.removeprefix("seen-") for p in self.folder.glob("seen-*")),
            problems=list(self.problems),
            other_nodes={
                node: NodeGauges(
                    self._rows(self.folder / f"system.node{node}.gauges", c.SYSTEM_COLUMNS),
                    self._rows(self.folder / f"process.node{node}.gauges", c.PROCESS_COLUMNS),
                )
                for node in self._other_nodes()
            },
            monitor_events=[
                e for path in sorted(self.folder.glob("monitor*.events.jsonl")) for e in read_events(path)
            ],
        )

    def _rank(self, path: Path, reader: RecordingReader) -> RankRecording:
        phase, state = reader.live()
        return RankRecording(
            header=reader.header,
            rows=latest_of_each_step(reader.rows()),
            device_rows=self._rows(path.with_suffix(".device"), c.DEVICE_COLUMNS),
            user_names=reader.user_names(c.USER_SLOTS),
            live_phase=phase,
            lost_rows=state == STATE_LOST,
            events=read_events(path.with_suffix(".events.jsonl")),
            node=int(found.group(1)) if (found := NODE.search(path.name)) is not None else 0,
        )

    def _other_nodes(self) -> list[int]:
        names = (NODE.search(p.name) for p in self.folder.glob("*.node*"))
        return sorted({int(m.group(1)) for m in names if m is not None})

    def _ranks(self) -> Iterator[tuple[Path, RecordingReader]]:
        for path in sorted(self.folder.glob("rank-*.steps")):
            reader = self._reader(path, c.STEP_COLUMNS, of_rank=True)
            if reader is not None:
                yield path, reader

    def _rows(self, path: Path, columns: Columns) -> NDArray[np.void] | None:
        reader = self._reader(path, columns) if path.exists() else None
        return reader.rows() if reader is not None else None

    def _reader(self, path: Path, columns: Columns, of_rank: bool = False) -> RecordingReader | None:
        """The file's reader, or None with a line among the problems: one bad file hides no other."""
        if path not in self._readers:
            try:
                reader = RecordingReader(path)
                _check(reader, columns, of_rank)
                self._readers[path] = reader
            except (UnreadableRecording, OSError) as problem:
                if str(problem) not in self.problems:
                    self.problems.append(str(problem))
                return None
        return self._readers[path]


def _check(reader: RecordingReader, columns: Columns, of_rank: bool) -> None:
    """Refuse what is a recording but not of this kind: its rows would be taken for something else."""
    there = {name for name, _ in reader.header["columns"]}
    if not there.issuperset(name for name, _ in columns):
        raise UnreadableRecording(f"{reader.path}: other columns than expected")
    who = reader.header.get("identity")
    if of_rank and not (isinstance(who, dict) and all(type(who.get(k)) is int for k in ("rank", "pid"))):
        raise UnreadableRecording(f"{reader.path}: does not say which rank it is of")


def latest_of_each_step(rows: NDArray[np.void]) -> NDArray[np.void]:
    """A row with the same step number as the one before supersedes it."""
    if len(rows) < 2:
        return rows
    superseded = rows["step"][1:] == rows["step"][:-1]
    if not superseded.any():
        return rows
    kept: NDArray[np.void] = rows[np.append(~superseded, True)]
    return kept


def read_events(path: Path) -> list[dict[str, Any]]:
    """The events of one rank; a torn last line is left out."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return []
    events = []
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and isinstance(event.get("kind"), str):
            events.append(event)
    return events
