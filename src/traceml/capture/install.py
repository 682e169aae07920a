"""Puts capture into this process: once, after torch has been imported."""

from __future__ import annotations

import atexit
import functools
import gc
import os
from collections.abc import Callable
from typing import Any

from traceml.capture.collector import CollectorWatch
from traceml.capture.forward import ForwardPatch
from traceml.capture.patches import (
    PATCHES,
    all_optimizer_classes,
    put_in,
    take_out,
    wrap_optimizer_class,
)
from traceml.capture.session import Session
from traceml.errors import failsafe
from traceml.inject.watch import ImportWatch
from traceml.schema import catalog as c

_active: Session | None = None
_forward: ForwardPatch | None = None
_collector: Callable[..., None] | None = None


def active() -> Session | None:
    """The session of this process, if capture is in."""
    return _active


@failsafe("installing TraceML", None)
def activate(watch: Any = None, run_dir: str | None = None) -> Session | None:
    """Install the patches for a recording under `run_dir` (default: TRACEML_RUN_DIR). Idempotent."""
    global _active, _forward, _collector
    if _active is not None:
        return _active
    import torch

    session = Session(torch, run_dir or os.environ.get("TRACEML_RUN_DIR"))
    watch = watch if watch is not None else ImportWatch()  # type: ignore[no-untyped-call]
    for patch in PATCHES:
        safely = failsafe(f"patching {patch.module}.{patch.attribute}", None)(put_in)
        watch.when_imported(patch.module, functools.partial(_late, safely, patch, session))
    for cls in all_optimizer_classes(torch.optim.Optimizer):
        wrap_optimizer_class(cls, session)
    _forward = ForwardPatch(session)
    _forward.install()
    session.on_step = _forward.settle
    session.on_blind_step = _forward.install
    session.measured |= 1 << c.FORWARD | 1 << c.VALIDATION
    _collector = failsafe("timing garbage collection", None, session.off)(CollectorWatch(session).__call__)
    gc.callbacks.append(_collector)
    atexit.register(session.close)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=session.begin)
    _active = session
    return session


def _late(safely: Any, patch: Any, session: Session, _module: Any) -> None:
    safely(patch, session)


def deactivate() -> None:
    """Take everything out again."""
    global _active, _forward
    if _active is None:
        return
    _active.close()
    _active.off()
    take_out(_active)
    if _forward is not None:
        _forward.uninstall()
    if _collector is not None:
        gc.callbacks.remove(_collector)
    atexit.unregister(_active.close)
    _active = _forward = None
