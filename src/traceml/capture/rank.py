"""A process becomes a rank: its recording is opened, its own cost is measured, its device is found."""

import os
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from traceml.capture import identity
from traceml.capture.c_module import c_module
from traceml.capture.device import Device, TorchDevice
from traceml.capture.slots import ROW, SLOTS
from traceml.capture.switch import Switch
from traceml.capture.wrap import nothing, seen_through, timed
from traceml.recording import layout
from traceml.recording.writer import RecordingWriter, mark_replaced
from traceml.schema import catalog as c

MOST_NAMES: Final = 1000
_PAGE: Final = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


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
    who = identity.identify(torch)
    kind = getattr(getattr(tensor, "device", None), "type", "cpu")
    device = None if kind in ("cpu", "meta") else TorchDevice(torch, kind, tensor.device.index or 0)
    if device is None:
        measured &= ~(1 << c.H2D)  # no device to copy to: not measured, not 0
    if who["world_size"] == 1:
        measured &= ~(1 << c.SYNC)
    header = {
        "kind": "steps",
        "identity": who,
        "process": identity.describe_process(torch),
        "device": {"type": kind} if device is None else _about(device),
        "overhead": {**_own_cost_ns(), "in_c": c_module is not None},
        "slots": SLOTS,
        "missing": list(missing),
    }
    stem, writer = _open_writer(os.path.join(run_dir, layout.FOLDER), who, header)
    return Rank(writer, stem, header, measured, device)


def _about(device: Device) -> dict[str, Any]:
    return {"type": device.kind, "name": device.name, "capacity_bytes": device.capacity_bytes()}


def _open_writer(folder: str, who: dict[str, Any], header: dict[str, Any]) -> tuple[str, RecordingWriter]:
    """A process that replaced itself (exec) has the same id and gets a name of its own."""
    for number in range(MOST_NAMES):
        stem = os.path.join(
            folder,
            f"rank-{who['rank']}.{who['pid']}{number:03}" if number else f"rank-{who['rank']}.{who['pid']}",
        )
        try:
            return stem, RecordingWriter(stem + ".steps", c.STEP_COLUMNS, header)
        except FileExistsError:
            mark_replaced(stem + ".steps")
    raise FileExistsError(f"{folder}: {MOST_NAMES} recordings of process {who['pid']}")


def timed_resident_bytes() -> tuple[int | None, int]:
    """The memory of this process, and the nanoseconds of CPU that reading it took.

    The thread's own time: what it waited for a core, on a busy machine, is not what a reading costs.
    """
    began = time.thread_time_ns()
    resident = resident_bytes()
    return resident, time.thread_time_ns() - began


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
    wrapped = seen_through(nothing, call, _no)
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


def _no() -> bool:
    return False
