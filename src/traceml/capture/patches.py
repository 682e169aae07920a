"""What is wrapped, as a table: module, attribute, how. Each row goes in once its module is imported."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from threading import get_ident
from typing import Any

from traceml.capture.loader import wrap_iter, wrap_next
from traceml.capture.session import Session
from traceml.capture.switch import PASS
from traceml.capture.wrap import ORIGINAL, hide_frame, timed
from traceml.errors import failsafe
from traceml.schema import catalog as c

Wrap = Callable[[Callable[..., Any], Session], Callable[..., Any]]


def _phase(slot: int, may_compile: bool = True) -> Wrap:
    def wrap(original: Callable[..., Any], session: Session) -> Callable[..., Any]:
        is_compiling = session.torch.compiler.is_dynamo_compiling if may_compile else None
        return timed(original, session.switch, slot, is_compiling)

    return wrap


def wrap_save(original: Callable[..., Any], session: Session) -> Callable[..., Any]:
    """A checkpoint is a phase and an event."""

    def done(began: int, ended: int) -> None:
        session.events.add("checkpoint", session.step + 1, began, ended - began)

    done = failsafe("checkpoint event", None, session.off)(done)
    return timed(original, session.switch, c.CHECKPOINT, done=done)


def wrap_backward(original: Callable[..., Any], session: Session) -> Callable[..., Any]:
    """`torch.autograd.backward` and `grad`: gradient work, and the sign that this process trains."""
    switch, is_compiling = session.switch, session.torch.compiler.is_dynamo_compiling
    enter_compute, leave = switch.enter_compute, switch.leave
    begins = failsafe("start of recording", None, session.off)(session.backward_begins)
    ended = failsafe("end of a step", None, session.off)(session.backward_ended)

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(*args, **kwargs)
        outer = enter_compute(c.BACKWARD)
        if outer == PASS:
            if not session.adopt_thread():
                return original(*args, **kwargs)
            outer = enter_compute(c.BACKWARD)
        if session.attention:
            begins(_first_tensor(args, kwargs))
        try:
            result = original(*args, **kwargs)
        except BaseException as problem:
            leave(outer)
            session.phase_failed(c.BACKWARD, problem)
            hide_frame(problem)
            raise
        now = leave(outer)
        if session.end_after_backward:
            ended(now)
        return result

    setattr(backward, ORIGINAL, original)
    return backward


def _first_tensor(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensors = args[0] if args else kwargs.get("tensors", kwargs.get("outputs"))
    return tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors


def wrap_optimizer_step(
    original: Callable[..., Any], session: Session, optimizer_at: int = 0
) -> Callable[..., Any]:
    """`step` of an optimizer class, or of a GradScaler (then the optimizer is its argument)."""
    switch, is_compiling = session.switch, session.torch.compiler.is_dynamo_compiling
    enter_optimizer, leave, leave_step = switch.enter_optimizer, switch.leave, switch.leave_step
    stepped = failsafe("end of a step", None, session.off)(session.optimizer_stepped)

    @functools.wraps(original)
    def step(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(*args, **kwargs)
        outer = enter_optimizer()
        if outer == PASS:
            return original(*args, **kwargs)
        try:
            if len(args) > 1 and optimizer_at == 0 and callable(args[1]):
                args = (args[0], _closure(args[1], session), *args[2:])
            elif kwargs and callable(kwargs.get("closure")):
                kwargs["closure"] = _closure(kwargs["closure"], session)
            result = original(*args, **kwargs)
        except BaseException as problem:
            leave(outer)
            session.phase_failed(c.OPTIMIZER, problem)
            hide_frame(problem)
            raise
        optimizer = args[optimizer_at] if len(args) > optimizer_at else kwargs.get("optimizer")
        now = leave_step(outer, optimizer)
        if now:
            stepped(optimizer, now)
        return result

    setattr(step, ORIGINAL, original)
    return step


def _closure(closure: Callable[..., Any], session: Session) -> Callable[..., Any]:
    """A closure is the training code again: what no phase of its own claims is not the optimizer."""
    switch = session.switch

    @functools.wraps(closure, updated=())
    def run(*args: Any, **kwargs: Any) -> Any:
        outer = switch.enter_inside(c.WAIT_INPUT)
        try:
            return closure(*args, **kwargs)
        finally:
            switch.leave(outer)

    return run


def wrap_patch_step_function(original: Callable[..., Any], session: Session) -> Callable[..., Any]:
    """Where PyTorch prepares an optimizer class for its first instance: we do the same, once a class."""
    wrap_class = failsafe("optimizer detection", None, session.off)(wrap_optimizer_class)

    @functools.wraps(original)
    def _patch_step_function(self: Any) -> None:
        original(self)
        wrap_class(type(self), session)

    setattr(_patch_step_function, ORIGINAL, original)
    return _patch_step_function


def wrap_optimizer_class(cls: Any, session: Session) -> None:
    """Wrap the `step` that this optimizer class has, unless that is done."""
    step = cls.step
    if not hasattr(step, ORIGINAL):
        wrapped = wrap_optimizer_step(step, session)
        wrapped.hooked = True  # type: ignore[attr-defined]  # PyTorch's own mark: do not wrap it again
        cls.step = wrapped
        session.wrapped_optimizers.append((cls, step))


def wrap_copy_to_device(original: Callable[..., Any], session: Session) -> Callable[..., Any]:
    """`Tensor.to` and friends: host data going to an accelerator. Parameters and casts pass."""
    switch, is_compiling = session.switch, session.torch.compiler.is_dynamo_compiling
    parameter = session.torch.nn.Parameter

    @functools.wraps(original)
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
        outer = switch.enter_inside(c.H2D)
        try:
            return original(self, *args, **kwargs)
        except BaseException as problem:
            hide_frame(problem)
            raise
        finally:
            switch.leave(outer)

    setattr(copy, ORIGINAL, original)
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


def wrap_ddp_init(original: Callable[..., Any], session: Session) -> Callable[..., Any]:
    """A DDP model exchanges gradients inside backward: find where its own work ends."""

    def made(model: Any) -> None:
        session.gradients.watch(model)
        inner = type(model.module)  # what a rank evaluates on its own
        if not inner.__module__.startswith("torch.nn."):
            session.outermost.add(inner)

    made = failsafe("watching gradients", None)(made)

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        made(self)

    setattr(__init__, ORIGINAL, original)
    return __init__


def wrap_collective(original: Callable[..., Any], session: Session) -> Callable[..., Any]:
    """An explicit collective is `sync` wherever it is called, but in validation and checkpoints."""
    switch, is_compiling = session.switch, session.torch.compiler.is_dynamo_compiling

    @functools.wraps(original)
    def collective(*args: Any, **kwargs: Any) -> Any:
        if (
            is_compiling()
            or switch.current in (c.SYNC, c.VALIDATION, c.CHECKPOINT)
            or get_ident() != switch.thread
        ):
            return original(*args, **kwargs)
        outer = switch.enter_inside(c.SYNC)
        try:
            result = original(*args, **kwargs)
        except BaseException as problem:
            switch.return_to(outer)
            session.phase_failed(c.SYNC, problem)
            hide_frame(problem)
            raise
        switch.return_to(outer)
        return result

    setattr(collective, ORIGINAL, original)
    return collective


def wrap_future_wait(original: Callable[..., Any], session: Session) -> Callable[..., Any]:
    """A future is waited for: that is `sync` in a process that exchanges with others, else what it was."""
    waiting = wrap_collective(original, session)
    distributed = session.torch.distributed

    @functools.wraps(original)
    def wait(*args: Any, **kwargs: Any) -> Any:
        if distributed.is_available() and distributed.is_initialized():
            return waiting(*args, **kwargs)
        return original(*args, **kwargs)

    setattr(wait, ORIGINAL, original)
    return wait


COLLECTIVES = (
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "monitored_barrier",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "send",
)


@dataclass(frozen=True, slots=True)
class Patch:
    """One attribute to wrap, and the phase that is measured when it is in (None: helps another)."""

    module: str
    attribute: str
    wrap: Wrap
    measures: int | None = None


def wrap_scaler_step(original: Callable[..., Any], session: Session) -> Callable[..., Any]:
    """A GradScaler may skip the optimizer's step; the training step is over all the same."""
    return wrap_optimizer_step(original, session, optimizer_at=1)


PATCHES: tuple[Patch, ...] = (
    Patch("torch.utils.data.dataloader", "_BaseDataLoaderIter.__next__", wrap_next, c.INPUT),
    Patch("torch.utils.data.dataloader", "DataLoader.__iter__", wrap_iter),
    Patch("torch.autograd", "backward", wrap_backward, c.BACKWARD),
    Patch("torch.autograd", "grad", wrap_backward),
    Patch(
        "torch.optim.optimizer",
        "Optimizer._patch_step_function",
        wrap_patch_step_function,
        c.OPTIMIZER,
    ),
    Patch("torch.optim.optimizer", "Optimizer.zero_grad", _phase(c.OPTIMIZER, may_compile=False)),
    Patch("torch.optim.lr_scheduler", "LRScheduler.step", _phase(c.OPTIMIZER)),
    Patch("torch.amp.grad_scaler", "GradScaler.step", wrap_scaler_step),
    Patch("torch.amp.grad_scaler", "GradScaler.unscale_", _phase(c.OPTIMIZER)),
    Patch("torch.amp.grad_scaler", "GradScaler.update", _phase(c.OPTIMIZER)),
    Patch("torch.nn.modules.module", "Module.zero_grad", _phase(c.OPTIMIZER)),
    Patch("torch.nn.utils", "clip_grad_norm_", _phase(c.OPTIMIZER)),
    Patch("torch.nn.utils", "clip_grad_value_", _phase(c.OPTIMIZER)),
    Patch("torch", "Tensor.to", wrap_copy_to_device, c.H2D),
    Patch("torch", "Tensor.cuda", wrap_copy_to_device),
    Patch("torch", "Tensor.copy_", wrap_copy_to_device),
    Patch("torch", "save", wrap_save, c.CHECKPOINT),
    Patch("torch.nn.parallel.distributed", "DistributedDataParallel.__init__", wrap_ddp_init, c.SYNC),
    *(
        Patch(module, name, wrap_collective)
        for module in ("torch.distributed", "torch.distributed.distributed_c10d")
        for name in COLLECTIVES
    ),
    Patch("torch._C._distributed_c10d", "Work.wait", wrap_collective),
    Patch("torch.distributed._functional_collectives", "wait_tensor", wrap_collective),
    Patch("torch.nn.parallel.distributed", "DistributedDataParallel._sync_buffers", wrap_collective),
    Patch("torch._C", "Future.wait", wrap_future_wait),
    Patch("torch.distributed.checkpoint", "save", wrap_save),
    Patch("torch.distributed.checkpoint", "async_save", wrap_save),
    Patch("safetensors.torch", "save_file", wrap_save),
    Patch("safetensors.torch", "save_model", wrap_save),
)


def put_in(patch: Patch, session: Session) -> None:
    """Wrap one attribute, once."""
    owner: Any = sys.modules[patch.module]
    *path, name = patch.attribute.split(".")
    for part in path:
        owner = getattr(owner, part)
    original = getattr(owner, name, None)
    if original is None or hasattr(original, ORIGINAL):
        return  # this version of torch does not have it, or it is wrapped already
    own = name in vars(owner)
    setattr(owner, name, patch.wrap(original, session))
    session.patched.append((owner, name, original if own else None))
    if patch.measures is not None:
        session.measured |= 1 << patch.measures


def take_out(session: Session) -> None:
    """Restore every attribute that still is our wrapper."""
    for owner, name, original in reversed(session.patched):
        if not hasattr(vars(owner).get(name), ORIGINAL):
            continue  # another tool wrapped ours: its chain stays whole
        if original is None:
            delattr(owner, name)
        else:
            setattr(owner, name, original)
    for cls, step in session.wrapped_optimizers:
        if hasattr(vars(cls).get("step"), ORIGINAL):
            cls.step = step
    session.patched.clear()
    session.wrapped_optimizers.clear()


def all_optimizer_classes(base: Any) -> list[Any]:
    """Classes whose `step` PyTorch has prepared already: optimizers made before we came."""
    found = [cls for cls in base.__subclasses__() if getattr(cls.step, "hooked", False)]
    for cls in base.__subclasses__():
        found += all_optimizer_classes(cls)
    return found
