"""What user code may call. All of it is a harmless no-op, with one clear line, when nothing is recording."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import get_ident
from typing import Any, Final

from traceml.capture import install
from traceml.capture.request import ask, flat, numbers, outside_steps
from traceml.capture.session import Session
from traceml.capture.slots import is_wait
from traceml.capture.switch import Switch, c_module
from traceml.errors import failsafe, say, say_once
from traceml.schema import catalog as c
from traceml.settings import is_switched_off

HOW_TO_RECORD: Final = "start the script with `traceml run`, or call traceml.init() in it"
SUMMARY_TIMEOUT_S: Final = 30.0
IDLE_S: Final = 3600


def _session(caller: str) -> Session | None:
    if is_switched_off(os.environ):
        return None
    session = install.active()
    if session is None or session.run_dir is None:
        say_once(f"{caller} does nothing, because nothing is recording: {HOW_TO_RECORD}")
        return None
    return session


def init(run_name: str | None = None, logs_dir: str | None = None) -> bool:
    """Start recording in this process, if `traceml run` has not done so already.

    Launched directly (`python train.py`), this also starts a detached monitor, which writes the summary
    when the process ends. Returns whether anything is recording.
    """
    if is_switched_off(os.environ):
        return False
    session = install.active()
    if session is not None and session.run_dir is not None:
        return True
    run_dir = os.environ.get("TRACEML_RUN_DIR")
    if run_dir is None:
        place = start_monitor(run_name, logs_dir)
        if place is None:
            return False
        run_dir = place[0]
        if place[1]:  # not in a rank that joins the run of another
            say(f"recording in {place[1]}")
        os.environ["TRACEML_RUN_DIR"] = run_dir  # children of this process are part of the run
    return install.activate(run_dir=run_dir) is not None


@failsafe("starting the monitor", None)
def start_monitor(
    run_name: str | None, logs_dir: str | None, more: Sequence[str] = ()
) -> tuple[str, str] | None:
    """Start a monitor for this process; the folder that it records in, and the run's own."""
    import subprocess

    command = [sys.executable, "-m", "traceml", "attach", "--pid", str(os.getpid())]
    command += ["--run-name", run_name] if run_name else []
    command += ["--logs-dir", logs_dir] if logs_dir else []
    command += more
    command += ["--", *(getattr(sys, "orig_argv", None) or [sys.executable, *sys.argv])]
    environment = dict(os.environ)
    if _is_interactive():  # a pause between two cells of a notebook is no hang
        environment.setdefault("TRACEML_STALL_AFTER", str(IDLE_S))
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline().strip()  # the monitor is a process of its own by now
    process.stdout.close()
    process.wait()
    run_dir, _, home = line.partition("\t")
    return (run_dir, home) if run_dir else None


def _is_interactive() -> bool:
    """A notebook, IPython or Python's own prompt: all of them set a prompt."""
    return hasattr(sys, "ps1")


def _enter_block() -> Switch | None:
    """A `trace_step` block opens: the switch, if this thread records."""
    session = _session("trace_step")
    if session is None or not _ours(session):
        return None
    if session.framework_loops:
        say_once("trace_step has no effect inside a framework's training loop, which has steps of its own")
        return None
    _open_block(session)
    return session.switch


@failsafe("trace_step", None)
def _open_block(session: Session) -> None:
    """An unclaimed gap since the last step was waiting for input."""
    switch = session.switch
    switch.block_depth += 1
    if switch.block_depth > 1:
        return
    switch.blocks = 1
    session.look_closer()
    if not session.stepping:
        session.stepping = True
        if session.inputs.candidate is None:
            session.restart()
    elif not switch.fetches and is_wait(switch.current):
        switch.flush(switch.clock())
        switch.move(c.WAIT_START, c.INPUT)
        switch.step_flags |= c.FLAG_INPUT_INFERRED
    if session.writer is None:
        session.become_rank(None)


@failsafe("trace_step", None)
def _leave_block(failed: bool) -> None:
    """A block closes: the step is over, or aborted by an exception."""
    session = install.active()
    if session is None or not _ours(session):
        return
    session.switch.block_depth -= 1
    if session.switch.block_depth:
        return
    if failed:
        session.drop_step()
    else:
        session.end_step(session.switch.clock())


class _TraceStep:
    """`with trace_step(model):` around one training step. Its exit ends the step."""

    def __init__(self, model: Any = None) -> None:
        self._entered = False

    def __enter__(self) -> None:
        self._entered = _enter_block() is not None

    def __exit__(self, kind: object, *_: object) -> None:
        if self._entered:
            self._entered = False
            _leave_block(kind is not None)


trace_step: type[_TraceStep] = _TraceStep if c_module is None else c_module.trace_step
"""The class in C does the same, and asks these functions when something is unusual."""
if c_module is not None:
    c_module.blocks_use(_enter_block, _leave_block)


def _ours(session: Session) -> bool:
    adopts = failsafe("following training to another thread", False)(session.adopt_thread)
    return get_ident() == session.switch.thread or adopts()


class phase:
    """`with traceml.phase("augment"):` names a part of the step as a phase of its own."""

    def __init__(self, name: str) -> None:
        self._name = str(name)
        self._session = _session("phase")
        self._outer: int | None = None

    def __enter__(self) -> None:
        session = self._session
        if session is not None and get_ident() == session.switch.thread:
            self._outer = session.switch.enter_inside(session.user_phases.slot(self._name))

    def __exit__(self, *_: object) -> None:
        if self._outer is not None and self._session is not None:
            self._session.switch.leave(self._outer)
            self._outer = None


@failsafe("final_summary", None)
def final_summary(print_text: bool = False, timeout_s: float = SUMMARY_TIMEOUT_S) -> dict[str, Any] | None:
    """Wait for the summary of everything recorded so far and return it; None if there is none."""
    session = _session("final_summary")
    if session is None or session.run_dir is None:
        return None
    if session.writer is None and not any(Path(session.run_dir, "recording").glob("*.steps")):
        say("final_summary has nothing to report: no training step so far")
        return None
    with outside_steps(session, _ours(session)):
        found = ask(session.run_dir, timeout_s)
    if found is not None and print_text:
        # Standard output is the training's, but in a notebook that is where the reader looks.
        (sys.stdout if _is_interactive() else sys.stderr).write(f"{found.get('text')}\n")
    return found.get("summary") if found is not None else None


def report() -> None:
    """Print the report of everything recorded so far."""
    final_summary(print_text=True)


def summary(numbers_only: bool = False) -> dict[str, str | float]:
    """The verdict and key figures so far as a flat dict, ready for an experiment tracker.

    `numbers_only` leaves out the texts, for trackers such as MLflow that accept only numbers as metrics.
    """
    full = final_summary()
    figures = flat(full) if full else {}
    return {**numbers(figures)} if numbers_only else figures
