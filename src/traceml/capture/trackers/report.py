"""`--report-to`: the result is logged to the tracker's run just before that ends, or at exit.

The tracker's run lives in the training process, with its connection and its user's credentials; the summary
is made by the monitor, which is asked for it. Only rank 0 does this. Every wait has a limit, and nothing that
a tracker raises reaches the training.
"""

import atexit
import functools
import json
import os
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol

from traceml.capture.identity import identify
from traceml.capture.request import ask, flat, numbers, outside_steps
from traceml.capture.session import Session
from traceml.errors import failsafe, say, say_once
from traceml.settings import REPORT_EVERY_VARIABLE, REPORT_TO_VARIABLE, TRACKERS

ANSWER_S: Final = 10.0
"""So long the end of a tracker's run waits for the summary,"""
LOG_S: Final = 20.0
"""and so long for the tracker to take it."""

Figures = dict[str, str | float]


@dataclass(frozen=True, slots=True)
class Result:
    """What there is to log: the figures, the report, and a folder with the files."""

    figures: Figures
    text: str
    folder: Path

    @property
    def numbers(self) -> dict[str, float]:
        """The figures without texts."""
        return numbers(self.figures)

    @property
    def step(self) -> int:
        """How many steps were completed."""
        return int(self.numbers.get("traceml/steps", 0))


class TrackerRun(Protocol):
    """A run of a tracker that is going on."""

    def log_end(self, result: Result) -> None:
        """Log everything."""

    def log_live(self, figures: dict[str, float], step: int) -> None:
        """Log how it goes; called from a thread of its own."""


class Reporter:
    """What the wrappers of one tracker call."""

    def __init__(self, name: str, session: Session, every_s: float | None = None) -> None:
        self.name = name
        self.open: dict[object, TrackerRun] = {}
        self._session = session
        self._every_s = every_s
        self._pid = os.getpid()
        self._ended: set[object] = set()
        self._at_exit = False
        self._thread: threading.Thread | None = None
        self.guard = failsafe(f"reporting to {name}", None, any_library=True)

    def begins(self, key: object, run: TrackerRun) -> None:
        """The script has started a run of the tracker, known by `key` from now on."""
        if not self._is_first_rank():
            return
        self._ended.discard(key)
        self.open[key] = run
        if not self._at_exit:
            self._at_exit = True
            atexit.register(self._end_all)  # only now: what is registered last, after the tracker's, is first
        if self._every_s is not None and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._log_now_and_then, daemon=True)
            self._thread.start()

    def ends(self, key: object, run: TrackerRun) -> None:
        """That run is about to end: the last moment to log something to it."""
        self.open.pop(key, None)
        if key not in self._ended and self._session.writer is not None and self._is_first_rank():
            self._ended.add(key)
            with outside_steps(self._session, threading.get_ident() == self._session.switch.thread):
                self.guard(self._report)(run)

    def _end_all(self) -> None:
        for key, run in list(self.open.items()):
            self.ends(key, run)

    def _is_first_rank(self) -> bool:
        return os.getpid() == self._pid and identify(self._session.torch)["rank"] == 0

    def _report(self, run: TrackerRun) -> None:
        found = self._ask()
        if found is None:
            return
        with tempfile.TemporaryDirectory(prefix="traceml-report-") as name:
            folder = Path(name)
            (folder / "final_summary.json").write_text(json.dumps(found["summary"], indent=2))
            (folder / "final_summary.txt").write_text(found["text"])
            result = Result(flat(found["summary"]), found["text"], folder)
            if _in_time(self.guard, functools.partial(run.log_end, result)):
                say(f"reported to {self.name}: {result.figures['traceml/diagnosis']}")

    def _ask(self) -> dict[str, Any] | None:
        return ask(self._session.run_dir or "", ANSWER_S)

    def _log_now_and_then(self) -> None:
        log, never = self.guard(self._log_now), threading.Event()
        while not never.wait(self._every_s) and self.open:
            log()

    def _log_now(self) -> None:
        found = self._ask() if self._session.writer is not None else None
        if found is not None:
            figures = numbers(flat(found["summary"]))
            for run in list(self.open.values()):
                run.log_live(figures, int(figures["traceml/steps"]))

    def say_if_nothing(self) -> None:
        """At exit: the user asked for a report that could not be made."""
        if not self._ended and self._session.writer is not None and self._is_first_rank():
            say(
                f"--report-to {self.name}: nothing was reported, because the script had no run of {self.name}"
            )


def _in_time(guard: Callable[[Callable[[], None]], Callable[[], None]], work: Callable[[], None]) -> bool:
    """Whether it was done within LOG_S; if not, it goes on in the background."""
    done: list[bool] = []

    def noted() -> None:
        work()
        done.append(True)

    thread = threading.Thread(target=guard(noted), daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the interpreter is ending and starts no more threads
        noted()
    else:
        thread.join(LOG_S)
        if thread.is_alive():
            raise TimeoutError(f"it does not answer within {LOG_S:.0f} s")
    return bool(done)


def watch_trackers(session: Session, watch: Any) -> None:
    """Wait for the import of each tracker that was asked for."""
    every = os.environ.get(REPORT_EVERY_VARIABLE)
    for name in os.environ[REPORT_TO_VARIABLE].split(","):
        if name not in TRACKERS:
            say_once(
                f"{REPORT_TO_VARIABLE}: unknown value {name!r}; use one or more of: {', '.join(TRACKERS)}"
            )
            continue
        reporter = Reporter(name, session, float(every) if every else None)
        tracker = import_module(f"traceml.capture.trackers.to_{name}")
        for module in tracker.MODULES:
            watch.when_imported(module, functools.partial(reporter.guard(tracker.attach), reporter))
        atexit.register(reporter.say_if_nothing)


def observe(
    reporter: Reporter,
    owner: Any,
    name: str,
    before: Callable[..., None] = lambda *_, **__: None,
    after: Callable[..., None] = lambda *_, **__: None,
) -> None:
    """From now on `before` gets the arguments of `owner.name`, and `after` also what that returned."""
    original, before, after = getattr(owner, name), reporter.guard(before), reporter.guard(after)

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        before(*args, **kwargs)
        returned = original(*args, **kwargs)
        after(returned, *args, **kwargs)
        return returned

    setattr(owner, name, wrapper)
