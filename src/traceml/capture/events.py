"""Rare, irregular facts as JSON lines beside the rows: checkpoint, validation, GC pause, epoch, error."""

from __future__ import annotations

import json
import os
from typing import Any, Final

MOST_PER_KIND: Final = 500


class EventLog:
    """Appends one line an event. Before the rank has a file, events wait in memory."""

    def __init__(self) -> None:
        self._fd = -1
        self._early: list[bytes] = []
        self._counts: dict[str, int] = {}

    def open(self, path: str) -> None:
        """From now on events go to this file, the waiting ones first."""
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for line in self._early:
            os.write(self._fd, line)
        self._early.clear()

    def add(self, kind: str, step: int, time_ns: int, duration_ns: int = 0, **facts: Any) -> None:
        """Record one event; a storm of one kind is cut off, the rows have the totals anyway."""
        count = self._counts[kind] = self._counts.get(kind, 0) + 1
        if count > MOST_PER_KIND:
            return
        event = {
            "kind": kind,
            "step": step,
            "time_ns": time_ns,
            "duration_ns": duration_ns,
            **facts,
        }
        line = json.dumps(event, default=str).encode() + b"\n"
        if self._fd >= 0:
            os.write(self._fd, line)
        elif len(self._early) < MOST_PER_KIND:
            self._early.append(line)
