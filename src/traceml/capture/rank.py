"""A process becomes a rank: its recording is opened, its own cost is measured, its device is found."""

from __future__ import annotations

import os
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from traceml.capture import identity
from traceml.capture.device import Device, TorchDevice
from traceml.capture.switch import ROW, SLOTS, Switch, is_in_c
from traceml.capture.wrap import timed
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
    switch_ns, row_ns = _own_cost_ns()
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
        "overhead": {"switch_ns": switch_ns, "row_ns": row_ns, "in_c": is_in_c()},
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


def merged(first: bytes, more: bytes) -> bytes:
    """Two consecutive stretches of one step as one row: times add up, states are the later ones."""
    row = []
    columns = zip(c.STEP_COLUMNS, ROW.unpack(first), ROW.unpack(more), strict=True)
    for (name, _), a, b in columns:
        if name == "begin_ns":
            row.append(a)
        elif name in ("step", "end_ns") or name.endswith("_bytes"):
            row.append(b)
        else:
            row.append(a | b if name == "flags" else a + b)
    return ROW.pack(*row)


def resident_bytes() -> int | None:
    """Memory of this process; None where there is no /proc. No descriptor is kept: see EventLog."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return int(file.read(64).split(b" ", 2)[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return None


def _own_cost_ns() -> tuple[int, int]:
    """What one wrapped call and one row cost here, measured on scratch objects.

    Between two calls something else has the CPU's caches, as in a real step: in a tight loop the same code
    costs a fourth. Nothing of torch runs here: the user's profiler or mode would see it.
    """
    scratch = Switch()
    scratch.thread = threading.get_ident()
    wrapped = timed(_nothing, scratch, c.FORWARD, _no)
    size = layout.padded_row_size(ROW.size)
    rows = bytearray(size * 128)
    scratch.rows_into(rows, 0, len(rows), size, 0)
    empty_ns = _cold_ns(_nothing)
    switch_ns = _cold_ns(wrapped) - empty_ns
    row_ns = _cold_ns(lambda: scratch.publish(scratch.since, 0)) - empty_ns
    return max(switch_ns, 0), max(row_ns, 0)


def _cold_ns(function: Callable[[], object], rounds: int = 25) -> int:
    """Median cost of one call right after something else had the caches."""
    took = []
    other = bytes(1 << 18)
    for _ in range(rounds):
        zlib.crc32(other)
        began = time.perf_counter_ns()
        function()
        took.append(time.perf_counter_ns() - began)
    return sorted(took)[rounds // 2]


def _nothing() -> None:
    """Something to wrap."""


def _no() -> bool:
    return False
