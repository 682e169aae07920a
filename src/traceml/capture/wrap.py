"""The general wrapper: a call that is one phase. Leaves no frame of ours in a traceback."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from traceml.capture.switch import PASS, Switch
from traceml.schema import catalog as c

ORIGINAL: Final = "_traceml_original"
"""Attribute of a wrapper that holds what it wraps: how patches are recognised and taken out."""


def hide_frame(problem: BaseException) -> None:
    """Drop the innermost frame, ours, from a traceback that is passing through."""
    if problem.__traceback__ is not None:
        problem.__traceback__ = problem.__traceback__.tb_next


def timed(
    original: Callable[..., Any],
    switch: Switch,
    slot: int,
    is_compiling: Callable[[], bool] | None = None,
    done: Callable[[int, int], None] | None = None,
) -> Callable[..., Any]:
    """`original`, charged to `slot` when the training thread calls it outside any other phase.

    `is_compiling` comes first in the test: inside torch.compile it is a constant, so that the compiler sees
    nothing of ours. `done(began, ended)` is told of each completed call.
    """
    enter = switch.enter_compute if slot == c.OPTIMIZER else switch.enter
    leave = switch.leave

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        outer = enter(slot)
        if outer == PASS:
            return original(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException as problem:
            leave(outer)
            hide_frame(problem)
            raise
        leave(outer)
        return result

    def telling(*args: Any, **kwargs: Any) -> Any:
        if is_compiling is not None and is_compiling():
            return original(*args, **kwargs)
        outer = enter(slot)
        if outer == PASS:
            return original(*args, **kwargs)
        began = switch.since
        try:
            result = original(*args, **kwargs)
        except BaseException as problem:
            leave(outer)
            hide_frame(problem)
            raise
        ended = leave(outer)
        if done is not None:
            done(began, ended)
        return result

    chosen = wrapper if is_compiling is None and done is None else telling
    functools.update_wrapper(chosen, original)
    setattr(chosen, ORIGINAL, original)
    return chosen
