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
FIRST_FACTOR: Final = 5
LEARNING: Final = 3
MOST_TOLD: Final = 16
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
    ended_ns: int  # of its last step; when it began to train before that
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
        self._alone: dict[int, int] = {}  # processes that were told to hang alone, and after which step
        self._busy_ns: dict[int, int] = {}  # by process: when it was last seen busy on purpose
        self._crash: RankState | None = None
        self._ended_ns = 0
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
                self._crash, self._ended_ns = self._crash if state.closed else state, time.perf_counter_ns()
        return self._check_stall([s for s in states if s.alive]) or self._check_left(states)

    def _check_stall(self, states: list[RankState]) -> str | None:
        now = time.perf_counter_ns()
        for state in states:
            if state.phase in BUSY_ON_PURPOSE:
                self._busy_ns[state.pid] = now  # between two batches of a validation as well
        stuck = [s for s in states if now - s.ended_ns >= self._patience_ns(s)]
        if not states or len(stuck) < len(states):
            self._stalled = False
            return self._check_single(stuck, states, now)
        patience_ns = max(self._patience_ns(s) for s in stuck)
        silent_ns = now - max(s.ended_ns for s in stuck)
        busy_ns = max((self._busy_ns.get(s.pid, 0) for s in stuck), default=0)
        is_busy = now - busy_ns < patience_ns and silent_ns < BUSY_FACTOR * patience_ns
        if is_busy or self._stalled:
            self._stalled &= not is_busy
            return None
        self._stalled = True
        return self._tell(stuck, now, "no step completed", together=True)

    def _check_single(self, stuck: list[RankState], states: list[RankState], now: int) -> str | None:
        """Ranks that hang while others, which do not wait for them, have long gone on."""
        newest = max((s.ended_ns for s in states), default=0)
        new = []
        for state in stuck:
            patience_ns = self._patience_ns(state)
            is_busy = now - self._busy_ns.get(state.pid, 0) < patience_ns or state.phase == c.SYNC
            is_behind = newest - state.ended_ns > patience_ns / 2
            if is_behind and not is_busy and self._alone.get(state.pid) != state.step:
                self._alone[state.pid] = state.step
                new.append(state)
        what = "while other ranks go on, no step completed"
        return self._tell(new, now, what, together=False) if new else None

    def _check_left(self, states: list[RankState]) -> str | None:
        """A rank crashed, none is left, and yet the command goes on: say so once."""
        crash, silent_ns = self._crash, time.perf_counter_ns() - self._ended_ns
        if crash is None or any(s.alive for s in states) or silent_ns < FIRST_FACTOR * self._stall_after_ns:
            return None
        self._crash = None
        return (
            f"no rank has trained for {silent_ns / 1e9:.0f} s: r{crash.rank} was killed or crashed after "
            f"step {crash.step}, and the command goes on without it"
        )

    def _patience_ns(self, state: RankState) -> float:
        """How long a rank may be silent. The first step takes longer: kernels, compilation, connections."""
        if not state.step:
            return FIRST_FACTOR * self._stall_after_ns
        return max(self._stall_after_ns, STALL_FACTOR * state.usual_ns)

    def _tell(self, stuck: list[RankState], now: int, what: str, together: bool) -> str:
        silent_ns = now - max(s.ended_ns for s in stuck)
        for state in stuck:
            waited_ns = now - state.ended_ns
            self._note("stall", state, duration_ns=waited_ns, together=together, phase=_place(state))
        usual = f"{max(s.usual_ns for s in stuck) / 1e9:.3g} s" if any(s.step for s in stuck) else "not known"
        places = [
            f"r{s.rank} in {_place(s)} " + (f"after step {s.step}" if s.step else "of its first step")
            for s in stuck[:MOST_TOLD]
        ]
        more = f" and {len(stuck) - MOST_TOLD} more" if len(stuck) > MOST_TOLD else ""
        return f"{what} for {silent_ns / 1e9:.0f} s (usual: {usual}): {', '.join(places)}{more}"

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
        began: dict[str, Any] = reader.header.get("process", {})
        pid = int(who.get("pid", 0))
        alive = is_running(pid) and writer_state == STATE_RUNNING
        return RankState(
            rank=int(who.get("rank", 0)),
            pid=pid,
            step=int(rows["step"][-1]) if len(rows) else 0,
            phase=phase,
            ended_ns=int(rows["end_ns"][-1]) if len(rows) else int(began.get("clock_ns", 0)),
            usual_ns=float(np.median(recent["end_ns"] - recent["begin_ns"])) if len(rows) else 0.0,
            alive=alive,
            closed=writer_state != STATE_RUNNING,
            failed_in=None if alive else reader.failed_in(),
        )


def _place(state: RankState) -> str:
    """In its first steps a rank does not know yet which gradient is the last of its own."""
    return "backward or sync" if state.phase == c.SYNC and state.step < LEARNING else phase_name(state.phase)


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
