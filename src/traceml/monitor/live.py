"""Looks at a run again and again, for the live views: rows become a Summary here as they do at the end."""

import time
from collections import deque
from pathlib import Path
from typing import Final

from traceml.analyze.window_arrays import Before
from traceml.errors import CommandError
from traceml.monitor.result import build
from traceml.recording.tail import Tail, live_tail
from traceml.runs import summary_file
from traceml.runs.liveness import sign_of_life
from traceml.runs.manifest import SUMMARY_JSON, read_manifest, recorded_at
from traceml.schema import WATCH_ONLY
from traceml.schema import live as state
from traceml.schema.live import Live
from traceml.schema.summary import Summary

STALE_S: Final = 10.0
"""Without a new step for this long, and for this many times the usual step, a run has no news."""
STALE_STEPS: Final = 5.0
ALIVE_EVERY_S: Final = 2.0
RATE_LOOKS: Final = 10


class LiveRun:
    """A run that is going on, or was: `look` gives its newest state."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._tail: Tail | None = None
        self._before = Before()
        self._steps = -1
        self._news = time.monotonic()
        self._asked = 0.0
        self._lives = True
        self._verdict: tuple[str, int | None, bool] | None = None
        self._counts: deque[tuple[float, int]] = deque(maxlen=RATE_LOOKS)
        self._over: Live | None = None
        self._looks = 0

    def look(self) -> Live:
        """The run as it is now. Once it has ended, the final summary, always the same object."""
        if self._over is not None:
            return self._over
        self._looks += 1
        manifest, now = read_manifest(self.folder), time.monotonic()
        if now - self._asked >= ALIVE_EVERY_S:
            self._asked, self._lives = now, sign_of_life(self.folder, manifest) is not None
        if not self._lives:
            manifest = read_manifest(self.folder)  # the last thing that a monitor does is to write
        ended = not manifest or manifest.get("status", "running") != "running"
        if ended and summary_file.exists(self.folder / SUMMARY_JSON):
            summary = summary_file.read(self.folder / SUMMARY_JSON).summary
            how = state.FINISHED if summary.run.status in ("completed", "interrupted") else state.CRASHED
            since, from_start = self._since(summary)
            self._over = Live(summary, how, since_step=since, since_start=from_start)
        else:  # an ended run without its file: the monitor is just writing it, or is gone and could not
            source = recorded_at(self.folder, manifest)
            if self._tail is None or self._tail.folder.parent != source:
                self._tail = live_tail(source)
            live = self._seen(build(source, manifest, final=False, tail=self._tail, before=self._before))
            if self._lives:
                return live
            self._over = live
        self._tail, self._before = None, Before()
        return self._over

    def _seen(self, summary: Summary) -> Live:
        now, steps = time.monotonic(), summary.run.recorded_steps or 0
        if steps != self._steps or summary.run.mode == WATCH_ONLY:
            self._steps, self._news = steps, now
        if not steps:
            self._counts.clear()
        self._counts.append((now, summary.run.steps.total or 0))
        (first_s, first), (last_s, last) = self._counts[0], self._counts[-1]
        quiet = now - self._news
        since, from_start = self._since(summary)
        return Live(
            summary=summary,
            state=self._state(summary, quiet),
            quiet_s=quiet,
            since_step=since,
            since_start=from_start,
            steps_per_s=(last - first) / (last_s - first_s) if last_s > first_s and last >= first else None,
        )

    def _state(self, summary: Summary, quiet: float) -> str:
        if not self._lives:
            return state.CRASHED
        if summary.run.mode == WATCH_ONLY:
            return state.LIVE
        if not self._steps:
            return state.WAITING
        step_ms = summary.step_time.metrics["step_ms"].median.value or 0.0
        return state.STALE if quiet > max(STALE_S, STALE_STEPS * step_ms / 1e3) else state.LIVE

    def _since(self, summary: Summary) -> tuple[int | None, bool]:
        """Since which step the same verdict is there, and whether it was at the first look."""
        found = summary.primary_diagnosis
        if found.kind == "NO_DATA":
            self._verdict = None
            return None, False
        if self._verdict is None or self._verdict[0] != found.kind:
            self._verdict = (found.kind, summary.run.steps.total, self._looks <= 1)
        return self._verdict[1:]


def find_run(name: str, logs: Path) -> Path:
    """The folder of a run, from its path, its name under `logs`, or the number of one of its processes."""
    if name.isascii() and name.isdigit() and (found := _of_process(int(name), logs)) is not None:
        return found
    path = summary_file.find(name, logs)
    folder = path if path.is_dir() else path.parent
    if not read_manifest(folder):
        raise CommandError(f"{summary_file.shown(folder)}: not a TraceML run folder")
    return folder


def _of_process(pid: int, logs: Path) -> Path | None:
    """The newest run that this process watches or trains in."""
    folders = sorted(logs.glob("*/manifest.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for folder in (path.parent for path in folders):
        manifest = read_manifest(folder)
        if manifest.get("status") != "running":
            continue
        pids = {rank.identity.pid for rank in live_tail(folder).local_ranks()}
        if pid == manifest.get("monitor_pid") or pid in pids:
            return folder
    return None
