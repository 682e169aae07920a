"""Our exceptions, messages to the user, and the only place that swallows every exception."""

import functools
import signal
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any, Final, TypeVar

R = TypeVar("R")
_said: set[str] = set()
_listeners: list[Callable[[str], None]] = []
LONGEST_LINE: Final = 1000
_OUR_LIBRARIES: Final = frozenset(
    {"builtins", "torch", "traceml", "numpy", "psutil", "zmq", "msgspec", "pynvml"}
)


class TraceMLError(Exception):
    """Something that a user can act on. Its text is one clear line."""


class CommandError(TraceMLError):
    """Ends a command with one line on standard error and this exit code."""

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def printable(text: str) -> str:
    """The text without characters that could control a terminal: escapes, new lines, reversed writing."""
    if text.isprintable():
        return text
    return "".join(ch if ch.isprintable() else " " if ch.isspace() else "?" for ch in text)


def say(message: str) -> None:
    """Write one line to standard error. Standard output belongs to the training."""
    line = printable(message)
    line = line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}..."
    try:
        sys.stderr.write(f"traceml: {line}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        pass  # there is no standard error


def say_once(message: str) -> None:
    """Like `say`, but at most once per process for the same line."""
    if message not in _said:
        _said.add(message)
        say(message)


def failsafe(
    what: str, fallback: Any, on_failure: Callable[[], None] | None = None, any_library: bool = False
) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """The only broad handler: an error of ours is reported once and training goes on.

    User exceptions always pass: one that a signal handler raised while our code ran, or one of a class that
    neither Python nor a library of ours defines. `any_library` is for calls of ours into another library,
    such as a tracker; then its exceptions count as ours.
    """

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> R:
            try:
                return function(*args, **kwargs)
            except Exception as problem:
                if not _is_ours(problem, any_library):
                    raise
                kind = "" if isinstance(problem, TraceMLError) else f"{type(problem).__name__}: "
                line = f"{what} failed ({kind}{problem}); training goes on"
                listeners = _listeners if line not in _said else []
                say_once(line)
                for listener in listeners:
                    listener(line)
                if on_failure is not None:
                    on_failure()
                answer: R = fallback
                return answer

        return guarded

    return decorate


def listen(listener: Callable[[str], None]) -> None:
    """From now on this is called, once each, with what failed. It must be failsafe itself."""
    _listeners[:] = [listener]


def _is_ours(problem: Exception, any_library: bool) -> bool:
    root = type(problem).__module__.partition(".")[0]
    if not (any_library or root in _OUR_LIBRARIES or root in sys.stdlib_module_names):
        return False
    handlers, trace = _signal_handlers(), problem.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return False
        trace = trace.tb_next
    return True


def _signal_handlers() -> set[CodeType]:
    """The code of every signal handler that is written in Python."""
    found = set()
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        handler = getattr(handler, "func", handler)  # functools.partial
        code = getattr(getattr(handler, "__func__", handler), "__code__", None)
        if code is None and callable(handler):  # an object with a method __call__
            code = getattr(type(handler).__call__, "__code__", None)
        if code is not None:
            found.add(code)
    return found
