"""A process becomes a rank: its recording is opened, its own cost is measured, its device is found."""

from __future__ import annotations

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
    switch_ns, row_ns = _switch_cost_ns()
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
    device = None
    if kind not in ("cpu", "meta"):
        device = TorchDevice(torch, kind, tensor.device.index or 0)
        header["device"] = {
            "type": kind,
            "name": device.name,
            "capacity_bytes": device.capacity_bytes(),
        }
    else:
        session.measured &= ~(1 << c.H2D)  # no device to copy to: not measured, not 0
    if who["world_size"] == 1:
        session.measured &= ~(1 << c.SYNC)
    session.switch.flags = session.measured
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


def _switch_cost_ns() -> tuple[int, int]:
    """What one phase switch and one row cost here, measured on scratch objects."""
    scratch = Switch()
    scratch.thread = threading.get_ident()
    wrapped = timed(_nothing, scratch, c.FORWARD)
    switch_ns = _fastest_ns(wrapped)
    # Packing is about a third of what ending a step costs (list, counters, sequence number).
    rows = bytearray(256 * 128)
    scratch.rows_into(rows, 0, len(rows), 256, 0)
    row_ns = 3 * _fastest_ns(lambda: scratch.publish(scratch.since, 0))
    return switch_ns, row_ns


def _fastest_ns(function: Callable[[], object], rounds: int = 20, batches: int = 5) -> int:
    """Cost of one call when nothing disturbs it: the best of several batches."""
    best = 1 << 60
    for _ in range(batches):
        began = time.perf_counter_ns()
        for _ in range(rounds):
            function()
        best = min(best, time.perf_counter_ns() - began)
    return best // rounds


def _nothing() -> None:
    """Something to wrap."""
