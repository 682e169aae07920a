"""Who this process is: global rank is identity, local rank is device, node rank is place.

World size and ranks come from `torch.distributed` once it is initialized, else from the environment of
torchrun or Slurm; never by touching an accelerator.
"""

import os
import platform
import socket
import sys
import threading
import time
from typing import Any

from traceml.schema.slurm import find_task


def _from_environment(*names: str) -> int | None:
    for name in names:
        value = os.environ.get(name, "")
        if value.isascii() and value.isdigit():
            return int(value)
    return None


def identify(torch: Any) -> dict[str, Any]:
    """The identity part of a rank's recording header."""
    task = find_task(os.environ)
    rank, world_size = _from_environment("RANK"), _from_environment("WORLD_SIZE")
    if task is not None:
        rank = task.task if rank is None else rank
        world_size = task.tasks if world_size is None else world_size
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        rank, world_size = distributed.get_rank(), distributed.get_world_size()
    return {
        "rank": rank or 0,
        "local_rank": _from_environment("LOCAL_RANK", "SLURM_LOCALID") or 0,
        "node_rank": _from_environment("GROUP_RANK", "NODE_RANK", "SLURM_NODEID") or 0,
        "world_size": world_size or 1,
        "host": socket.gethostname(),
        "pid": os.getpid(),
    }


_PACKAGES = ("transformers", "lightning", "pytorch_lightning", "accelerate", "deepspeed", "numpy")


def _packages() -> dict[str, str]:
    """Versions of what matters among the packages that are loaded anyway."""
    loaded = ((name, sys.modules.get(name)) for name in _PACKAGES)
    return {n: str(getattr(m, "__version__", "")) for n, m in loaded if m is not None}


def trained_parameters(optimizer: Any) -> int | None:
    """How many numbers this optimizer trains, if it tells (Keras's does not)."""
    groups = getattr(optimizer, "param_groups", None)
    if groups is None and hasattr(optimizer, "parameters"):  # DeepSpeed's engine, which is a module
        groups = [{"params": optimizer.parameters()}]
    return sum(int(p.numel()) for group in groups for p in group["params"]) if groups else None


def describe_process(torch: Any) -> dict[str, Any]:
    """Versions and the clock anchor that ties this process's clock to the wall clock."""
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "thread": threading.get_native_id(),
        "packages": _packages(),
        "wall_ns": time.time_ns(),
        "clock_ns": time.perf_counter_ns(),
    }
