"""Everything recorded in a run folder so far, as arrays: ranks, device times, gauges, events."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceml.collect.rundir import RECORDING
from traceml.recording.format import STATE_LOST
from traceml.recording.reader import RecordingReader, UnreadableRecording
from traceml.schema import catalog as c
from traceml.schema.recorded import NodeGauges, RankRecording, RunRecording

NODE = re.compile(r"\.node(\d+)\.")


class Tail:
    """Reads a run folder again and again; each look maps only what is new."""

    def __init__(self, run_dir: Path) -> None:
        self.folder = run_dir / RECORDING
        self._readers: dict[Path, RecordingReader] = {}
        self.problems: list[str] = []

    def pids(self) -> dict[int, int]:
        """Process id to rank, of every process that trains."""
        found = {}
        for reader in self.local_ranks():
            identity = reader.header.get("identity", {})
            found[int(identity.get("pid", 0))] = int(identity.get("rank", 0))
        return found

    def local_ranks(self) -> list[RecordingReader]:
        """The recordings of this machine's own ranks; what other nodes relayed is not among them."""
        paths = (p for p in sorted(self.folder.glob("rank-*.steps")) if ".node" not in p.name)
        readers = (self._reader(path) for path in paths)
        return [reader for reader in readers if reader is not None]

    def read(self) -> RunRecording:
        """All published rows of all files."""
        ranks = []
        for path in sorted(self.folder.glob("rank-*.steps")):
            reader = self._reader(path)
            if reader is not None:
                ranks.append(self._rank(path, reader))
        return RunRecording(
            ranks=ranks,
            system_rows=self._rows(self.folder / "system.gauges"),
            process_rows=self._rows(self.folder / "process.gauges"),
            seen=frozenset(p.name.removeprefix("seen-") for p in self.folder.glob("seen-*")),
            problems=list(self.problems),
            other_nodes={
                node: NodeGauges(
                    self._rows(self.folder / f"system.node{node}.gauges"),
                    self._rows(self.folder / f"process.node{node}.gauges"),
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
            device_rows=self._rows(path.with_suffix(".device")),
            user_names=reader.user_names(c.USER_SLOTS),
            live_phase=phase,
            lost_rows=state == STATE_LOST,
            events=read_events(path.with_suffix(".events.jsonl")),
            node=int(found.group(1)) if (found := NODE.search(path.name)) is not None else 0,
        )

    def _other_nodes(self) -> list[int]:
        names = (NODE.search(p.name) for p in self.folder.glob("*.node*"))
        return sorted({int(m.group(1)) for m in names if m is not None})

    def _rows(self, path: Path) -> NDArray[np.void] | None:
        reader = self._reader(path) if path.exists() else None
        return reader.rows() if reader is not None else None

    def _reader(self, path: Path) -> RecordingReader | None:
        if path not in self._readers:
            try:
                self._readers[path] = RecordingReader(path)
            except (UnreadableRecording, OSError) as problem:
                if str(problem) not in self.problems:
                    self.problems.append(str(problem))
                return None
        return self._readers[path]


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
