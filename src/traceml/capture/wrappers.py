"""How each kind of call is timed: forward, backward, batches, optimizer steps, exchanges, copies, saves."""

import sys
from collections.abc import Callable
from threading import get_ident
from typing import Any, Final

from traceml.capture import wrap
from traceml.capture.closures import with_closure
from traceml.capture.session import Session
from traceml.capture.slots import PASS, PENDING_EVAL, PENDING_FETCH, PENDING_NO_GRAD
from traceml.capture.switch import c_module
from traceml.capture.wrap import Failed, Function, around, passes, replaces, seam, seen_through, timed
from traceml.errors import failsafe
from traceml.schema import catalog as c

Wrap = Callable[[Function, Session], Function]
FORWARD_SLOTS: Final = {
    c.FORWARD: c.FORWARD,
    c.NO_GRAD: c.NO_GRAD,
    c.VALIDATION: c.VALIDATION,
    PENDING_EVAL: c.FORWARD,
    PENDING_NO_GRAD: c.NO_GRAD,
}
"""The phases that a module call may turn out to be, and the one that is reported if it fails."""


def failure_of(session: Session) -> Failed:
    """The function that is called when an exception has left a phase."""
    return failsafe("noting an exception", None)(session.phase_failed)


def phase(slot: int, never_compiled: bool = False) -> Wrap:
    """A call that is a phase. If torch.compile skips the original anyway, no function that it can trace
    through is needed."""

    def wrap_it(original: Function, session: Session) -> Function:
        inner = timed(original, session.switch, slot, failure_of(session))
        if never_compiled and c_module is not None:
            return inner
        return seen_through(original, inner, session.torch.compiler.is_dynamo_compiling)

    return wrap_it


def wrap_save(original: Function, session: Session) -> Function:
    """A checkpoint is a phase and an event."""

    @failsafe("checkpoint event", None)
    def done(_args: Any, _kwargs: Any, _result: Any, began: int) -> None:
        session.events.add("checkpoint", session.step + 1, began, session.switch.since - began)

    inner = timed(original, session.switch, c.CHECKPOINT, failure_of(session), done)
    return seen_through(original, inner, session.torch.compiler.is_dynamo_compiling)


def wrap_module_call(original: Function, session: Session) -> Function:
    """`Module.__call__`: the outermost one is the forward pass; inside a phase it costs next to nothing."""
    switch, grad_enabled = session.switch, session.torch.is_grad_enabled
    is_compiling = session.torch.compiler.is_dynamo_compiling
    enter_doubtful = failsafe("forward detection", PASS, session.off)(session.enter_forward)
    failed = failure_of(session)

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(self, *args, **kwargs)
        before = switch.current
        try:
            first = switch.look_first and not switch.forwards
            if switch.attention or first or not (grad_enabled() and getattr(self, "training", True)):
                outer = enter_doubtful(self, args, kwargs)
            else:
                outer = switch.enter_compute(c.FORWARD)
            result = original(self, *args, **kwargs)
            if outer != PASS:
                switch.leave(outer)
        except BaseException as problem:
            passes(problem, switch, before, FORWARD_SLOTS, failed)
            raise
        return result

    return seam(wrap.FORWARD, c.FORWARD, switch, original, __call__, failed, grad_enabled)


def tell_compiler(module_class: Any) -> None:
    """torch.compile remembers the plain `Module.__call__` and skips exactly that one.

    While ours is in its place, it remembers ours, so that the compiler skips it just the same: it neither
    traces it nor depends on it.
    """
    for name in ("torch._dynamo.utils", "torch._dynamo.variables.nn_module"):
        module = sys.modules.get(name)
        if hasattr(module, "unpatched_nn_module_call"):
            module.unpatched_nn_module_call = module_class.__call__  # type: ignore[union-attr]


def wrap_backward(original: Function, session: Session) -> Function:
    """Where `backward()` and `autograd.grad` run the engine: gradient work, and the sign of training."""
    switch, failed = session.switch, failure_of(session)
    begins = failsafe("start of recording", None, session.off)(session.backward_begins)
    ended = failsafe("end of a step", None, session.off)(session.backward_ended)
    adopts = failsafe("following training to another thread", False)(session.adopt_thread)

    def enter(args: Any, _kwargs: Any) -> int:
        outer = switch.enter_compute(c.BACKWARD)
        if outer == PASS and adopts():
            outer = switch.enter_compute(c.BACKWARD)
        if outer != PASS and switch.attention:
            tensors = args[0] if args else None
            begins(tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors)
        return outer

    def done(*_: Any) -> None:
        if session.end_after_backward or not session.has_optimizer:
            ended()

    slots = {c.BACKWARD: c.BACKWARD, c.SYNC: c.BACKWARD}
    twin = around(original, switch, enter, slots, failed, done=done)
    return seam(wrap.BACKWARD, c.BACKWARD, switch, original, twin, failed, ended)


def wrap_next(original: Function, session: Session) -> Function:
    """`__next__` of PyTorch's loader iterators: the training thread waits for a batch."""
    switch, failed = session.switch, failure_of(session)
    begins = failsafe("loader detection", c.INPUT, session.off)(session.fetch_begins)
    stopped = failsafe("loader detection", None, session.off)(session.fetch_stopped)

    @failsafe("counting the samples of a batch", None)
    def fetched(batch: Any, is_open: bool = False) -> None:
        session.inputs.fetched(batch, is_open)

    def __next__(self: Any) -> Any:
        if switch.current < c.FIRST_USER or get_ident() != switch.thread:
            return original(self)
        before, role = switch.current, PENDING_FETCH
        try:
            role = begins(self)
            before = switch.current
            outer = switch.enter(role) if role != c.VALIDATION else switch.enter_validation()
            batch = original(self)
            if outer != PASS:
                switch.leave(outer)
        except BaseException as problem:
            if switch.current == role != before and get_ident() == switch.thread:
                switch.return_to(before)  # without a batch we are still where we were
            if isinstance(problem, StopIteration):
                stopped(self)
            else:
                failed(c.VALIDATION if role == c.VALIDATION else c.INPUT, problem)
            wrap.hide_frame(problem)
            raise
        if role != c.VALIDATION:
            fetched(batch, role == PENDING_FETCH)
        return batch

    if c_module is not None:
        tensor = session.torch.Tensor
        c_module.tensors_are(tensor, tensor.__base__)
    return seam(wrap.FETCH, c.INPUT, switch, original, __next__, failed, fetched)


def wrap_iter(original: Function, session: Session) -> Function:
    """`DataLoader.__iter__`: starts the workers, once per epoch. It returns what PyTorch returns."""
    switch = session.switch
    starts = failsafe("loader detection", None, session.off)(session.loader_starts)

    def enter(_args: Any, _kwargs: Any) -> int:
        if get_ident() != switch.thread:
            session.inputs.read_elsewhere = True
            return PASS
        if switch.current < c.FIRST_USER:
            return PASS
        starts()
        is_training = session.torch.is_grad_enabled()
        return switch.enter_inside(PENDING_FETCH) if is_training else switch.enter_validation()

    @failsafe("loader detection", None, session.off)
    def done(_args: Any, _kwargs: Any, iterator: Any, began: int) -> None:
        if hasattr(iterator, "_num_workers"):  # PyTorch's own; a subclass may return any iterator
            session.inputs.loader_started(iterator, began, switch.since, session.stepping)

    slots = {PENDING_FETCH: c.INPUT, c.VALIDATION: c.VALIDATION}
    return replaces(original)(around(original, switch, enter, slots, wrap.nothing, done=done))


def wrap_optimizer_step(original: Function, session: Session, optimizer_at: int = 0) -> Function:
    """`step` of an optimizer class, or of a GradScaler, whose argument is the optimizer.

    If the scaler skips the optimizer, the training step is over as well. An optimizer's `step` is in C
    without a Python frame, until something is compiled (see `wrap_compiler`), or if it gets a closure.
    """
    switch, failed = session.switch, failure_of(session)
    stepped = failsafe("end of a step", None, session.off)(session.optimizer_stepped)

    def done(args: Any, kwargs: Any, _result: Any, _began: int) -> None:
        optimizer = args[optimizer_at] if len(args) > optimizer_at else kwargs.get("optimizer")
        if not switch.ends_step(optimizer):
            stepped(optimizer, switch.since)

    outer = c.WAIT_START

    def enter(_args: Any, _kwargs: Any) -> int:
        nonlocal outer
        found = switch.enter_optimizer()
        outer = outer if found == PASS else found
        return found

    slots = {c.OPTIMIZER: c.OPTIMIZER}
    steps = original if optimizer_at else with_closure(original, session, failed, lambda: outer)
    inner = around(steps, switch, enter, slots, failed, done=done)
    if c_module is not None:
        inner = seam(wrap.STEP, c.OPTIMIZER, switch, original, optimizer_at or inner, failed, stepped)
        if optimizer_at == 0 and not session.compiles:
            return inner
    return seen_through(original, inner, session.torch.compiler.is_dynamo_compiling)


def wrap_compiler(original: Function, session: Session) -> Function:
    """What torch.compile calls before it looks at any code: from here on it must see through `step`."""

    @failsafe("preparing for torch.compile", None)
    def prepare() -> None:
        session.compiles = True
        for owner, name, _ in session.patched:
            step = vars(owner).get(name)
            if name == "step" and c_module is not None and isinstance(step, c_module.Seam):
                original = getattr(step, wrap.ORIGINAL)
                setattr(owner, name, seen_through(original, step, session.torch.compiler.is_dynamo_compiling))

    @replaces(original)
    def patch() -> Any:
        if not session.compiles:
            prepare()
        return original()

    return patch


def wrap_patch_step_function(original: Function, session: Session) -> Function:
    """Where PyTorch prepares an optimizer's class when one is made: we do the same, once per class."""

    @failsafe("optimizer detection", None, session.off)
    def made(optimizer: Any) -> None:
        wrap_optimizer_class(type(optimizer), session)
        if get_ident() == session.switch.thread:
            # The leader's next step must not take the fast path: it decides whether this one replaces it.
            session.leader.made(optimizer)
            session.switch.leader = 0

    @replaces(original)
    def _patch_step_function(self: Any) -> None:
        original(self)
        made(self)

    return _patch_step_function


def wrap_optimizer_class(cls: Any, session: Session) -> None:
    """Wrap the `step` that this optimizer class has, unless that is done."""
    step = cls.step
    if not hasattr(step, wrap.ORIGINAL):
        wrapped = wrap_optimizer_step(step, session)
        wrapped.hooked = True  # type: ignore[attr-defined]  # PyTorch's own mark: do not wrap it again
        session.patched.append((cls, "step", vars(cls).get("step")))
        cls.step = wrapped


def wrap_copy_to_device(original: Function, session: Session) -> Function:
    """`Tensor.to` and friends: host data going to an accelerator. Parameters and casts pass."""
    switch, is_compiling = session.switch, session.torch.compiler.is_dynamo_compiling
    parameter = session.torch.nn.Parameter

    @replaces(original)
    def copy(self: Any, *args: Any, **kwargs: Any) -> Any:
        if (
            is_compiling()
            or session.device is None
            or get_ident() != switch.thread
            or switch.current in (c.H2D, c.VALIDATION, c.CHECKPOINT)
            or isinstance(self, parameter)
            or not _goes_to_device(self, original.__name__, args, kwargs, session.device.kind)
        ):
            return original(self, *args, **kwargs)
        before = switch.current
        try:
            outer = switch.enter_inside(c.H2D)
            result = original(self, *args, **kwargs)
            switch.leave(outer)
        except BaseException as problem:
            passes(problem, switch, before, {c.H2D: c.H2D}, wrap.nothing)
            raise
        return result

    return copy


def _goes_to_device(
    tensor: Any, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], kind: str
) -> bool:
    if method == "copy_":  # the source is the argument
        source = args[0] if args else kwargs.get("src", kwargs.get("other"))
        return tensor.device.type == kind and getattr(source, "is_cpu", False)
    if not tensor.is_cpu:
        return False
    if method == kind:  # tensor.cuda()
        return True
    target = kwargs.get("device", args[0] if args else None)
    target = getattr(target, "device", target)  # another tensor
    target = getattr(target, "type", target)  # a device
    return isinstance(target, str) and target.split(":")[0] == kind


def wrap_ddp_init(original: Function, session: Session) -> Function:
    """A DDP model exchanges gradients inside backward: find where its own work ends."""
    # Looked up late: a forked process has a watch of its own.
    watch = failsafe("watching gradients", None)(lambda model: session.gradients.watch(model))

    @replaces(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        watch(self)

    return __init__


def wrap_exchange(original: Function, session: Session) -> Function:
    """Waiting for other ranks is `sync` wherever it happens, except in validation and checkpoints."""
    switch, failed = session.switch, failure_of(session)

    def enter(_args: Any, _kwargs: Any) -> int:
        is_known = switch.current in (c.SYNC, c.VALIDATION, c.CHECKPOINT)
        return PASS if is_known or get_ident() != switch.thread else switch.enter_inside(c.SYNC)

    twin = around(original, switch, enter, {c.SYNC: c.SYNC}, failed, switch.return_to)
    return seam(wrap.EXCHANGE, c.SYNC, switch, original, twin, failed, wrap.nothing)


def wrap_compiled_exchange(original: Function, session: Session) -> Function:
    """An exchange that torch.compile puts into its graphs: the compiler must be able to look through."""
    waiting = wrap_exchange(original, session)
    return seen_through(original, waiting, session.torch.compiler.is_dynamo_compiling)


def wrap_future_wait(original: Function, session: Session) -> Function:
    """A future is waited for: that is `sync` in a process that exchanges with others, else what it was."""
    waiting = wrap_exchange(original, session)
    distributed = session.torch.distributed

    @replaces(original)
    def wait(*args: Any, **kwargs: Any) -> Any:
        if distributed.is_available() and distributed.is_initialized():
            return waiting(*args, **kwargs)
        return original(*args, **kwargs)

    return wait
