"""Notices, while the run goes on, that a rank has ended or that no rank moves; says where each one is."""

from __future__ import annotations

import json
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil

from traceml.collect.departures import Departures
from traceml.collect.out_of_memory import oom_kills, oom_kills_since
from traceml.collect.rundir import RECORDING
from traceml.collect.tail import Tail
from traceml.recording.format import STATE_RUNNING
from traceml.recording.reader import RecordingReader
from traceml.schema import catalog as c

EVENTS: Final = "monitor.events.jsonl"
STALL_FACTOR: Final = 20
RECENT_STEPS: Final = 50
BUSY_ON_PURPOSE: Final = (c.VALIDATION, c.CHECKPOINT)
BUSY_FACTOR: Final = 60
"""A validation or checkpoint may take so many times longer before it counts as hanging."""


@dataclass(slots=True)
class RankState:
    """Where a rank was when we last looked."""

    rank: int
    pid: int
    step: int
    phase: int
    ended_ns: int
    usual_ns: float
    alive: bool
    closed: bool  # the interpreter got to its end
    failed_in: int | None  # the phase that an exception has left since the last step


class Watchdog:
    """Looks at the local ranks; what it notices is appended to a file beside the recordings."""

    def __init__(self, tail: Tail, stall_after_s: float) -> None:
        self._tail = tail
        self._stall_after_ns = stall_after_s * 1e9
        self._ended: set[int] = set()
        self._oom_kills = oom_kills()
        self._stalled = False
        self._busy_ns = 0
        self._departures = Departures()

    def look(self) -> str | None:
        """One look; returns a line for the user when something new is wrong."""
        states = [self._state(reader) for reader in self._tail.local_ranks()]
        for state in states:
            if state.alive:
                self._departures.watch(state.pid)
            elif state.pid not in self._ended:
                self._ended.add(state.pid)
                self._note_end(state)
        return self._check_stall([s for s in states if s.alive])

    def _check_stall(self, states: list[RankState]) -> str | None:
        known = [s for s in states if s.step]
        if not known:
            return None
        now = time.perf_counter_ns()
        if any(s.phase in BUSY_ON_PURPOSE for s in known):
            self._busy_ns = now  # between two batches of a validation as well
        silent_ns = now - max(s.ended_ns for s in known)
        idle_ns = min(silent_ns, now - self._busy_ns)
        usual_ns = max(s.usual_ns for s in known)
        limit_ns = max(self._stall_after_ns, STALL_FACTOR * usual_ns)
        if idle_ns < limit_ns and silent_ns < BUSY_FACTOR * limit_ns:
            self._stalled = False
            return None
        if self._stalled:
            return None
        self._stalled = True
        for state in known:
            self._note("stall", state, duration_ns=int(silent_ns))
        places = ", ".join(f"r{s.rank} in {phase_name(s.phase)} after step {s.step}" for s in known[:16])
        more = f" and {len(known) - 16} more" if len(known) > 16 else ""
        return (
            f"no step completed for {silent_ns / 1e9:.0f} s (usual: {usual_ns / 1e9:.3g} s): {places}{more}"
        )

    def _note_end(self, state: RankState) -> None:
        more: dict[str, Any] = {"oom_kills": oom_kills_since(self._oom_kills)}
        if state.pid in self._departures.ended:
            more["time_ns"], more["wall_ns"] = self._departures.ended[state.pid]
            more["exact"] = True
        if state.failed_in is not None:
            more["failed_in"] = phase_name(state.failed_in)
        self._note("rank_ended", state, **more)

    def _note(self, kind: str, state: RankState, **more: Any) -> None:
        event = {
            "kind": kind,
            "rank": state.rank,
            "pid": state.pid,
            "step": state.step,
            "time_ns": time.perf_counter_ns(),
            "wall_ns": time.time_ns(),  # to order it among what other machines noticed
            "duration_ns": 0,
            "phase": phase_name(state.phase),
            "closed": state.closed,
            **more,
        }
        with (self._tail.folder / EVENTS).open("a") as file:
            file.write(json.dumps(event) + "\n")

    def _state(self, reader: RecordingReader) -> RankState:
        rows = reader.rows()
        phase, writer_state = reader.live()
        recent = rows[-RECENT_STEPS:]
        who: dict[str, Any] = reader.header.get("identity", {})
        pid = int(who.get("pid", 0))
        alive = is_running(pid) and writer_state == STATE_RUNNING
        return RankState(
            rank=int(who.get("rank", 0)),
            pid=pid,
            step=int(rows["step"][-1]) if len(rows) else 0,
            phase=phase,
            ended_ns=int(rows["end_ns"][-1]) if len(rows) else 0,
            usual_ns=float(np.median(recent["end_ns"] - recent["begin_ns"])) if len(rows) else 0.0,
            alive=alive,
            closed=writer_state != STATE_RUNNING,
            failed_in=None if alive else reader.failed_in(),
        )


def phase_name(slot: int) -> str:
    """What the live byte of a rank says."""
    if slot < len(c.PHASES):
        return c.PHASES[slot].key
    if slot < c.FIRST_WAIT:
        return "a user phase"
    if slot < c.RECORDED_SLOTS:
        return f"wait ({c.WAIT_PLACES[slot - c.FIRST_WAIT].where})"
    return "input" if slot > 250 else "wait"


def still_trains(run_dir: Path) -> bool:
    """Whether a rank of this machine goes on, though nobody may watch it any more."""
    if not (run_dir / RECORDING).is_dir():
        return False
    host = socket.gethostname()
    for reader in Tail(run_dir).local_ranks():
        who, began_ns = reader.header.get("identity", {}), reader.header.get("process", {}).get("wall_ns", 0)
        if who.get("host", host) == host and reader.live()[1] == STATE_RUNNING:
            try:
                process = psutil.Process(int(who.get("pid", 0)))
                # A process that is younger than the recording only has the same number.
                if process.create_time() <= began_ns / 1e9 + 1 and process.status() != psutil.STATUS_ZOMBIE:
                    return True
            except psutil.Error:
                continue
    return False


def is_running(pid: int) -> bool:
    """Alive and not a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (OSError, IndexError):
        return False
    return state not in ("Z", "X")
