"""Closures that optimizers are given: code of the training loop, not of the optimizer.

L-BFGS runs its whole step in one, and Lightning all of `training_step`.
"""

import inspect
from collections.abc import Callable
from threading import get_ident
from typing import Any

from traceml.capture.session import Session
from traceml.capture.slots import PASS
from traceml.capture.wrap import Failed, Function, around, hide_frame
from traceml.schema import catalog as c


def with_closure(original: Function, session: Session, failed: Failed, outer: Callable[[], int]) -> Function:
    """`step` of an optimizer. While it calls its closure, we are at `outer()`: where we were before."""
    switch = session.switch
    waits = {slot: slot for slot in range(c.FIRST_WAIT, c.RECORDED_SLOTS)}
    first_start = 0  # of the optimizer's step, for our own cost: the calls in the closure have their own

    def enter(_args: Any, _kwargs: Any) -> int:
        nonlocal first_start
        if switch.current != c.OPTIMIZER or get_ident() != switch.thread:
            return PASS
        first_start = switch.first_start
        switch.return_to(outer())
        session.closures += 1
        return c.OPTIMIZER

    def leave(_outer: int) -> int:
        session.closures -= 1
        entered = switch.enter_compute(c.OPTIMIZER)
        switch.first_start = first_start
        return entered

    comes_second = _parameter_names(original)[1:2] == ["closure"]  # or an argument of its own, as a model

    def step(*args: Any, **kwargs: Any) -> Any:
        is_second = len(args) > 1 and comes_second
        given = args[1] if is_second else kwargs.get("closure")
        try:
            if not callable(given):
                return original(*args, **kwargs)
            closure = around(given, switch, enter, waits, failed, leave)
            if is_second:
                return original(args[0], closure, *args[2:], **kwargs)
            return original(*args, **{**kwargs, "closure": closure})
        except BaseException as problem:
            hide_frame(problem)
            raise

    return step


def _parameter_names(function: Function) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # one in C tells nothing
        return []
