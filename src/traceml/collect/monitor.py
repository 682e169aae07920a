"""What `traceml run` does while the command runs: sample gauges, answer requests; then: make the result."""

from __future__ import annotations

import datetime
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from traceml.collect.out_of_memory import oom_kills, oom_kills_since
from traceml.collect.rundir import (
    RECORDING,
    SUMMARY_JSON,
    SUMMARY_TEXT,
    read_manifest,
    write_manifest,
)
from traceml.errors import failsafe, say

REQUEST_EVERY_S: Final = 0.1
YOUNG_SAMPLES: Final = 8
YOUNG_INTERVAL_S: Final = 0.25
"""The first samples of a rank come faster: short runs deserve a reading too."""


class Monitor:
    """Watches one run folder until `poll` says that the command has ended."""

    def __init__(
        self,
        folder: Path,
        interval_s: float,
        stall_after_s: float,
        answer: Callable[[Path, Path], None],
        environment: dict[str, str],
        safe_rows: Callable[[str], int] | None = None,
    ) -> None:
        """`safe_rows`: of each recording so many rows are on another machine too, which needs them all."""
        self.folder = folder
        self._safe_rows = safe_rows
        self._roller: Any = None
        self._interval_s = interval_s
        self._answer = failsafe("answering final_summary()", None)(answer)
        self._environment = environment
        self._gauges: Any = None
        self._tail: Any = None
        self._watchdog: Any = None
        self._ranks = 0
        self._new_ranks = False
        self._young = YOUNG_SAMPLES
        self._stall_after_s = stall_after_s

    def watch(self, poll: Callable[[float], int | None]) -> int:
        """Run until the command ends; returns its exit code."""
        prepare = failsafe("sampling CPU, memory and GPU", None)(self._prepare)
        sample = failsafe("sampling CPU, memory and GPU", None)(self._sample)
        look = failsafe("watching the ranks", None)(self._look)
        roll = failsafe("rolling up old steps", None)(self._roll)
        answer_requests = failsafe("looking for requests", None)(self._answer_requests)
        code = poll(0.0)
        if code is None:
            prepare()
        due = time.monotonic() + self._interval_s
        while code is None:
            now = time.monotonic()
            if now >= due or self._new_ranks:
                self._new_ranks = False
                sample()
                pause_s = self._interval_s if not self._young else min(YOUNG_INTERVAL_S, self._interval_s)
                due = now + pause_s
            answer_requests()
            look()
            roll()
            code = poll(min(REQUEST_EVERY_S, max(0.0, due - time.monotonic())))
        look()  # who had ended when the command did
        return code

    def _prepare(self) -> None:
        # Imported only now: the command is starting meanwhile.
        from traceml.collect.gauges import Gauges
        from traceml.collect.gpus import find_gpus
        from traceml.collect.rollup import Roller
        from traceml.collect.tail import Tail
        from traceml.collect.watchdog import Watchdog

        self._tail = Tail(self.folder)
        self._watchdog = Watchdog(self._tail, self._stall_after_s)
        self._gauges = Gauges(self.folder / RECORDING, find_gpus(self._environment))
        self._roller = Roller(self.folder, safe_rows=self._safe_rows)

    def _roll(self) -> None:
        if self._roller is not None:
            self._roller.maybe_roll(time.monotonic())

    def _look(self) -> None:
        line = self._watchdog.look() if self._watchdog is not None else None
        if line is not None:
            say(line)

    def _sample(self) -> None:
        if self._gauges is not None:
            threads = self._tail.threads()
            self._gauges.sample(threads)
            if threads and self._young:
                self._young -= 1

    def _answer_requests(self) -> None:
        with os.scandir(self.folder / RECORDING) as entries:
            names = [e.name for e in entries]
        ranks = sum(name.endswith(".steps") for name in names)
        self._new_ranks, self._ranks = ranks > self._ranks, ranks
        waiting = [self.folder / RECORDING / name for name in names if name.startswith("request-")]
        for request in waiting:
            self._answer(self.folder, request.with_name(request.name.replace("request-", "answer-")))
            request.unlink(missing_ok=True)


def now_text() -> str:
    """The wall clock, for people."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")


def begin_manifest(
    folder: Path, command: list[str], mode: str, surroundings: dict[str, Any]
) -> dict[str, Any]:
    """The manifest of a run that starts now."""
    manifest = {
        "schema": "traceml.manifest/1",
        "name": folder.name,
        "status": "running",
        "exit_code": None,
        "reason": None,
        "started_at": now_text(),
        "ended_at": None,
        "begin_ns": time.perf_counter_ns(),
        "end_ns": None,
        "command": command,
        "mode": mode,
        "monitor_pid": os.getpid(),
        "oom_kills": oom_kills(),
        "cores": usable_cores(),
        "environment": surroundings,
        "files": {
            "recording": f"{RECORDING}/",
            "summary": SUMMARY_JSON,
            "text": SUMMARY_TEXT,
        },
    }
    failsafe("writing the manifest", None)(write_manifest)(folder, manifest)
    return manifest


def end_manifest(
    folder: Path, manifest: dict[str, Any], code: int | None, signals: list[int]
) -> dict[str, Any]:
    """The same manifest once the command has ended with this code."""
    status, reason = how_it_ended(code, signals, oom_kills_since(manifest.get("oom_kills")))
    return {
        **manifest,
        "status": status,
        "exit_code": code,
        "reason": reason,
        "ended_at": now_text(),
        "end_ns": time.perf_counter_ns(),
        "monitor": own_cost(),
    }


def how_it_ended(
    code: int | None, signals: list[int], out_of_memory: int | None = None
) -> tuple[str, str | None]:
    """(status, reason) of a run from its exit code, the signals that we saw and the kernel's OOM kills."""
    asked = [s for s in signals if s in (signal.SIGINT, signal.SIGTERM)]
    if asked:
        name = signal.Signals(asked[0]).name
        return "interrupted", "Ctrl-C (SIGINT)" if name == "SIGINT" else f"stopped by {name}"
    if code is None:
        return "completed", None
    if code < 0:
        name = signal.Signals(-code).name
        return "killed", f"killed by {name}{_why_killed(out_of_memory) if name == 'SIGKILL' else ''}"
    return ("completed", None) if code == 0 else ("failed", None)


def _why_killed(out_of_memory: int | None) -> str:
    if out_of_memory is None:
        return "; the kernel does this when memory runs out"
    if out_of_memory:
        return "; memory ran out: the kernel killed for it during this run"
    return "; not by the kernel for lack of memory"


def usable_cores() -> int:
    """Cores that this job may use, quota included."""
    from traceml.collect.quota import read_quota

    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    quota = read_quota().cores
    return max(1, min(cores, round(quota))) if quota else cores


def own_cost() -> dict[str, Any]:
    """CPU seconds and peak memory of this monitor."""
    try:
        import resource
    except ImportError:
        return {}
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "monitor_cpu_s": usage.ru_utime + usage.ru_stime,
        "monitor_rss_bytes": usage.ru_maxrss * 1024,
    }


def recovered_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a run whose monitor died: ended as far as the recording tells."""
    from traceml.collect.rundir import is_alive
    from traceml.collect.watchdog import still_trains

    manifest = read_manifest(folder)
    if not manifest:
        say(f"{folder}: no readable manifest; going by the recording alone")
    if manifest.get("status", "running") == "running" and not is_alive(manifest.get("monitor_pid")):
        if still_trains(folder):
            ended = {"status": "running", "notes": ["The monitor has ended; training goes on, recorded."]}
        else:
            reason = "the monitor ended before the run did; rebuilt from the recording"
            ended = {"status": "killed", "reason": reason}
        manifest = {**manifest, **ended}
    return {"name": folder.name, **manifest}
