"""`--report-to`: the result is logged to the tracker's run just before that ends, or at exit.

The tracker's run lives in the training process, with its connection and its user's credentials; the summary
is made by the monitor, which is asked for it. Only rank 0 does this. Every wait has a limit, and nothing that
a tracker raises reaches the training.
"""

import atexit
import functools
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from traceml.capture.rank import identify
from traceml.capture.request import ask, flat, numbers, outside_steps
from traceml.capture.session import Session
from traceml.errors import failsafe, say, say_once
from traceml.settings import REPORT_EVERY_VARIABLE, REPORT_TO_VARIABLE

ANSWER_S: Final = 10.0
"""How long the end of a tracker's run waits for the summary,"""
LOG_S: Final = 20.0
"""and then for the tracker to take it."""
MLFLOW_FOLDER: Final = "traceml"
LONGEST_TAG: Final = 5000


@dataclass(frozen=True, slots=True)
class Result:
    """What there is to log."""

    figures: dict[str, str | float]
    numbers: dict[str, float]  # the figures without texts
    step: int  # how many were completed
    text: str  # the report
    folder: Path  # with the files


class Reporter:
    """What the wrappers of one tracker call.

    A run of a tracker is an object with `log_end(result)`, and `log_live(numbers, step)`, which is called
    from a thread of its own.
    """

    def __init__(self, name: str, session: Session, every_s: float | None = None) -> None:
        self.name, self._session, self._every_s = name, session, every_s
        self._pid = os.getpid()
        self.open: dict[object, Any] = {}
        self._ended: set[object] = set()
        self._at_exit = False
        self._thread: threading.Thread | None = None
        self.guard = failsafe(f"reporting to {name}", None, any_library=True)

    def begins(self, key: object, run: Any) -> None:
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

    def ends(self, key: object, run: Any) -> None:
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

    def _ask(self) -> dict[str, Any] | None:
        return ask(self._session.run_dir or "", ANSWER_S)

    def _report(self, run: Any) -> None:
        found = self._ask()
        if found is None:
            return
        with tempfile.TemporaryDirectory(prefix="traceml-report-") as name:
            folder = Path(name)
            (folder / "final_summary.json").write_text(json.dumps(found["summary"], indent=2))
            (folder / "final_summary.txt").write_text(found["text"])
            figures = flat(found["summary"])
            known = numbers(figures)
            result = Result(figures, known, int(known.get("traceml/steps", 0)), found["text"], folder)
            if _in_time(self.guard, functools.partial(run.log_end, result)):
                say(f"reported to {self.name}: {figures['traceml/diagnosis']}")

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
            why = f"nothing was reported, because the script had no run of {self.name}"
            say(f"--report-to {self.name}: {why}")

    def observe(
        self, owner: Any, name: str, before: Callable[..., None] | None, after: Callable[..., None] | None
    ) -> None:
        """From now on `before` gets the arguments of `owner.name`, and `after` also what that returned."""
        original, begin = getattr(owner, name), self.guard(before or _ignore)
        end = self.guard(after or _ignore)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            begin(*args, **kwargs)
            returned = original(*args, **kwargs)
            end(returned, *args, **kwargs)
            return returned

        setattr(owner, name, wrapper)


def _ignore(*_: Any, **__: Any) -> None:
    pass


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


class MlflowRun:
    """A run of MLflow, known by its id: which run is active depends on the thread. Numbers become metrics,
    texts tags, the files artifacts in the folder `traceml`.
    """

    def __init__(self, client: Any, run_id: str) -> None:
        self._client, self._run_id = client, run_id

    def log_end(self, result: Result) -> None:
        texts = {key: value for key, value in result.figures.items() if isinstance(value, str)}
        self._log(result.numbers, result.step, texts)
        for path in result.folder.iterdir():  # one by one: at exit no pool of threads can be used
            self._client.log_artifact(self._run_id, str(path), MLFLOW_FOLDER)

    def log_live(self, figures: dict[str, float], step: int) -> None:
        self._log(figures, step, {})

    def _log(self, figures: dict[str, float], step: int, texts: dict[str, str]) -> None:
        """In one request."""
        now_ms, entities = int(time.time() * 1000), sys.modules["mlflow.entities"]
        metrics = [entities.Metric(key, float(value), now_ms, step) for key, value in figures.items()]
        tags = [entities.RunTag(key.replace("/", "."), text[:LONGEST_TAG]) for key, text in texts.items()]
        self._client.log_batch(self._run_id, metrics=metrics, tags=tags)


def attach_mlflow(reporter: Reporter, module: Any) -> None:
    """Wait for runs. All of MLflow's ways to begin and end one go through its client."""

    def begins(run: Any, client: Any, *_: Any, **__: Any) -> None:
        reporter.begins(run.info.run_id, MlflowRun(client, run.info.run_id))

    def ends(client: Any, run_id: str, *_: Any, **__: Any) -> None:
        reporter.ends(run_id, MlflowRun(client, run_id))

    reporter.observe(module.MlflowClient, "create_run", None, begins)
    reporter.observe(module.MlflowClient, "set_terminated", ends, None)
    mlflow = sys.modules["mlflow"]
    run = mlflow.active_run() if hasattr(mlflow, "active_run") else None
    if run is not None:  # torch was imported after it began
        begins(run, module.MlflowClient())


class TensorboardRun:
    """A SummaryWriter, the first that the script has open: others belong to it (`add_hparams` makes one).
    Figures become scalars, the report a text, the files lie beside the writer's.
    """

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def log_end(self, result: Result) -> None:
        """The text as code, so that its columns stay in line."""
        self.log_live(result.numbers, result.step)
        indented = "\n".join(f"    {line}" for line in result.text.splitlines())
        self._writer.add_text("traceml/summary", indented, result.step)
        self._writer.flush()
        for path in result.folder.iterdir():
            shutil.copy(path, self._writer.log_dir)

    def log_live(self, figures: dict[str, float], step: int) -> None:
        for key, value in figures.items():
            self._writer.add_scalar(key, value, step)


def attach_tensorboard(reporter: Reporter, module: Any) -> None:
    """Wait for writers."""

    def begins(_: None, writer: Any, *__: Any, **___: Any) -> None:
        if not reporter.open:
            reporter.begins(id(writer), TensorboardRun(writer))

    def ends(writer: Any, *_: Any, **__: Any) -> None:
        if id(writer) in reporter.open:
            reporter.ends(id(writer), TensorboardRun(writer))

    reporter.observe(module.SummaryWriter, "__init__", None, begins)
    reporter.observe(module.SummaryWriter, "close", ends, None)


class WandbRun:
    """A run of wandb. Figures go to its summary, the files become an artifact."""

    def __init__(self, wandb: Any, run: Any) -> None:
        self._wandb, self._run = wandb, run
        self._has_axis = False

    def log_end(self, result: Result) -> None:
        """Into the summary, where they change neither the run's history nor its steps."""
        self._run.summary.update(result.figures)
        artifact = self._wandb.Artifact(f"traceml-{self._run.id}", type="traceml")
        for path in result.folder.iterdir():
            artifact.add_file(str(path))
        self._run.log_artifact(artifact)

    def log_live(self, figures: dict[str, float], step: int) -> None:
        """With the row that the script writes next: a row of our own would shift the script's steps."""
        if not self._has_axis:
            self._run.define_metric("traceml/steps")
            self._run.define_metric("traceml/*", step_metric="traceml/steps")
            self._has_axis = True
        self._run.log(figures, commit=False)


def attach_wandb(reporter: Reporter, wandb: Any) -> None:
    """Wait for runs."""

    def begins(run: Any, *_: Any, **__: Any) -> None:
        reporter.begins(run.id, WandbRun(wandb, run))

    def ends(run: Any, *_: Any, **__: Any) -> None:
        reporter.ends(run.id, WandbRun(wandb, run))

    reporter.observe(wandb, "init", None, begins)
    reporter.observe(wandb.Run, "finish", ends, None)
    reporter.observe(wandb.Run, "__exit__", ends, None)
    if wandb.run is not None:  # torch was imported after it began
        begins(wandb.run)


TRACKERS: Final[dict[str, tuple[Callable[[Reporter, Any], None], tuple[str, ...]]]] = {
    "wandb": (attach_wandb, ("wandb",)),
    "mlflow": (attach_mlflow, ("mlflow.tracking.client",)),
    "tensorboard": (attach_tensorboard, ("torch.utils.tensorboard.writer", "tensorboardX.writer")),
}
"""By their names of `settings.TRACKERS`: what waits for their runs, once one of these modules is imported."""


def watch_trackers(session: Session, watch: Any) -> None:
    """Wait for the import of each tracker that was asked for."""
    every = os.environ.get(REPORT_EVERY_VARIABLE)
    for name in os.environ[REPORT_TO_VARIABLE].split(","):
        if name not in TRACKERS:
            known = ", ".join(TRACKERS)
            say_once(f"{REPORT_TO_VARIABLE}: unknown value {name!r}; use one or more of: {known}")
            continue
        reporter = Reporter(name, session, float(every) if every else None)
        attach, modules = TRACKERS[name]
        for module in modules:
            watch.when_imported(module, functools.partial(reporter.guard(attach), reporter))
        atexit.register(reporter.say_if_nothing)
