"""Puts capture into this process: once, after torch has been imported."""

import atexit
import functools
import gc
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from traceml.capture.autograd_calls import FunctionWatch
from traceml.capture.events import note_early
from traceml.capture.garbage import GarbageWatch
from traceml.capture.outer_optimizer import OuterOptimizers
from traceml.capture.own_calls import OwnCalls
from traceml.capture.patches import (
    DEVICE_PATCHES,
    FUNCTION_PATCH,
    PATCHES,
    Patch,
    put_in,
    take_out,
    wrap_known_optimizers,
)
from traceml.capture.session import Session
from traceml.errors import failsafe, listen
from traceml.inject.watch import ImportWatch
from traceml.recording import layout
from traceml.schema import catalog as c
from traceml.settings import REPORT_TO_VARIABLE

FRAMEWORKS: Final = {
    "transformers.trainer": "huggingface",
    "pytorch_lightning.loops.fetchers": "lightning",
    "lightning.pytorch.loops.fetchers": "lightning",
    "accelerate.data_loader": "accelerate",
    "deepspeed.runtime.engine": "deepspeed",
    "fastai.optimizer": "fastai",
    "keras.src.optimizers.base_optimizer": "keras",
    "ray.train.torch.torch_trainer": "ray",
}
"""A module of a framework, and the file of `traceml.integrations` that knows it, loaded after it."""

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
    for patch in PATCHES:
        if patch.measures is not None and patch.module not in sys.modules:
            session.missing.append(patch.name)  # today all of these come with torch
        watch.when_imported(patch.module, functools.partial(_put_in, patch, session))
    for module, name in FRAMEWORKS.items():
        watch.when_imported(module, functools.partial(_integrate, name, session, watch))
    wrap_known_optimizers(torch.optim.Optimizer, session)
    session.on_device = functools.partial(_time_copies, session)
    functions = FunctionWatch(torch, functools.partial(_put_in, FUNCTION_PATCH, session))
    session.on_no_grad = failsafe("watching autograd functions", None)(functions.look)
    session.on_step = failsafe("looking at a step", None)(_look_at_steps(session))
    session.measured |= 1 << c.VALIDATION | 1 << c.NO_GRAD
    _garbage = failsafe("timing garbage collection", None)(GarbageWatch(session).__call__)
    gc.callbacks.append(_garbage)
    atexit.register(session.close)
    atexit.register(_note_loader, session)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=session.begin)
    if os.environ.get(REPORT_TO_VARIABLE):
        from traceml.capture.trackers.report import watch_trackers

        watch_trackers(session, watch)
    _active = session
    return session


def _look_at_steps(session: Session) -> Callable[[Any], None]:
    """What the first steps show: modules with a call of their own, optimizers around others."""
    outer, own_calls = OuterOptimizers(session), OwnCalls(session)

    def look(optimizer: Any) -> None:
        own_calls.look()
        outer.look(optimizer)

    return look


@failsafe("noting what was seen", None)
def _note_loader(session: Session) -> None:
    """At exit, if nothing was recorded: whether a data loader was read, for the summary to say so."""
    inputs = session.inputs
    read = inputs.has_loader or inputs.unresolved or inputs.candidate is not None
    if session.writer is None and session.run_dir is not None and read:
        with open(os.path.join(session.run_dir, layout.FOLDER, "seen-loader"), "ab"):
            pass


@failsafe("integrating a framework", None)
def _integrate(name: str, session: Session, watch: Any, _module: Any) -> None:
    for patch in import_module(f"traceml.integrations.{name}").PATCHES:
        watch.when_imported(patch.module, functools.partial(_put_in, patch, session))


def _put_in(patch: Patch, session: Session, _module: Any = None) -> None:
    failsafe(f"patching {patch.name}", None)(put_in)(patch, session)


def _time_copies(session: Session) -> None:
    for patch in DEVICE_PATCHES:
        _put_in(patch, session)


def deactivate() -> None:
    """Take everything out again."""
    global _active
    if _active is None:
        return
    _active.close()
    _active.off()
    take_out(_active)
    if _garbage is not None:
        gc.callbacks.remove(_garbage)
    atexit.unregister(_active.close)
    atexit.unregister(_note_loader)
    _active.run_dir = None
    _active = None
