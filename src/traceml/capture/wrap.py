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

from traceml.capture.slots import PASS
from traceml.capture.switch import Switch, c_module
from traceml.schema import catalog as c

Function = Callable[..., Any]
Failed = Callable[[int, BaseException], None]
Done = Callable[[Any, Any, Any, int], None]
Slots = dict[int, int]
ORIGINAL: Final = "_traceml_original"
"""Attribute of a wrapper that holds what it wraps: how patches are recognised and taken out."""
FUNCTION_ATTRIBUTES: Final = ("__code__", "__defaults__", "__kwdefaults__", "__globals__", "__closure__")
"""What torch.compile and inspect ask of a function."""
FORWARD, BACKWARD, FETCH, EXCHANGE, PHASE, STEP = range(6)
"""The kinds of seams, in the order of `_switch.c`."""


def nothing(*_: Any) -> None:
    """For what has nothing more to do."""


def replaces(original: Function) -> Callable[[Function], Function]:
    """The decorator of a wrapper: it looks like `original`, and says what it wraps."""

    def mark(wrapper: Function) -> Function:
        functools.update_wrapper(wrapper, original)
        setattr(wrapper, ORIGINAL, original)
        return wrapper

    return mark


def hide_frame(problem: BaseException) -> None:
    """Drop the innermost frame, ours, from a traceback that is passing through."""
    if problem.__traceback__ is not None:
        problem.__traceback__ = problem.__traceback__.tb_next


def passes(
    problem: BaseException, switch: Switch, before: int, slots: Slots, failed: Failed, leave: Any = None
) -> None:
    """An exception passes our frame: leave the phase, if it is in `slots`; it failed as what stands there."""
    slot = switch.current
    if slot in slots and slot != before and get_ident() == switch.thread:
        (leave or switch.leave)(before)
        failed(slots[slot], problem)
    hide_frame(problem)


def seam(
    kind: int, slot: int, switch: Switch, original: Function, twin: Any, failed: Failed, extra: Function
) -> Function:
    """`original` timed as `slot`: in C if that is there, else by `twin`."""
    if c_module is None:
        made = _through_layers(twin, switch, kind) if deep_is_asked() else twin
    else:
        made = c_module.Seam(original, twin, failed, extra, switch, kind, slot)
        for name in FUNCTION_ATTRIBUTES:
            if hasattr(original, name):
                setattr(made, name, getattr(original, name))
    return replaces(original)(made)


def deep_is_asked() -> bool:
    """Whether `traceml deep` started us, or TRACEML_DEEP is set for a script that calls traceml.init()."""
    return os.environ.get("TRACEML_DEEP", "").lower() not in ("", "0", "false", "no", "off")


def _through_layers(twin: Function, switch: Switch, kind: int) -> Function:
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


def seen_through(original: Function, inner: Function, is_compiling: Callable[[], bool]) -> Function:
    """`inner` in a plain function, which torch.compile looks through and pickle finds by name.

    Inside torch.compile `is_compiling` is a constant, so that the compiler sees nothing of ours. The function
    names nothing of this module: cloudpickle may send it by value to processes that do not have TraceML.
    """

    @replaces(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(*args, **kwargs)
        try:
            return inner(*args, **kwargs)
        except BaseException as problem:
            if problem.__traceback__ is not None:
                problem.__traceback__ = problem.__traceback__.tb_next
            raise

    return wrapper


def around(
    original: Function,
    switch: Switch,
    enter: Callable[[Any, Any], int],
    slots: Slots,
    failed: Failed,
    leave: Callable[[int], int] | None = None,
    done: Done | None = None,
) -> Function:
    """`original` in a phase. `enter(args, kwargs)` begins it, or answers PASS if it is not to be timed.

    `slots` is that of `passes`. `done(args, kwargs, result, began)` is called after each completed call;
    `switch.since` is its end.
    """
    leave = switch.leave if leave is None else leave

    def call(*args: Any, **kwargs: Any) -> Any:
        before = switch.current
        try:
            outer = enter(args, kwargs)
            began = switch.since
            result = original(*args, **kwargs)
            if outer == PASS:
                return result
            leave(outer)
        except BaseException as problem:
            passes(problem, switch, before, slots, failed, leave)
            raise
        if done is not None:
            done(args, kwargs, result, began)
        return result

    return call


def timed(
    original: Function, switch: Switch, slot: int, failed: Failed, done: Done | None = None
) -> Function:
    """`original`, charged to `slot` when the training thread calls it outside any other phase.

    A checkpoint may be saved inside validation. `done` is that of `around`.
    """
    if done is None and c_module is not None:
        return seam(PHASE, slot, switch, original, None, failed, nothing)
    usual = switch.enter_compute if slot == c.OPTIMIZER else switch.enter

    def enter(_args: Any, _kwargs: Any) -> int:
        saves = slot == c.CHECKPOINT and switch.current == c.VALIDATION and get_ident() == switch.thread
        return switch.enter_inside(slot) if saves else usual(slot)

    return around(original, switch, enter, {slot: slot}, failed, done=done)
