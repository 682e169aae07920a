"""Notices during the run that a rank has ended or that no rank makes progress, and says where each one is."""

import contextlib
import json
import os
import select
import struct
import threading
import time
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from traceml.monitor.machine import oom_kills, oom_kills_since
from traceml.recording.layout import STATE_REPLACED, STATE_RUNNING
from traceml.recording.tail import RankTail, Tail
from traceml.runs.liveness import is_alive, stat_fields
from traceml.runs.manifest import signal_name
from traceml.schema import catalog as c

with contextlib.suppress(ImportError):  # not on Windows, which has no pidfds either
    import fcntl

EVENTS: Final = "monitor.events.jsonl"
STALL_FACTOR: Final = 20
"""A rank may be silent for this many usual steps, if that is longer than `--stall-after`."""
FIRST_FACTOR: Final = 5
"""The first step may take this many times longer: kernels, compilation, connections."""
BUSY_FACTOR: Final = 60
"""A validation or checkpoint may take this many times longer before it counts as hanging."""
BUSY_ON_PURPOSE: Final = (c.VALIDATION, c.CHECKPOINT)
LEARNING: Final = 3
MOST_LISTED: Final = 16
RECENT_STEPS: Final = 50
EXITING_NS: Final = 5_000_000_000
"""A process that has closed its recording exits within this time, or not at all."""
LATE_S: Final = 0.2
EXIT_FIELD: Final = 49
"""Of /proc/<pid>/stat, counted from the state."""
INFO: Final = struct.Struct("Q52xi")
"""The kernel's `pidfd_info`: what is asked for and was given, ids of process and users, the exit status."""
INFO_EXIT: Final = 1 << 3
GET_INFO: Final = (3 << 30) | (INFO.size << 16) | (0xFF << 8) | 11


@dataclass(slots=True)
class RankState:
    """Where a rank was when we last looked."""

    rank: int
    pid: int
    step: int
    phase: int
    ended_ns: int  # when its last step ended, or when it began to train if there is none
    usual_ns: float
    patience_ns: float  # how long it may be silent
    alive: bool
    closed: bool  # the interpreter ended normally
    failed_in: int | None  # the phase that an exception has left since the last step


class Watchdog:
    """Looks at the local ranks and appends what it notices to a file beside the recordings."""

    def __init__(self, tail: Tail, stall_after_s: float) -> None:
        self._tail = tail
        self._stall_after_ns = stall_after_s * 1e9
        self._oom_kills = oom_kills()
        self._stalled = False
        self._alone: dict[int, int] = {}  # by process: after which step it was reported to hang alone
        self._busy_ns: dict[int, int] = {}  # by process: when it was last in a validation or checkpoint
        self._crash: RankState | None = None
        self._ended_ns = 0
        self._exit_times = ExitTimes()
        self._closed_ns: dict[int, int] = {}  # by process: since when it is about to exit

    def look(self) -> str | None:
        """One look; returns a line for the user when something new is wrong."""
        alive = []
        for rank in self._tail.local_ranks():
            state = self._state(rank)
            if state.alive:
                alive.append(state)
                self._exit_times.watch(state.pid)
                continue
            if state.closed and is_alive(state.pid):
                now = time.perf_counter_ns()
                if now - self._closed_ns.setdefault(state.pid, now) < EXITING_NS:
                    self._exit_times.watch(state.pid)
                    continue  # it is about to exit, and then the kernel tells with which code
            # It may have completed a step after its rows were read and before it was found gone: read again.
            self._tail.read_again(rank)
            state = self._state(rank)
            self._tail.end(rank.name)
            if rank.live.state == STATE_REPLACED:
                continue  # not an end: the same process trains on
            self._note_end(state)
            self._crash, self._ended_ns = self._crash if state.closed else state, time.perf_counter_ns()
        return self._check_stall(alive) if alive else self._check_none_left()

    def _check_stall(self, states: list[RankState]) -> str | None:
        now = time.perf_counter_ns()
        for state in states:
            if state.phase in BUSY_ON_PURPOSE:
                self._busy_ns[state.pid] = now  # between two batches of a validation as well
        stuck = [s for s in states if now - s.ended_ns >= s.patience_ns]
        if len(stuck) < len(states):
            self._stalled = False
            return self._check_single(stuck, states, now)
        patience_ns = max(s.patience_ns for s in stuck)
        silent_ns = now - max(s.ended_ns for s in stuck)
        busy_ns = max(self._busy_ns.get(s.pid, 0) for s in stuck)
        is_busy = now - busy_ns < patience_ns and silent_ns < BUSY_FACTOR * patience_ns
        is_new, self._stalled = not is_busy and not self._stalled, not is_busy
        return self._report(stuck, now, together=True) if is_new else None

    def _check_single(self, stuck: list[RankState], states: list[RankState], now: int) -> str | None:
        """Ranks that hang while others, which do not wait for them, keep training."""
        newest = max(s.ended_ns for s in states)
        new = []
        for state in stuck:
            is_busy = now - self._busy_ns.get(state.pid, 0) < state.patience_ns or state.phase == c.SYNC
            is_behind = newest - state.ended_ns > state.patience_ns / 2
            if is_behind and not is_busy and self._alone.get(state.pid) != state.step:
                self._alone[state.pid] = state.step
                new.append(state)
        return self._report(new, now, together=False) if new else None

    def _check_none_left(self) -> str | None:
        """A rank crashed and none is left, but the command is still running: say so once."""
        crash, silent_ns = self._crash, time.perf_counter_ns() - self._ended_ns
        if crash is None or silent_ns < FIRST_FACTOR * self._stall_after_ns:
            return None
        self._crash = None
        return (
            f"no rank has trained for {silent_ns / 1e9:.0f} s: r{crash.rank} was killed or crashed after "
            f"step {crash.step}, but the command is still running"
        )

    def _report(self, stuck: list[RankState], now: int, together: bool) -> str:
        silent_ns = now - max(s.ended_ns for s in stuck)
        for state in stuck:
            silence = {"duration_ns": now - state.ended_ns, "phase": _place(state)}
            self._note("stall", state, together=together, **silence)
        usual = f"{max(s.usual_ns for s in stuck) / 1e9:.3g} s" if any(s.step for s in stuck) else "not known"
        places = [
            f"r{s.rank} in {_place(s)} " + (f"after step {s.step}" if s.step else "of its first step")
            for s in stuck[:MOST_LISTED]
        ]
        more = f" and {len(stuck) - MOST_LISTED} more" if len(stuck) > MOST_LISTED else ""
        others = "" if together else " while other ranks keep training"
        silent = f"no step completed for {silent_ns / 1e9:.0f} s{others}"
        return f"{silent} (usual step time: {usual}): {', '.join(places)}{more}"

    def _note_end(self, state: RankState) -> None:
        more: dict[str, Any] = {"oom_kills": oom_kills_since(self._oom_kills)}
        for by_pid in (self._alone, self._busy_ns):
            by_pid.pop(state.pid, None)
        closed_ns = self._closed_ns.pop(state.pid, None)
        end = None if is_alive(state.pid) else self._exit_times.take(state.pid)
        if end is not None:
            more |= {"time_ns": end.time_ns, "wall_ns": end.wall_ns, "exact": True}
        if end is not None and end.status is not None:
            code = os.waitstatus_to_exitcode(end.status)
            more |= {"signal": signal_name(-code)} if code < 0 else {"exit_code": code}
        if closed_ns is not None:  # how long it took to exit says nothing about who was first
            ago_ns = time.perf_counter_ns() - closed_ns
            more |= {"time_ns": closed_ns, "wall_ns": time.time_ns() - ago_ns, "exact": False}
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
            "wall_ns": time.time_ns(),  # to order it among the events of other machines
            "duration_ns": 0,
            "phase": phase_name(state.phase),
            "closed": state.closed,
            **more,
        }
        with (self._tail.folder / EVENTS).open("a") as file:
            file.write(json.dumps(event) + "\n")

    def _state(self, rank: RankTail) -> RankState:
        rows, live = rank.steps.held, rank.live
        recent = rows[-RECENT_STEPS:]
        step = int(rows["step"][-1]) if len(rows) else 0
        pid = rank.identity.pid or 0
        alive = is_alive(pid) and live.state == STATE_RUNNING
        began_ns = int(rank.header.get("process", {}).get("clock_ns", 0))
        usual_ns = float(np.median(recent["end_ns"] - recent["begin_ns"])) if len(rows) else 0.0
        usual_patience_ns = max(self._stall_after_ns, STALL_FACTOR * usual_ns)
        return RankState(
            rank=rank.identity.rank or 0,
            pid=pid,
            step=step,
            phase=live.phase,
            ended_ns=int(rows["end_ns"][-1]) if len(rows) else began_ns,
            usual_ns=usual_ns,
            patience_ns=usual_patience_ns if step else FIRST_FACTOR * self._stall_after_ns,
            alive=alive,
            closed=live.state != STATE_RUNNING,
            failed_in=live.failed_in if not alive and live.failed_step == step + 1 else None,
        )


def _place(state: RankState) -> str:
    """In its first steps a rank does not know yet which of its gradients is the last."""
    return "backward or sync" if state.phase == c.SYNC and state.step < LEARNING else phase_name(state.phase)


_IN_DOUBT: Final = {
    c.RECORDED_SLOTS: "validation (between its batches, or right after it)",
    c.RECORDED_SLOTS + 1: "validation or forward without gradients",
    c.RECORDED_SLOTS + 2: c.PHASES[c.FORWARD].key,
    252: "validation or forward without gradients",
    253: "validation or forward without gradients",
    254: c.PHASES[c.INPUT].key,
    255: "forward or validation",
}
"""The slots of `capture.slots` that no row has, as the live byte shows them."""


def phase_name(slot: int) -> str:
    """The phase that a rank's live byte stands for."""
    if slot < len(c.PHASES):
        return c.PHASES[slot].key
    if slot < c.FIRST_WAIT:
        return "a user phase"
    if slot < c.RECORDED_SLOTS:
        return f"wait ({c.WAIT_PLACES[slot - c.FIRST_WAIT].where})"
    return _IN_DOUBT.get(slot, "wait")


class Exit(NamedTuple):
    """One end: when, on both clocks in ns, and the wait status if the launcher had not collected it yet."""

    time_ns: int
    wall_ns: int
    status: int | None


class ExitTimes:
    """When and how processes of this machine ended (`ended`): the order shows which rank ended first.

    The monitor looks ten times per second. A launcher ends the other ranks faster than that once one has
    ended. The kernel reports the end of a process (pidfd), and a thread waits for it. Without pidfds nothing
    is known.
    """

    def __init__(self) -> None:
        self.ended: dict[int, Exit] = {}
        self._pids: dict[int, int] = {}  # by file descriptor
        self._known: set[int] = set()
        self._epoll = select.epoll() if hasattr(os, "pidfd_open") and hasattr(select, "epoll") else None

    def watch(self, pid: int) -> None:
        """Wait for this process too. One that is watched already, or has ended, changes nothing."""
        if self._epoll is None or pid in self._known:
            return
        self._known.add(pid)
        with contextlib.suppress(OSError):  # it has ended, or the kernel has no pidfds
            descriptor = os.pidfd_open(pid)
            try:
                if not self._pids:
                    threading.Thread(target=self._wait, name="traceml-exits", daemon=True).start()
            except RuntimeError:  # the process limit: do without
                self._epoll = None
                os.close(descriptor)
                return
            self._pids[descriptor] = pid
            self._epoll.register(descriptor, select.EPOLLIN)

    def take(self, pid: int) -> Exit | None:
        """The end of a process that is gone, which is then forgotten: a new process may get the same id. The
        thread that notes it may come a moment later than we do."""
        deadline = time.monotonic() + LATE_S
        while pid in self._pids.values() and pid not in self.ended and time.monotonic() < deadline:
            time.sleep(0.002)
        self._known.discard(pid)
        return self.ended.pop(pid, None)

    def _wait(self) -> None:
        assert self._epoll is not None
        while True:
            for descriptor, _ in self._epoll.poll():
                pid, now, wall = self._pids[descriptor], time.perf_counter_ns(), time.time_ns()
                self.ended[pid] = Exit(now, wall, wait_status(pid, descriptor))
                self._epoll.unregister(descriptor)
                os.close(descriptor)


def wait_status(pid: int, descriptor: int) -> int | None:
    """How a process ended, as `waitpid` would tell its parent: before that has asked, /proc shows it; then
    the kernel still tells whoever holds a pidfd, from Linux 6.15 on."""
    fields = stat_fields(pid)
    if len(fields) > EXIT_FIELD and fields[0] == "Z":
        return int(fields[EXIT_FIELD])
    info = bytearray(INFO.size)
    INFO.pack_into(info, 0, INFO_EXIT, 0)
    try:
        fcntl.ioctl(descriptor, GET_INFO, info)
    except OSError:
        return None
    mask, status = INFO.unpack(info)
    return int(status) if mask & INFO_EXIT else None
