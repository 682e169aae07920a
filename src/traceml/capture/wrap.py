"""Wrappers that leave no trace: no frame of ours in a traceback, no Python at all in the usual case.

A `Seam` (in C) times a call without a Python frame and hands over to its Python twin when something is
unusual. Where the C module is missing the twin does all the work. What users compile or pickle is wrapped by
a plain function instead, which torch.compile looks through and pickle finds by name.
"""

import functools
import os
from collections.abc import Callable
from threading import get_ident
from typing import Any, Final

from traceml.capture.c_module import c_module
from traceml.capture.slots import PASS
from traceml.capture.switch import Switch
from traceml.schema import catalog as c

ORIGINAL: Final = "_traceml_original"
"""Attribute of a wrapper that holds what it wraps: how patches are recognised and taken out."""

FUNCTION_ATTRIBUTES: Final = ("__code__", "__defaults__", "__kwdefaults__", "__globals__", "__closure__")
"""What torch.compile and inspect ask of a function."""

FORWARD, BACKWARD, FETCH, EXCHANGE, PHASE, STEP = range(6)
"""The kinds of seams, in the order of `_switch.c`."""


def hide_frame(problem: BaseException) -> None:
    """Drop the innermost frame, ours, from a traceback that is passing through."""
    if problem.__traceback__ is not None:
        problem.__traceback__ = problem.__traceback__.tb_next


def undo(switch: Switch, before: int, slot: int) -> bool:
    """An exception struck, perhaps while our own code ran: leave the phase, if it was entered."""
    if switch.current != slot or slot == before or get_ident() != switch.thread:
        return False
    switch.leave(before)
    return True


def seam(
    kind: int,
    slot: int,
    switch: Switch,
    original: Callable[..., Any],
    twin: Callable[..., Any],
    failed: Callable[[int, BaseException], None],
    extra: Callable[..., Any],
) -> Callable[..., Any]:
    """`original` timed as `slot`: in C if that is there, else by `twin`."""
    made: Callable[..., Any] = twin
    if c_module is None and deep_is_asked():
        made = _through_layers(twin, switch, kind)
    if c_module is not None:
        made = c_module.Seam(original, twin, failed, extra, switch, kind, slot)
        for name in FUNCTION_ATTRIBUTES:
            if hasattr(original, name):
                setattr(made, name, getattr(original, name))
    functools.update_wrapper(made, original)
    setattr(made, ORIGINAL, original)
    return made


def deep_is_asked() -> bool:
    """Whether `traceml deep` started us, or TRACEML_DEEP is set for a script that calls traceml.init()."""
    return os.environ.get("TRACEML_DEEP", "").lower() not in ("", "0", "false", "no", "off")


def _through_layers(twin: Callable[..., Any], switch: Switch, kind: int) -> Callable[..., Any]:
    """What `_switch.c` does in a sampled step of deep mode, for a Python without it."""
    if kind not in (FORWARD, BACKWARD):
        return twin

    def call(first: Any, *args: Any, **kwargs: Any) -> Any:
        if switch.layers is None:
            return twin(first, *args, **kwargs)
        begin, end = switch.layers[2 * kind : 2 * kind + 2]
        began, failed = begin(first), True
        try:
            result = twin(first, *args, **kwargs)
            failed = False
        finally:
            if began is not None:
                end(began, failed)
        return result

    return call


def seen_through(
    original: Callable[..., Any], inner: Callable[..., Any], is_compiling: Callable[[], bool]
) -> Callable[..., Any]:
    """`inner` in a plain function, which torch.compile looks through and pickle finds by name.

    Inside torch.compile `is_compiling` is a constant, so that the compiler sees nothing of ours.
    """

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(*args, **kwargs)
        try:
            return inner(*args, **kwargs)
        except BaseException as problem:
            hide_frame(problem)
            raise

    setattr(wrapper, ORIGINAL, original)
    return wrapper


def timed(
    original: Callable[..., Any],
    switch: Switch,
    slot: int,
    failed: Callable[[int, BaseException], None],
    done: Callable[[int, int], None] | None = None,
) -> Callable[..., Any]:
    """`original`, charged to `slot` when the training thread calls it outside any other phase.

    `done(began, ended)` is called after each completed call. A checkpoint may be saved inside validation.
    """
    enter = switch.enter_compute if slot == c.OPTIMIZER else switch.enter
    leave = switch.leave

    def timed_call(*args: Any, **kwargs: Any) -> Any:
        before = switch.current
        try:
            saves = slot == c.CHECKPOINT and before == c.VALIDATION and get_ident() == switch.thread
            outer = switch.enter_inside(slot) if saves else enter(slot)
            if outer == PASS:
                return original(*args, **kwargs)
            began = switch.since
            result = original(*args, **kwargs)
            ended = leave(outer)
        except BaseException as problem:
            if undo(switch, before, slot):
                failed(slot, problem)
            hide_frame(problem)
            raise
        if done is not None:
            done(began, ended)
        return result

    if done is not None or c_module is None:
        return timed_call
    return seam(PHASE, slot, switch, original, timed_call, failed, nothing)


def nothing(*_: Any) -> None:
    """For what has nothing more to do."""
