"""The general wrapper: a call that is one phase. Leaves no frame of ours in a traceback."""

from __future__ import annotations

import functools
from collections.abc import Callable
from threading import get_ident
from typing import Any, Final

from traceml.capture.switch import Switch
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
    is_compiling: Callable[[], bool] = lambda: False,
    done: Callable[[int, int], None] | None = None,
) -> Callable[..., Any]:
    """`original`, charged to `slot` when the training thread calls it outside any other phase.

    `is_compiling` comes first in the test: inside torch.compile it is a constant, so that the compiler sees
    nothing of ours. `done(began, ended)` is told of each completed call.
    """
    enter = switch.enter_compute if slot in (c.FORWARD, c.BACKWARD, c.OPTIMIZER) else switch.enter

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if is_compiling() or switch.current < c.FIRST_USER or get_ident() != switch.thread:
            return original(*args, **kwargs)
        outer = enter(slot)
        began = switch.since
        try:
            result = original(*args, **kwargs)
        except BaseException as problem:
            switch.leave(outer)
            hide_frame(problem)
            raise
        ended = switch.leave(outer)
        if done is not None:
            done(began, ended)
        return result

    setattr(wrapper, ORIGINAL, original)
    return wrapper
