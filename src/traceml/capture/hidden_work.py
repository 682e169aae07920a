"""Work that torch's own calls do not show, found by looking at what runs in the first steps.

Transforms of `torch.func` and autograd functions around modules; modules with a `__call__` of their own;
optimizers around other optimizers; updates of parameters that no optimizer makes.
"""

import inspect
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from threading import get_ident
from types import FrameType, FunctionType
from typing import Any, Final

from traceml.capture.inputs import first_array
from traceml.capture.session import Session
from traceml.capture.slots import PASS, TRANSFORM, is_wait
from traceml.capture.wrap import ORIGINAL, Function, around, passes, replaces, seen_through
from traceml.capture.wrappers import failure_of, wrap_module_call
from traceml.errors import failsafe
from traceml.schema import catalog as c

FUNCTION_TRIES: Final = 256
MOST_FRAMES: Final = 64
OUTER_TRIES: Final = 8
MOST_OUTER_FRAMES: Final = 8


def wrap_transform(original: Function, session: Session) -> Function:
    """`vmap`, `grad` and the like: passes inside keep their own phase; what is around them is forward."""
    return _forward_work(original, session, TRANSFORM)


def wrap_apply(original: Any, session: Session) -> Any:
    """`Function.apply` runs `forward` without gradients, but a backward pass follows: it is forward work."""
    return classmethod(_forward_work(original.__func__, session, c.FORWARD))


def _forward_work(original: Function, session: Session, slot: int) -> Function:
    switch, torch = session.switch, session.torch
    is_compiling, grad_enabled = torch.compiler.is_dynamo_compiling, torch.is_grad_enabled
    enter = failsafe("forward detection", PASS, session.off)(session.enter_with_data)
    failed = failure_of(session)

    @replaces(original)
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
            passes(problem, switch, before, {slot: c.FORWARD}, failed)
            raise
        return result

    return work


def _data(args: tuple[Any, ...]) -> Any:
    """The last array that needs no gradient: parameters come first, or need one."""
    for value in reversed(args):
        found = _data(value) if isinstance(value, tuple) else first_array(value)
        if found is not None and not getattr(found, "requires_grad", False):
            return found
    return None


def function_watch(torch: Any, found: Callable[[], None]) -> Callable[[], None]:
    """Looks whether an autograd function calls modules. Few do; `apply` is wrapped only then."""
    code, tries = torch.autograd.Function.apply.__func__.__code__, FUNCTION_TRIES

    def look() -> None:
        """A module is called without gradients, by the long way: so in the first steps."""
        nonlocal tries
        frame: FrameType | None = sys._getframe(1) if tries else None
        tries = max(tries - 1, 0)
        for _ in range(MOST_FRAMES):
            if frame is None:
                return
            if frame.f_code is code:
                tries = 0
                found()
                return
            frame = frame.f_back

    return look


def wrap_own_calls(session: Session, base: Any) -> None:
    """Modules whose class has a `__call__` of its own, which never reaches that of torch: gpytorch's."""
    for cls in base.__subclasses__():
        original = vars(cls).get("__call__")
        is_torchs = cls.__module__.partition(".")[0] == "torch"  # those call `Module.__call__`
        if isinstance(original, FunctionType) and not is_torchs and not hasattr(original, ORIGINAL):
            inner = wrap_module_call(original, session)
            cls.__call__ = seen_through(original, inner, session.torch.compiler.is_dynamo_compiling)
            session.patched.append((cls, "__call__", original))
        wrap_own_calls(session, cls)


class OuterOptimizers:
    """Optimizers around another one, which PyTorch does not prepare because they never call its `__init__`.

    They are found by their frame on the stack when an inner optimizer has stepped. What they do before and
    after the inner step (clipping, noise, averaging) is optimizer work. A step ends only if the inner
    optimizer has stepped: the outer one may skip that, as with accumulation.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._base, self._scaler = session.torch.optim.Optimizer, session.torch.amp.GradScaler
        self._is_inside = False  # a step of an outer one is running, and in it this one has stepped:
        self._inner: Any = None
        self._tries, self._is_hooked = OUTER_TRIES, False

    def look(self, stepped: Any) -> None:
        """This optimizer has stepped: wrap the class of the optimizer that called it, if there is one."""
        if not self._tries:
            return
        self._tries -= 1
        frame: FrameType | None = sys._getframe(1) if sys.gettrace() is None else None
        for _ in range(MOST_OUTER_FRAMES):
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
            is_step = not name.startswith("_") and (name == "step" or not hasattr(self._base, name))
            if isinstance(method, FunctionType) and is_step and not hasattr(method, ORIGINAL):
                setattr(cls, name, self._wrapped(method))
                self._session.patched.append((cls, name, method))

    def _note_inner(self, optimizer: Any, *_: Any) -> None:
        if self._is_inside and get_ident() == self._session.switch.thread:
            self._inner = optimizer

    def _wrapped(self, original: Function) -> Function:
        session, switch = self._session, self._session.switch
        stepped = failsafe("end of a step", None, session.off)(session.optimizer_stepped)
        note_failure = failure_of(session)

        def enter(_args: Any, _kwargs: Any) -> int:
            outer = switch.enter_compute(c.OPTIMIZER)
            self._is_inside = self._is_inside or outer != PASS
            return outer

        def failed(slot: int, problem: BaseException) -> None:
            self._inner, self._is_inside = None, False
            note_failure(slot, problem)

        def done(*_: Any) -> None:
            inner, self._inner, self._is_inside = self._inner, None, False
            if inner is not None and not switch.ends_step(inner):
                stepped(inner, switch.since)

        step = around(original, switch, enter, {c.OPTIMIZER: c.OPTIMIZER}, failed, done=done)
        return seen_through(original, step, session.torch.compiler.is_dynamo_compiling)


def _first_argument(frame: FrameType) -> Any:
    """`self`, as a rule."""
    names, variables = frame.f_code.co_varnames, frame.f_locals
    first = variables.get(names[0]) if names else None
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and sys.version_info < (3, 13):
        variables.clear()  # a copy that the frame would keep, and the user's objects with it
    return first[0] if isinstance(first, tuple) and first else first


class ParameterWalks:
    """Updates by hand: walks over parameters and buffers that began in the running gap and have not ended.

    Two networks walked over in step are an exponential average, a target network or a copy. Where no
    optimizer steps, a walk after the backward pass is the update itself. Any other walk (logging, counting)
    stays `wait`, and one in which autograd records operations is a part of the loss.
    """

    def __init__(self, session: Session) -> None:
        self._session, self._switch = session, session.switch
        self._gap = (0, 0)
        self._open: list[int] = []  # ids of modules

    def watched(self, module: int, members: Iterator[Any]) -> Iterator[Any]:
        """The members of a module with this id, and a look at what was done with them after the last one."""
        switch = self._switch
        gap = (switch.step, switch.switches)
        if gap != self._gap:
            self._gap = gap
            self._open.clear()
        self._open.append(module)
        return chain(members, self._ended(module, switch.clock(), self._nodes()))

    def _nodes(self) -> int:
        return self._switch.count_nodes() if self._switch.count_nodes is not None else 0

    def _ended(self, module: int, began: int, nodes: int) -> Iterator[Any]:
        switch, place = self._switch, self._switch.current
        is_same_gap = (switch.step, switch.switches) == self._gap and get_ident() == switch.thread
        if not is_same_gap or not is_wait(place) or module not in self._open:
            return
        at = self._open.index(module)
        others = set(self._open[at + 1 :]) - {module}
        del self._open[at:]
        by_hand = switch.backwards > 0 and not self._session.has_optimizer
        if (others or by_hand) and self._nodes() == nodes:
            self._session.updated_by_hand |= by_hand
            self._charge(began, c.WAIT_START if by_hand and place == c.WAIT_BACKWARD else place)
        yield from ()

    @failsafe("timing an update by hand", None)
    def _charge(self, began: int, place: int) -> None:
        """The walk was optimizer work; after it, we are in this place."""
        self._switch.flush(max(began, self._switch.since))  # a walk inside this one may have been charged
        self._switch.current = c.OPTIMIZER
        self._switch.flush(self._switch.clock())
        self._switch.current = place


def wrap_members(original: Any, session: Session) -> Any:
    """`Module._named_members`, from which all iterators over parameters and buffers come."""
    switch, is_compiling = session.switch, session.torch.compiler.is_dynamo_compiling
    watched = ParameterWalks(session).watched

    @replaces(original)
    def _named_members(self: Any, *args: Any, **kwargs: Any) -> Any:
        members = original(self, *args, **kwargs)
        if is_compiling() or switch.current < c.FIRST_WAIT or get_ident() != switch.thread:
            return members
        return watched(id(self), members)

    return _named_members
