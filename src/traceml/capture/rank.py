"""A process becomes a rank: its recording is opened, its own cost is measured, its device is found."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from traceml.capture import identity
from traceml.capture.device import TorchDevice
from traceml.capture.switch import ROW, SLOTS, Switch
from traceml.capture.wrap import timed
from traceml.errors import say_once
from traceml.recording import format as fmt
from traceml.recording.writer import RecordingWriter
from traceml.schema import catalog as c

if TYPE_CHECKING:
    from traceml.capture.session import Session


def open_recording(session: Session, tensor: Any) -> None:
    torch = session.torch
    session.switch.thread = threading.get_ident()
    who = identity.identify(torch)
    switch_ns, row_ns = _switch_cost_ns(torch)
    kind = getattr(getattr(tensor, "device", None), "type", "cpu")
    header = {
        "kind": "steps",
        "identity": who,
        "process": identity.describe_process(torch),
        "device": {"type": kind},
        "overhead": {"switch_ns": switch_ns, "row_ns": row_ns},
        "slots": SLOTS,
    }
    stem = os.path.join(session.run_dir or "", "recording", f"rank-{who['rank']}.{os.getpid()}")
    device, measured = None, session.measured
    if kind not in ("cpu", "meta"):
        device = TorchDevice(torch, kind, tensor.device.index or 0)
        header["device"] = {
            "type": kind,
            "name": device.name,
            "capacity_bytes": device.capacity_bytes(),
        }
    else:
        measured &= ~(1 << c.H2D)  # no device to copy to: not measured, not 0
    if who["world_size"] == 1:
        measured &= ~(1 << c.SYNC)
    session.switch.flags = measured
    session.writer = RecordingWriter(stem + ".steps", c.STEP_COLUMNS, header)
    session.rows_into_writer(0)
    session.switch.show_in(session.writer.live, fmt.LIVE_PHASE)
    if device is not None:
        session.use_device(device, stem + ".device", {**header, "kind": "device"})
    session.events.open(stem + ".events.jsonl")
    try:
        session.rss_fd = os.open("/proc/self/statm", os.O_RDONLY)
    except OSError:
        say_once("no /proc here: memory per step is not recorded")
    session.user_phases.use(session.writer)


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


def _switch_cost_ns(torch: Any) -> tuple[int, int]:
    """What one wrapped call and one row cost here, measured on scratch objects between tensor operations:
    in a tight loop the same code costs a fourth, because it stays in the CPU's caches."""
    scratch = Switch()
    scratch.thread = threading.get_ident()
    wrapped = timed(_nothing, scratch, c.FORWARD)
    rows = bytearray(256 * 128)
    scratch.rows_into(rows, 0, len(rows), 256, 0)
    block = torch.ones(128, 128, device="cpu")
    disturb = functools.partial(torch.mm, block, block)
    empty_ns = _cold_ns(_nothing, disturb)
    switch_ns = _cold_ns(wrapped, disturb) - empty_ns
    row_ns = _cold_ns(lambda: scratch.publish(scratch.since, 0), disturb) - empty_ns
    return max(switch_ns, 0), max(row_ns, 0)


def _cold_ns(function: Callable[[], object], disturb: Callable[[], object], rounds: int = 25) -> int:
    """Median cost of one call right after something else had the caches."""
    took = []
    for _ in range(rounds):
        disturb()
        began = time.perf_counter_ns()
        function()
        took.append(time.perf_counter_ns() - began)
    return sorted(took)[rounds // 2]


def _nothing() -> None:
    """Something to wrap."""
