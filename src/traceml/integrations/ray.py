"""Ray Train: its workers are no children of the driver, so the driver tells them where to record."""

import functools
import os
from collections.abc import Callable
from typing import Any

from traceml.capture import install
from traceml.capture.session import Session
from traceml.capture.wrap import ORIGINAL, replaces
from traceml.errors import failsafe, say_once
from traceml.settings import is_switched_off

Loop = Callable[..., Any]


def trace_workers(train_loop: Loop, run_name: str | None = None, logs_dir: str | None = None) -> Loop:
    """`TorchTrainer(trace_workers(train_loop), ...)`: workers are recorded, and the driver has the summary.

    The workers may belong to a cluster that was there before. They need the driver's disk and TraceML.
    """
    from traceml.capture.api import init  # which loads torch

    init(run_name, logs_dir)
    session = install.active()
    run_dir = session.run_dir if session is not None else None
    if run_dir is None or is_switched_off(os.environ) or hasattr(train_loop, ORIGINAL):
        return train_loop
    return _traced(train_loop, run_dir)


def _traced(train_loop: Loop, run_dir: str) -> Loop:
    @functools.wraps(train_loop)
    def traced(*args: Any, **kwargs: Any) -> Any:
        # Ray sends this function by value: it must also work where TraceML is not installed.
        import os
        import sys

        found, why = train_loop, f"there is no {run_dir} on this machine"
        if os.path.isdir(run_dir):
            try:
                from traceml.integrations.ray import recorded

                found = recorded(run_dir, train_loop)
            except ImportError as problem:
                why = str(problem)
        if found is train_loop:
            sys.stderr.write(f"traceml: this Ray worker is not recorded: {why}\n")
        return found(*args, **kwargs)

    setattr(traced, ORIGINAL, train_loop)
    return traced


def recorded(run_dir: str, train_loop: Loop) -> Loop:
    """In the worker: record in the driver's run, and end the recording before Ray kills the process."""

    @functools.wraps(train_loop)
    def in_worker(*args: Any, **kwargs: Any) -> Any:
        session = install.activate(run_dir=run_dir)
        if session is not None and session.writer is None:
            session.run_dir = run_dir  # the cluster may have been started by another run
        try:
            return train_loop(*args, **kwargs)
        finally:
            if session is not None:
                session.close()

    return in_worker


def wrap_trainer(original: Loop, session: Session) -> Loop:
    """`TorchTrainer(train_loop, ...)` in a driver under `traceml run` or after `traceml.init()`."""
    trace: Callable[[Loop], Loop | None] = failsafe("tracing Ray workers", None)(trace_workers)

    @replaces(original)
    def make(self: Any, train_loop_per_worker: Loop, *args: Any, **kwargs: Any) -> None:
        traced = trace(train_loop_per_worker) if session.run_dir is not None else None
        original(self, traced or train_loop_per_worker, *args, **kwargs)

    return make


def wrap_old_trainer(original: Loop, session: Session) -> Loop:
    """Older Rays keep the arguments before `__init__` gets them, so only the script can wrap its loop."""

    @replaces(original)
    def make(self: Any, train_loop_per_worker: Loop, *args: Any, **kwargs: Any) -> None:
        if session.run_dir is not None and not hasattr(train_loop_per_worker, ORIGINAL):
            say_once(
                "workers of this Ray Train (version 1) are recorded only if the script asks for it:"
                " TorchTrainer(traceml.integrations.ray.trace_workers(train_loop), ...)"
            )
        original(self, train_loop_per_worker, *args, **kwargs)

    return make
