"""How a training process ends: the exception that ends it, and workers that end without a farewell."""

import sys
from collections.abc import Callable


def fatal_error() -> str | None:
    """What ends this process: not caught, or on its way out of a worker; the cause of a failing exit."""
    error = getattr(sys, "last_value", None) or sys.exc_info()[1]
    if isinstance(error, SystemExit):
        error = error.__context__ if error.code else None
    return f"{type(error).__name__}: {error}".removesuffix(": ")[:500] if error is not None else None


def close_with_worker(close: Callable[[], None]) -> None:
    """In a process of `multiprocessing`: it catches exceptions itself, and a forked one skips `atexit`."""
    parent = getattr(sys.modules.get("multiprocessing.process"), "parent_process", None)
    if parent is not None and parent() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, close, exitpriority=0)
