"""Puts capture into this process: once, after torch has been imported."""

import atexit
import functools
import gc
import os
import sys
from collections.abc import Callable
from importlib import import_module
from threading import get_ident
from typing import Any, Final

from traceml.capture import patches
from traceml.capture.events import note_early
from traceml.capture.hidden_work import OuterOptimizers, function_watch, wrap_own_calls
from traceml.capture.session import Session
from traceml.capture.slots import is_wait
from traceml.errors import failsafe, listen
from traceml.inject.watch import ImportWatch
from traceml.recording import layout
from traceml.schema import catalog as c
from traceml.settings import REPORT_TO_VARIABLE

LONG_PAUSE_NS: Final = 20_000_000
_active: Session | None = None
_garbage: Callable[..., None] | None = None


def active() -> Session | None:
    """The session of this process, if capture is in."""
    return _active


@failsafe("installing TraceML", None)
def activate(watch: Any = None, run_dir: str | None = None) -> Session | None:
    """Install the patches for a recording under `run_dir` (default: TRACEML_RUN_DIR). Idempotent."""
    global _active, _garbage
    if _active is not None:
        return _active
    import torch

    run_dir = run_dir or os.environ.get("TRACEML_RUN_DIR")
    if run_dir is not None:
        listen(failsafe("noting a failure", None)(functools.partial(note_early, run_dir, "capture_failed")))
    session = Session(torch, run_dir)
    listen(failsafe("noting a failure", None)(session.note_failure))
    watch = watch if watch is not None else ImportWatch()  # type: ignore[no-untyped-call]
    frameworks = import_module("traceml.integrations.seams").PATCHES
    for patch in (*patches.PATCHES, *frameworks):
        if patch.measures is not None and patch.module not in sys.modules:
            session.missing.append(patch.name)  # today all of these come with torch
        watch.when_imported(patch.module, functools.partial(_put_in, patch, session))
    patches.wrap_known_optimizers(torch.optim.Optimizer, session)
    session.on_device = functools.partial(_time_copies, session)
    functions = function_watch(torch, functools.partial(_put_in, patches.FUNCTION_PATCH, session))
    session.on_no_grad = failsafe("watching autograd functions", None)(functions)
    session.on_step = failsafe("looking at a step", None)(_look_at_steps(session))
    session.measured |= 1 << c.VALIDATION | 1 << c.NO_GRAD
    _garbage = failsafe("timing garbage collection", None)(_garbage_watch(session))
    gc.callbacks.append(_garbage)
    atexit.register(session.close)
    atexit.register(_note_loader, session)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=session.begin)
    if os.environ.get(REPORT_TO_VARIABLE):
        from traceml.capture.trackers import watch_trackers

        watch_trackers(session, watch)
    _active = session
    return session


def _look_at_steps(session: Session) -> Callable[[Any], None]:
    """What the first steps show: modules with a call of their own, optimizers around others."""
    outer, is_first = OuterOptimizers(session), True

    def look(optimizer: Any) -> None:
        nonlocal is_first
        if is_first:
            is_first = False
            wrap_own_calls(session, session.torch.nn.Module)
        outer.look(optimizer)

    return look


def _garbage_watch(session: Session) -> Callable[[str, dict[str, int]], None]:
    """One of `gc.callbacks`: how long Python's garbage collector stops the training thread.

    Collections lie inside phases; those inside `wait` are counted apart too.
    """
    switch, since = session.switch, 0

    def collects(when: str, _info: dict[str, int]) -> None:
        nonlocal since
        if get_ident() != switch.thread:
            return
        now = switch.clock()
        if when == "start":
            since = now
            return
        pause = now - since
        switch.gc_ns += pause
        if is_wait(switch.current):
            switch.gc_wait_ns += pause
        if pause > LONG_PAUSE_NS and session.stepping:
            session.events.add("gc", session.step + 1, since, pause)

    return collects


@failsafe("noting what was seen", None)
def _note_loader(session: Session) -> None:
    """At exit, if nothing was recorded: whether a data loader was read, for the summary to say so."""
    inputs = session.inputs
    read = inputs.has_loader or inputs.unresolved or inputs.candidate is not None
    if session.writer is None and session.run_dir is not None and read:
        with open(os.path.join(session.run_dir, layout.FOLDER, "seen-loader"), "ab"):
            pass


def _put_in(patch: patches.Patch, session: Session, _module: Any = None) -> None:
    failsafe(f"patching {patch.name}", None)(patches.put_in)(patch, session)


def _time_copies(session: Session) -> None:
    for patch in patches.DEVICE_PATCHES:
        _put_in(patch, session)


def deactivate() -> None:
    """Take everything out again."""
    global _active
    if _active is None:
        return
    _active.close()
    _active.off()
    patches.take_out(_active)
    if _garbage is not None:
        gc.callbacks.remove(_garbage)
    atexit.unregister(_active.close)
    atexit.unregister(_note_loader)
    _active.run_dir = None
    _active = None
