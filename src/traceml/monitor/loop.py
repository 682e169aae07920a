"""What `traceml run` does while the command runs: sample, watch, roll up, answer; then make the result."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from socket import gethostname
from typing import Any, Final

from traceml.errors import failsafe, say
from traceml.monitor.machine import environment_facts, oom_kills, oom_kills_since, usable_cores
from traceml.recording import layout
from traceml.runs import manifest as manifests
from traceml.schema import WATCH_ONLY
from traceml.settings import Settings

REQUEST_EVERY_S: Final = 0.1
YOUNG_SAMPLES: Final = 8
YOUNG_INTERVAL_S: Final = 0.25
"""The first samples of a run come faster, so that short runs have some too."""


class Monitor:
    """Watches one run folder from the moment its command was started."""

    def __init__(
        self,
        folder: Path,
        command: list[str],
        settings: Settings,
        safe_rows: Sequence[Callable[[str], int]] = (),
    ) -> None:
        """Each of `safe_rows` says how many rows of a recording are in another place too (node 0, the run's
        folder on a network); only those may be rolled up here."""
        self.folder = folder
        self._settings = settings
        self._safe_rows = (lambda name: min(safe(name) for safe in safe_rows)) if safe_rows else None
        machine = {"oom_kills": oom_kills(), "cores": usable_cores(), "recorded_in": str(folder)}
        self._manifest = manifests.begin_manifest(
            folder, command, settings.mode, environment_facts(), machine
        )
        self._gauges: Any = None
        self._tail: Any = None
        self._roller: Any = None
        self._watchdog: Any = None
        self._names: list[str] = []
        self._ranks = 0
        self._new_ranks = False
        self._young = YOUNG_SAMPLES

    def watch(self, poll: Callable[[float], int | None]) -> int:
        """Run until `poll` gives the command's exit code, and return that."""
        prepare = failsafe("sampling CPU, memory and GPU", None)(self._prepare)
        sample = failsafe("sampling CPU, memory and GPU", None)(self._sample)
        look = failsafe("watching the ranks", None)(self._look)
        roll = failsafe("rolling up old steps", None)(self._roll)
        answer_requests = failsafe("answering final_summary()", None)(self._answer_requests)
        prepare()  # also if the command has ended by now: how its ranks ended is to be noted
        code = poll(0.0)
        interval = self._settings.interval
        due = time.monotonic() + interval
        while code is None:
            now = time.monotonic()
            if now >= due or self._new_ranks:
                self._new_ranks = False
                sample()
                due = now + min(interval, YOUNG_INTERVAL_S if self._young else interval)
            answer_requests()
            look()
            roll()
            code = poll(min(REQUEST_EVERY_S, max(0.0, due - time.monotonic())))
        if self._tail is not None:
            self._tail.list_again()
        look()  # for ranks that ended together with the command
        return code

    def finish(
        self,
        code: int | None,
        signals: list[int],
        drain: Callable[[], list[str]],
        settle: Callable[[], Path],
        quiet: bool,
    ) -> None:
        """Record how the run ended, `drain` what other machines still send, make the result, and `settle` it
        in the run's folder."""
        kills = oom_kills_since(self._manifest["oom_kills"])
        ended = manifests.end_manifest(self._manifest, code, signals, kills, own_cost())
        manifests.save(self.folder, ended)
        if missing := drain():
            ended["notes"] = missing
            manifests.save(self.folder, ended)
        from traceml.monitor.result import finish

        finish(self.folder, ended, settle, quiet, self._settings.html_report)

    def _prepare(self) -> None:
        # Imported only now, while the command is starting, and before it has ended.
        import traceml.monitor.result  # noqa: F401
        from traceml.monitor.gauges import Gauges, find_gpus
        from traceml.monitor.watchdog import Watchdog
        from traceml.recording.rollup import Roller
        from traceml.recording.tail import live_tail

        self._tail = live_tail(self.folder)
        if self._settings.mode != WATCH_ONLY:  # which has no steps that could stop coming
            self._watchdog = Watchdog(self._tail, self._settings.stall_after)
        self._gauges = Gauges(self.folder / layout.FOLDER, find_gpus(os.environ))
        self._roller = Roller(self.folder, safe_rows=self._safe_rows, ended=self._tail.ended)

    def _roll(self) -> None:
        if self._roller is not None:
            self._roller.maybe_roll(time.monotonic())

    def _look(self) -> None:
        if self._watchdog is not None and (line := self._watchdog.look()) is not None:
            say(line)

    def _sample(self) -> None:
        if self._gauges is not None:
            threads = self._tail.threads()
            self._gauges.sample(threads)
            if threads and self._young:
                self._young -= 1

    def _answer_requests(self) -> None:
        if self._tail is None:
            return
        recording, names = self._tail.folder, self._tail.names()
        if names is self._names:
            return
        self._names = names
        ranks = sum(name.endswith(".steps") for name in names)
        self._new_ranks, self._ranks = ranks > self._ranks, ranks
        for name in names:
            if name.startswith("request-"):
                self._answer(recording / name.replace("request-", "answer-"))
                (recording / name).unlink(missing_ok=True)

    def _answer(self, path: Path) -> None:
        """Answer a waiting `traceml.final_summary()` with the summary of everything so far."""
        from traceml.files import write_atomic
        from traceml.monitor.result import build, encode_answer

        # The tail that is kept has read everything but what is new. In a long run it holds only the newest
        # steps, but this answer is about all of them, so everything is read again.
        kept = self._tail if self._tail is not None and self._tail.is_whole else None
        summary = build(self.folder, self._manifest, final=False, tail=kept)
        write_atomic(path, encode_answer(summary))


def note_process(folder: Path, pid: int) -> None:
    """For a command without capture: a recording without steps, so that its samples belong to somebody."""
    from traceml.schema import catalog as c

    one = {"rank": 0, "local_rank": 0, "node_rank": 0, "world_size": 1}
    header = {"identity": {**one, "host": gethostname(), "pid": pid}, "process": {"thread": pid}}
    path = folder / layout.FOLDER / f"rank-0.{pid}.steps"
    path.write_bytes(layout.header_bytes(c.STEP_COLUMNS, header))


def own_cost() -> dict[str, float]:
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
