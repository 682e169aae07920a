"""What can go wrong, and the one place where anything may be swallowed."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

R = TypeVar("R")
_said: set[str] = set()


class TraceMLError(Exception):
    """Something that a user can act on; its text is one clear line."""


class CommandError(TraceMLError):
    """Ends a command with one line on standard error and this exit code."""

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def say(message: str) -> None:
    """One line on standard error, marked as ours. Standard output belongs to the training."""
    try:
        sys.stderr.write(f"traceml: {message}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        pass  # no standard error to speak to: nothing else to do


def say_once(message: str) -> None:
    """Like `say`, but the same line never twice in a process."""
    if message not in _said:
        _said.add(message)
        say(message)


def failsafe(
    what: str, fallback: Any, on_failure: Callable[[], None] | None = None
) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """The only broad handler: whatever `function` raises is said once and training goes on."""

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> R:
            try:
                return function(*args, **kwargs)
            except Exception as problem:  # noqa: BLE001 - the named boundary: see the docstring
                say_once(f"{what} failed ({type(problem).__name__}: {problem}); training goes on")
                if on_failure is not None:
                    on_failure()
                answer: R = fallback
                return answer

        return guarded

    return decorate
