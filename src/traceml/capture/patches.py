"""What is wrapped, as a table: where, how, what it measures. Each row goes in once its module is imported.

docs/architecture.md says for each row who can notice it and which public hook was weighed against it.
"""

import sys
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from traceml.capture import wrappers as w
from traceml.capture.hidden_work import wrap_apply, wrap_members, wrap_transform
from traceml.capture.session import Session
from traceml.capture.wrap import ORIGINAL
from traceml.schema import catalog as c


@dataclass(frozen=True, slots=True)
class Patch:
    """One attribute to wrap, and the phase that is measured when it is in (None: it helps another).

    `also` names modules that have the same function under the same name: they get the same wrapper, so that
    pickle, which looks a function up where it was defined, finds the very object that it was given.
    """

    module: str
    attribute: str
    wrap: w.Wrap
    measures: int | None = None
    also: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Where it is found."""
        return f"{self.module}.{self.attribute}"


_OPTIMIZER: Final = w.phase(c.OPTIMIZER)
_CHECKPOINT: Final = "torch.distributed.checkpoint"
PATCHES: tuple[Patch, ...] = (
    Patch("torch.nn.modules.module", "Module.__call__", w.wrap_module_call, c.FORWARD),
    Patch("torch.autograd", "_engine_run_backward", w.wrap_backward, c.BACKWARD),
    Patch("torch.utils.data.dataloader", "_BaseDataLoaderIter.__next__", w.wrap_next, c.INPUT),
    Patch("torch.utils.data.dataloader", "DataLoader.__iter__", w.wrap_iter),
    Patch("torch.optim.optimizer", "Optimizer._patch_step_function", w.wrap_patch_step_function, c.OPTIMIZER),
    Patch("torch.optim.optimizer", "Optimizer.zero_grad", w.phase(c.OPTIMIZER, never_compiled=True)),
    Patch("torch.optim.lr_scheduler", "LRScheduler.step", _OPTIMIZER),
    Patch("torch.amp.grad_scaler", "GradScaler.step", partial(w.wrap_optimizer_step, optimizer_at=1)),
    Patch("torch.amp.grad_scaler", "GradScaler.unscale_", _OPTIMIZER),
    Patch("torch.amp.grad_scaler", "GradScaler.update", _OPTIMIZER),
    Patch("torch.nn.modules.module", "Module.zero_grad", _OPTIMIZER),
    Patch("torch.nn.modules.module", "Module._named_members", wrap_members),
    Patch("torch.optim.swa_utils", "AveragedModel.update_parameters", _OPTIMIZER),
    Patch("torch.nn.utils.clip_grad", "clip_grad_norm_", _OPTIMIZER, also=("torch.nn.utils",)),
    Patch("torch.nn.utils.clip_grad", "clip_grad_value_", _OPTIMIZER, also=("torch.nn.utils",)),
    Patch("torch._dynamo.eval_frame", "TorchPatcher.patch", w.wrap_compiler),
    Patch("torch._functorch.vmap", "vmap_impl", wrap_transform, also=("torch._functorch.apis",)),
    Patch("torch._functorch.eager_transforms", "grad_and_value_impl", wrap_transform),
    Patch("torch._functorch.eager_transforms", "_vjp_with_argnums", wrap_transform),
    Patch("torch._functorch.eager_transforms", "_jvp_with_argnums", wrap_transform),
    Patch("torch.serialization", "save", w.wrap_save, c.CHECKPOINT, also=("torch",)),
    Patch("torch.nn.parallel.distributed", "DistributedDataParallel.__init__", w.wrap_ddp_init, c.SYNC),
    Patch("torch.nn.parallel.distributed", "DistributedDataParallel._sync_buffers", w.wrap_exchange),
    Patch("torch._C._distributed_c10d", "Work.wait", w.wrap_exchange),
    Patch("torch._C._distributed_c10d", "ProcessGroup.monitored_barrier", w.wrap_exchange),
    Patch("torch.distributed._functional_collectives", "wait_tensor", w.wrap_compiled_exchange),
    Patch("torch._C", "Future.wait", w.wrap_future_wait),
    Patch(f"{_CHECKPOINT}.state_dict_saver", "save", w.wrap_save, also=(_CHECKPOINT,)),
    Patch(f"{_CHECKPOINT}.state_dict_saver", "async_save", w.wrap_save, also=(_CHECKPOINT,)),
    Patch("safetensors.torch", "save_file", w.wrap_save),
    Patch("safetensors.torch", "save_model", w.wrap_save),
)
DEVICE_PATCHES: tuple[Patch, ...] = (
    Patch("torch", "Tensor.to", w.wrap_copy_to_device, c.H2D),
    Patch("torch", "Tensor.cuda", w.wrap_copy_to_device),
    Patch("torch", "Tensor.copy_", w.wrap_copy_to_device),
)
"""Only where a device is in use: torch compares these methods with its own lists."""
FUNCTION_PATCH = Patch("torch.autograd.function", "Function.apply", wrap_apply)
"""Only where an autograd function calls modules: many more are operations inside modules."""
NEW_TORCH: frozenset[str] = frozenset({"ProcessGroup.monitored_barrier", "TorchPatcher.patch"})
"""Attributes that not every build of torch has; nothing else depends on them."""


def put_in(patch: Patch, session: Session) -> None:
    """Wrap one attribute, once."""
    owner, name = _owner(patch)
    original = getattr(owner, name, None) if owner is not None else None
    if original is None:
        if patch.attribute not in NEW_TORCH:
            session.missing.append(patch.name)
        return
    if hasattr(original, ORIGINAL):
        return
    wrapper = patch.wrap(original, session)
    _replace(owner, name, wrapper, session)
    for module in patch.also:
        if getattr(sys.modules.get(module), name, None) is original:
            _replace(sys.modules[module], name, wrapper, session)
    if patch.measures is not None:
        session.measured |= 1 << patch.measures
    if patch.wrap is w.wrap_module_call:
        w.tell_compiler(owner)


def _owner(patch: Patch) -> tuple[Any, str]:
    owner: Any = sys.modules[patch.module]
    *path, name = patch.attribute.split(".")
    for part in path:
        owner = getattr(owner, part, None)
    return owner, name


def _replace(owner: Any, name: str, wrapper: Any, session: Session) -> None:
    before = vars(owner).get(name)
    setattr(owner, name, wrapper)
    session.patched.append((owner, name, before))


def take_out(session: Session) -> None:
    """Restore every attribute that still is our wrapper."""
    for owner, name, before in reversed(session.patched):
        if not hasattr(vars(owner).get(name), ORIGINAL):
            continue  # another tool wrapped ours: its chain stays whole
        if before is None:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
    session.patched.clear()
    w.tell_compiler(session.torch.nn.Module)


def wrap_known_optimizers(base: Any, session: Session) -> None:
    """Classes whose `step` PyTorch has prepared already: optimizers made before we came."""
    for cls in base.__subclasses__():
        if getattr(cls.step, "hooked", False):
            w.wrap_optimizer_class(cls, session)
        wrap_known_optimizers(cls, session)
