"""Rare, irregular facts as JSON lines beside the rows: checkpoint, validation, GC pause, epoch, error."""

import json
import os
import time
from typing import Any, Final

from traceml.errors import say_once
from traceml.recording import layout
from traceml.recording.writer import open_apart

MOST_PER_KIND: Final = 500


def append(path: str, data: bytes) -> None:
    """The file is open only while it is written to: a descriptor that is kept could be closed by the script
    and then belong to a file of the script's.
    """
    opened = open_apart(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(opened[-1], data)
    finally:
        for fd in opened:
            os.close(fd)


def note_early(run_dir: str, kind: str, message: str) -> None:
    """Leave one event of a process that has no recording."""
    log = EventLog()
    log.open(os.path.join(run_dir, layout.FOLDER, layout.EARLY_EVENTS))
    log.add(kind, 1, time.perf_counter_ns(), message=message, pid=os.getpid())


class EventLog:
    """Appends one line per event. Before the rank has a file, events wait in memory."""

    def __init__(self) -> None:
        self._path = ""
        self._early: list[bytes] = []
        self._counts: dict[str, int] = {}

    def open(self, path: str) -> None:
        """From now on events go to this file, the waiting ones first."""
        self._path = path
        self._write(b"".join(self._early))
        self._early.clear()

    def add(self, kind: str, step: int, time_ns: int, duration_ns: int = 0, **facts: Any) -> None:
        """Record one event. If one kind occurs too often, the rest is not recorded; the rows have the
        totals."""
        count = self._counts[kind] = self._counts.get(kind, 0) + 1
        if count > MOST_PER_KIND:
            return
        event = {"kind": kind, "step": step, "time_ns": time_ns, "duration_ns": duration_ns, **facts}
        line = json.dumps(event, default=str).encode() + b"\n"
        if self._path:
            self._write(line)
        elif len(self._early) < MOST_PER_KIND:
            self._early.append(line)

    def _write(self, data: bytes) -> None:
        try:
            append(self._path, data)
        except OSError as problem:
            say_once(f"events are no longer recorded ({problem.strerror}); training goes on")
            self._counts = dict.fromkeys(self._counts, MOST_PER_KIND)
