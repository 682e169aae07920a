"""Optimizers around another one, which PyTorch does not prepare because they never call `Optimizer.__init__`.

What they do before and after the inner step (clipping, noise, averaging) is optimizer work. A step ends only
if the inner optimizer has stepped: the outer one may skip that, as with accumulation.
"""

import inspect
import sys
from threading import get_ident
from types import FrameType, FunctionType
from typing import Any, Final

from traceml.capture.session import Session
from traceml.capture.slots import PASS
from traceml.capture.wrap import ORIGINAL, hide_frame, seen_through, undo
from traceml.capture.wrappers import Function, failure_of
from traceml.errors import failsafe
from traceml.schema import catalog as c

TRIES: Final = 8
MOST_FRAMES: Final = 8


class OuterOptimizers:
    """Finds them by their frame on the stack when an inner optimizer has stepped."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._base, self._scaler = session.torch.optim.Optimizer, session.torch.amp.GradScaler
        self._is_inside = False  # a step of an outer one is running, and in it this one has stepped:
        self._inner: Any = None
        self._tries, self._is_hooked = TRIES, False

    def look(self, stepped: Any) -> None:
        """This optimizer has stepped: wrap the class of the one that called it, if there is one."""
        if not self._tries:
            return
        self._tries -= 1
        frame: FrameType | None = sys._getframe(1) if sys.gettrace() is None else None
        for _ in range(MOST_FRAMES):
            outer = _first_argument(frame) if frame is not None else None
            if frame is None or isinstance(outer, self._scaler):
                return  # a scaler ends the step also if it skips the optimizer's
            if isinstance(outer, self._base) and outer is not stepped:
                self._wrap(type(outer))
            frame = frame.f_back

    def _wrap(self, cls: Any) -> None:
        """All that a script may call of it: `step`, or the parts of a step (`first_step`, `second_step`)."""
        if not self._is_hooked:
            from torch.optim.optimizer import register_optimizer_step_post_hook

            self._is_hooked = True
            register_optimizer_step_post_hook(self._note_inner)
        for name, method in list(vars(cls).items()):
            is_ours = name.startswith("_") or hasattr(method, ORIGINAL)
            if (
                isinstance(method, FunctionType)
                and not is_ours
                and (name == "step" or not hasattr(self._base, name))
            ):
                setattr(cls, name, self._wrapped(method))
                self._session.patched.append((cls, name, method))

    def _note_inner(self, optimizer: Any, *_: Any) -> None:
        if self._is_inside and get_ident() == self._session.switch.thread:
            self._inner = optimizer

    def _wrapped(self, original: Function) -> Function:
        session, switch = self._session, self._session.switch
        stepped = failsafe("end of a step", None, session.off)(session.optimizer_stepped)
        failed = failure_of(session)

        def step(*args: Any, **kwargs: Any) -> Any:
            before, now = switch.current, 0
            try:
                outer = switch.enter_compute(c.OPTIMIZER)
                if outer == PASS:
                    return original(*args, **kwargs)
                self._is_inside = True
                result = original(*args, **kwargs)
                inner, self._inner, self._is_inside = self._inner, None, False
                if inner is None:
                    switch.leave(outer)
                else:
                    now = switch.leave_step(outer, inner)
            except BaseException as problem:
                self._inner, self._is_inside = None, False
                if undo(switch, before, c.OPTIMIZER):
                    failed(c.OPTIMIZER, problem)
                hide_frame(problem)
                raise
            if now:
                stepped(inner, now)
            return result

        return seen_through(original, step, session.torch.compiler.is_dynamo_compiling)


def _first_argument(frame: FrameType) -> Any:
    """`self`, as a rule."""
    names, variables = frame.f_code.co_varnames, frame.f_locals
    first = variables.get(names[0]) if names else None
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and sys.version_info < (3, 13):
        variables.clear()  # a copy that the frame would keep, and the user's objects with it
    return first[0] if isinstance(first, tuple) and first else first
