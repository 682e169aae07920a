"""A process becomes a rank: who it is, its recording, its own cost, its device, names of the user's phases.

Global rank is identity, local rank is device, node rank is place. World size and ranks come from
`torch.distributed` once it is initialized, else from the environment of torchrun or Slurm; never by touching
an accelerator.
"""

import os
import platform
import socket
import sys
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from traceml.capture.device import Device, TorchDevice
from traceml.capture.slots import ROW, SLOTS
from traceml.capture.switch import Switch, c_module
from traceml.capture.wrap import nothing, seen_through, timed
from traceml.recording import layout
from traceml.recording.writer import RecordingWriter, mark_replaced
from traceml.schema import catalog as c
from traceml.schema.slurm import find_task

MOST_NAMES: Final = 1000
_PACKAGES: Final = ("transformers", "lightning", "pytorch_lightning", "accelerate", "deepspeed", "numpy")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


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


def trained_parameters(optimizer: Any) -> int | None:
    """How many numbers this optimizer trains, if it tells (Keras's does not)."""
    groups = getattr(optimizer, "param_groups", None)
    if groups is None and hasattr(optimizer, "parameters"):  # DeepSpeed's engine, which is a module
        groups = [{"params": optimizer.parameters()}]
    return sum(int(p.numel()) for group in groups for p in group["params"]) if groups else None


def describe_process(torch: Any) -> dict[str, Any]:
    """Versions of what is loaded, and the clock anchor that ties this process's clock to the wall clock."""
    loaded = ((name, sys.modules.get(name)) for name in _PACKAGES)
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "cores": _usable_cores(),
        "thread": threading.get_native_id(),
        "packages": {n: str(getattr(m, "__version__", "")) for n, m in loaded if m is not None},
        "wall_ns": time.time_ns(),
        "clock_ns": time.perf_counter_ns(),
    }


def _usable_cores() -> str | None:
    """The cores that this process may run on, one bit for each, in hex: launchers and scripts pin ranks."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    return f"{sum(1 << core for core in affinity(0)):x}" if affinity is not None else None


@dataclass(frozen=True, slots=True)
class Rank:
    """What a rank has besides its session: its files and its device."""

    writer: RecordingWriter
    stem: str
    header: dict[str, Any]
    measured: int  # bit for each phase that is measured here
    device: Device | None


def open_rank(torch: Any, run_dir: str, tensor: Any, measured: int, missing: Sequence[str]) -> Rank:
    """Open the recording of this process; `tensor` is the first one that was trained, if one is known."""
    who = identify(torch)
    kind = getattr(getattr(tensor, "device", None), "type", "cpu")
    device = None if kind in ("cpu", "meta") else TorchDevice(torch, kind, tensor.device.index or 0)
    about: dict[str, Any] = {"type": kind}
    if device is None:
        measured &= ~(1 << c.H2D)  # no device to copy to: not measured, not 0
    else:
        about |= {"name": device.name, "capacity_bytes": device.capacity_bytes()}
    if who["world_size"] == 1:
        measured &= ~(1 << c.SYNC)
    header = {
        "kind": "steps",
        "identity": who,
        "process": describe_process(torch),
        "device": about,
        "overhead": {**_own_cost_ns(), "in_c": c_module is not None},
        "slots": SLOTS,
        "missing": list(missing),
    }
    stem, writer = _open_writer(os.path.join(run_dir, layout.FOLDER), who, header)
    return Rank(writer, stem, header, measured, device)


def _open_writer(folder: str, who: dict[str, Any], header: dict[str, Any]) -> tuple[str, RecordingWriter]:
    """A process that replaced itself (exec) has the same id and gets a name of its own."""
    name = os.path.join(folder, f"rank-{who['rank']}.{who['pid']}")
    for number in range(MOST_NAMES):
        stem = f"{name}{number:03}" if number else name
        try:
            return stem, RecordingWriter(stem + ".steps", c.STEP_COLUMNS, header)
        except FileExistsError:
            mark_replaced(stem + ".steps")
    raise FileExistsError(f"{folder}: {MOST_NAMES} recordings of process {who['pid']}")


def resident_bytes() -> int | None:
    """Memory of this process; None where there is no /proc. No descriptor is kept: see EventLog."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return int(file.read(64).split(b" ", 2)[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return None


def _own_cost_ns() -> dict[str, int]:
    """What recording costs here, measured on scratch objects: a timed call, a wrapped call that only passes,
    a row, and what a step costs besides.

    The C switch measures its own part in real steps (layout.LIVE_OWN), so that these only count for short
    runs and for what it does not see: calls that pass, and the Python function around the optimizer's step.
    Nothing of torch runs here: the user's profiler or mode would see it.
    """
    scratch = Switch()
    scratch.thread = threading.get_ident()
    call = timed(nothing, scratch, c.CHECKPOINT, nothing)
    wrapped = seen_through(nothing, call, lambda: False)
    size = layout.padded_row_size(ROW.size)
    rows = bytearray(size * 128)
    scratch.rows_into(rows, 0, len(rows), size, 0)
    empty_ns, call_ns, wrapped_ns, row_ns = (
        _cold_ns(function) for function in (nothing, call, wrapped, lambda: scratch.publish(scratch.since, 0))
    )
    scratch.thread = -1
    pass_ns = max(_hot_ns(call) - _hot_ns(nothing), 1)
    step_ns = max(wrapped_ns - call_ns, 0)
    return {
        "switch_ns": max(call_ns - empty_ns, pass_ns),
        "row_ns": max(row_ns - empty_ns, 0) + step_ns,
        "pass_ns": pass_ns,
        "step_ns": step_ns,
    }


def _hot_ns(function: Callable[[], object], rounds: int = 100) -> int:
    """Cost of one of many calls in a row, as those of a model's submodules are."""
    began = time.perf_counter_ns()
    for _ in range(rounds):
        function()
    return (time.perf_counter_ns() - began) // rounds


def _cold_ns(function: Callable[[], object], rounds: int = 9) -> int:
    """Median cost of one call right after something else had the CPU's caches, as in a real step.

    Compiling Python runs through much code and data; in a tight loop the same call costs a quarter.
    """
    took = []
    other = bytes(1 << 18)
    for _ in range(rounds):
        zlib.crc32(other)
        compile(_SOURCE, "", "exec")
        began = time.perf_counter_ns()
        function()
        took.append(time.perf_counter_ns() - began)
    return sorted(took)[rounds // 2]


_SOURCE: Final = "def f(a, *b, c=1, **d):\n    return [x + y for x, y in zip(a, b) if x] or {c: d}\n" * 4


class UserPhases:
    """The user's own phases: names to slots, written into the recording as soon as there is one.

    Names beyond the slots share the last one.
    """

    def __init__(self) -> None:
        self.slots: dict[str, int] = {}
        self._writer: RecordingWriter | None = None

    def slot(self, name: str) -> int:
        """The slot of this name."""
        found = self.slots.get(name)
        if found is None:
            used = len(set(self.slots.values()))
            found = self.slots[name] = c.FIRST_USER + min(used, c.USER_SLOTS - 1)
            self._write(name, found)
        return found

    def use(self, writer: RecordingWriter) -> None:
        """The recording is open: names given so far go into it."""
        self._writer = writer
        for name, slot in self.slots.items():
            self._write(name, slot)

    def _write(self, name: str, slot: int) -> None:
        index = slot - c.FIRST_USER
        shared = index == c.USER_SLOTS - 1 and len(self.slots) > c.USER_SLOTS
        if self._writer is not None:
            self._writer.set_name(index, "other phases" if shared else name)
