"""`with traceml.run("name"):` and `%load_ext traceml`: a training in a notebook, its result below it."""

import html
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Final

from traceml.capture import install
from traceml.capture.api import start_monitor
from traceml.capture.request import ask, monitor_alive
from traceml.errors import CommandError, failsafe, say
from traceml.present import page
from traceml.recording import layout
from traceml.settings import is_switched_off

RESULT_S: Final = 30.0
FILES: Final = ("final_summary.json", "final_summary.txt")
"""In the order in which they are written."""
FRAME: Final = (
    '<iframe srcdoc="{}" sandbox="allow-scripts" title="TraceML"'
    ' style="width: 100%; height: 720px; border: 1px solid #8884; border-radius: 6px"></iframe>'
)
RUN_VARIABLE: Final = "TRACEML_RUN_DIR"


class run:  # noqa: N801 - read as a verb: `with traceml.run("baseline"):`
    """`with traceml.run("name"):` around a training makes it a run, and shows its result at the end.

    In a notebook the verdict and the page appear below the cell; elsewhere the report is printed. A name that
    is taken gets a number. Inside `traceml run`, or after `traceml.init()`, that run goes on and is shown.
    """

    def __init__(self, name: str | None = None, logs_dir: str | None = None) -> None:
        self._name, self._logs_dir = name, logs_dir
        self._run_dir = ""
        self.folder: Path | None = None
        """Where the result is."""
        self.summary: dict[str, Any] | None = None
        """After the block: what `traceml.final_summary()` returns."""

    def __enter__(self) -> "run":  # noqa: PYI034 - Self is new in Python 3.11
        failsafe("starting a run", None)(self._begin)()
        return self

    def __exit__(self, *_: object) -> None:
        failsafe("showing the run", None, any_library=True)(self._end)()

    @property
    def has_steps(self) -> bool:
        session = install.active()
        return session is not None and session.writer is not None

    def _begin(self) -> None:
        if is_switched_off(os.environ):
            return
        if RUN_VARIABLE in os.environ:  # within another run
            self.folder = Path(os.environ[RUN_VARIABLE])
            return
        place = start_monitor(self._name or "notebook", self._logs_dir, ["--numbered", "--quiet"])
        if place is None:
            return
        self._run_dir, self.folder = place[0], Path(place[1])
        os.environ[RUN_VARIABLE] = self._run_dir  # processes that the block starts are part of the run
        install.activate(run_dir=self._run_dir)

    def _end(self) -> None:
        trained = self.has_steps
        if self._run_dir:
            install.deactivate()
            os.environ.pop(RUN_VARIABLE, None)
            (Path(self._run_dir) / layout.FOLDER / layout.ENDED).touch()
            found = self._result() if trained else None
        else:
            found = self._so_far()
        if not trained and _automatic is None and not is_switched_off(os.environ):
            say("no training step in this run: train inside the block")
        if found is not None:
            self.summary = json.loads(found[0])
            show(*found)

    def _result(self) -> tuple[bytes, str] | None:
        """What the monitor writes now that the run is over."""
        assert self.folder is not None
        deadline = time.monotonic() + RESULT_S
        paths = [self.folder / name for name in FILES]
        while not paths[-1].exists():
            if time.monotonic() > deadline or not monitor_alive(Path(self._run_dir)):
                say(f"no result came; `traceml view {self.folder}` makes it")
                return None
            time.sleep(0.02)
        return paths[0].read_bytes(), paths[1].read_text()

    def _so_far(self) -> tuple[bytes, str] | None:
        session = install.active()
        if session is None or session.run_dir is None or not self.has_steps or _automatic is not None:
            return None
        found = ask(session.run_dir, RESULT_S)
        return (json.dumps(found["summary"]).encode(), found["text"]) if found is not None else None


def show(summary: bytes, text: str) -> None:
    """The verdict and the page below the cell; without IPython, the report on standard error."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None:
        sys.stderr.write(f"{text}\n")
        return
    from IPython.display import display

    bundle = {"text/plain": text}
    if hasattr(shell, "kernel"):
        sys.stdout.write(text.partition("\n\n")[0].strip("-\n") + "\n")
        try:
            bundle["text/html"] = FRAME.format(html.escape(page.of_summary(summary).decode()))
        except CommandError as problem:  # the page is not built
            say(str(problem))
    display(bundle, raw=True)  # type: ignore[no-untyped-call]


class _Cells:
    """After `%load_ext traceml`: every cell that trains is a run of its own."""

    def __init__(self) -> None:
        self._run: run | None = None

    def before(self, *_: object) -> None:
        if self._run is None:
            self._run = run()
            self._run.__enter__()

    def after(self, *_: object) -> None:
        """A cell has ended; one that did not train leaves the run to the next."""
        if self._run is not None and self._run.has_steps:
            self.end()

    def end(self) -> None:
        ended, self._run = self._run, None
        if ended is not None:
            ended.__exit__(None, None, None)


_automatic: _Cells | None = None


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext traceml`: from now on, a cell that trains shows its verdict and page."""
    global _automatic
    if _automatic is None:
        _automatic = _Cells()
        _automatic.before()
        shell.events.register("pre_run_cell", _automatic.before)
        shell.events.register("post_run_cell", _automatic.after)


def unload_ipython_extension(shell: Any) -> None:
    """`%unload_ext traceml`."""
    global _automatic
    if _automatic is not None:
        shell.events.unregister("pre_run_cell", _automatic.before)
        shell.events.unregister("post_run_cell", _automatic.after)
        _automatic.end()
        _automatic = None
