"""How a training process ends: with which exception, and for workers that skip `atexit`, the end of their
recording."""

import os
import re
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from traceml.schema import catalog as c

NOT_THE_USERS: Final = (
    "<",
    str(Path(__file__).parent.parent) + os.sep,
    *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)
"""How the names of files begin that belong to Python, to packages or to us."""


class Failure(NamedTuple):
    """An exception left a phase."""

    step: int = -1
    problem: int = 0  # the id of the exception
    slot: int = 0


def end_of(step: int, failed: Failure) -> dict[str, Any] | None:
    """The error that ends this process after `step`: what it says, the phase that it left, and the line.

    It is one that nobody caught, or that is on its way out of a worker; or the cause of a failing exit.
    """
    error = getattr(sys, "last_value", None) or sys.exc_info()[1]
    if isinstance(error, SystemExit):
        error = error.__context__ if error.code else None
    if error is None:
        return None
    is_phase = failed.slot < len(c.PHASES)  # or a place in the code of an optimizer's closure
    is_it = is_phase and failed.step == step and failed.problem in _ids(error)
    message, line = _of_worker(error) or (f"{type(error).__name__}: {error}", _line_of(error))
    during = c.PHASES[failed.slot].key if is_it else None
    return {"message": message.removesuffix(": ")[:500], "during": during, "raised_at": line}


def _of_worker(error: BaseException) -> tuple[str, str | None] | None:
    """What a loader worker raised, and where: PyTorch raises it again with the traceback in its message."""
    _, is_there, original = str(error).partition("\nOriginal Traceback (most recent call last):\n")
    *_, after_frames = re.split(r"^  File .*\n", original, flags=re.MULTILINE)
    said = [line for line in after_frames.splitlines() if line[:1].strip()]
    if not is_there or not said:
        return None
    frames = re.findall(r'^  File "(.+)", line (\d+)', original, re.MULTILINE)
    lines = [f"{Path(name).name}:{at}" for name, at in frames if not name.startswith(NOT_THE_USERS)]
    return f"{said[0]} (in a loader worker)", lines[-1] if lines else _line_of(error)


def _ids(error: BaseException) -> set[int]:
    """Of the error, and of those that led to it."""
    ids: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in ids:
        ids.add(id(link))
        link = link.__cause__ or link.__context__
    return ids


def _line_of(error: BaseException) -> str | None:
    """The innermost line that is the user's."""
    line, trace = None, error.__traceback__
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if not name.startswith(NOT_THE_USERS):
            line = f"{Path(name).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return line


def close_with_worker(close: Callable[[], None]) -> None:
    """In a process of `multiprocessing`: it catches exceptions itself, and a forked one skips `atexit`."""
    parent = getattr(sys.modules.get("multiprocessing.process"), "parent_process", None)
    if parent is not None and parent() is not None:
        from multiprocessing.util import Finalize

        Finalize(None, close, exitpriority=0)
