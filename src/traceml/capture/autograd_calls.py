"""Forward work that no module call shows: transforms of `torch.func`, and autograd functions."""

import functools
import sys
from collections.abc import Callable
from threading import get_ident
from types import FrameType
from typing import Any, Final

from traceml.capture.batch import first_array
from traceml.capture.session import Session
from traceml.capture.slots import PASS, TRANSFORM, is_wait
from traceml.capture.wrap import ORIGINAL, hide_frame, undo
from traceml.capture.wrappers import Function, failure_of
from traceml.errors import failsafe
from traceml.schema import catalog as c

TRIES: Final = 256
MOST_FRAMES: Final = 64


def wrap_transform(original: Function, session: Session) -> Function:
    """`vmap`, `grad` and the like: the passes inside are told apart, what is around them is forward."""
    return _forward_work(original, session, TRANSFORM)


def wrap_apply(original: Any, session: Session) -> Any:
    """`Function.apply` runs `forward` without gradients, but a backward pass follows: it is forward work."""
    return classmethod(_forward_work(original.__func__, session, c.FORWARD))


def _forward_work(original: Function, session: Session, slot: int) -> Function:
    switch, torch = session.switch, session.torch
    is_compiling, grad_enabled = torch.compiler.is_dynamo_compiling, torch.is_grad_enabled
    enter = failsafe("forward detection", PASS, session.off)(session.enter_with_data)
    failed = failure_of(session)

    @functools.wraps(original)
    def work(*args: Any, **kwargs: Any) -> Any:
        if (
            is_compiling()
            or not is_wait(switch.current)
            or get_ident() != switch.thread
            or not grad_enabled()
        ):
            return original(*args, **kwargs)
        before = switch.current
        try:
            outer = enter(slot, (_data(args),), {})
            result = original(*args, **kwargs)
            if outer != PASS:
                switch.leave(outer)
        except BaseException as problem:
            if undo(switch, before, slot):
                failed(c.FORWARD, problem)
            hide_frame(problem)
            raise
        return result

    setattr(work, ORIGINAL, original)
    return work


def _data(args: tuple[Any, ...]) -> Any:
    """The last array that needs no gradient: parameters come first, or need one."""
    for value in reversed(args):
        found = _data(value) if isinstance(value, tuple) else first_array(value)
        if found is not None and not getattr(found, "requires_grad", False):
            return found
    return None


class FunctionWatch:
    """Looks whether an autograd function calls modules. Few do; `apply` is wrapped only then."""

    def __init__(self, torch: Any, found: Callable[[], None]) -> None:
        self._code = torch.autograd.Function.apply.__func__.__code__
        self._found = found
        self._tries = TRIES

    def look(self) -> None:
        """A module is called without gradients, by the long way: so in the first steps."""
        if not self._tries:
            return
        self._tries -= 1
        frame: FrameType | None = sys._getframe(1)
        frames = MOST_FRAMES
        while frame is not None and frames:
            if frame.f_code is self._code:
                self._tries = 0
                self._found()
                return
            frame, frames = frame.f_back, frames - 1
