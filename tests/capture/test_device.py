"""The accelerator path on a simulated asynchronous device: late, out of order, never; copies; memory."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.capture.conftest import Recorder
from tests.unit.made import align
from traceml.capture.device import MOST_PENDING, DeviceClock
from traceml.capture.slots import PENDING_EVAL, PENDING_FETCH
from traceml.recording.tail import Tail
from traceml.schema import catalog as c


class Event:
    """A timing event of the simulated device; it completes when the test says so."""

    def __init__(self, device: SimulatedDevice) -> None:
        self.device = device
        self.at_ms = 0.0
        self.done = False

    def record(self) -> None:
        self.at_ms = self.device.now_ms
        self.done = False
        self.device.recorded.append(self)

    def query(self) -> bool:
        return self.done

    def elapsed_time(self, end: Event) -> float:
        assert self.done, "reading an event that has not completed would synchronize"
        assert end.done, "reading an event that has not completed would synchronize"
        return end.at_ms - self.at_ms


class SimulatedDevice:
    """Its clock moves only when the test moves it; nothing ever waits for it."""

    kind = "meta"  # real tensors of this device exist everywhere
    name = "simulated"

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.recorded: list[Event] = []
        self.allocated = 10_000_000

    def new_event(self) -> Event:
        return Event(self)

    def memory(self) -> tuple[int, int]:
        return self.allocated, 2 * self.allocated

    def is_capturing(self) -> bool:
        return False

    def capacity_bytes(self) -> int | None:
        return 1_000_000_000


def run_steps(clock: DeviceClock, device: SimulatedDevice, steps: range) -> None:
    """Steps of 1 ms input, 5 ms forward, 3 ms backward, 1 ms rest on the device's clock."""
    for step in steps:
        for ms, slot in ((1.0, c.INPUT), (5.0, c.FORWARD), (3.0, c.BACKWARD)):
            device.now_ms += ms
            clock.mark(slot)
        device.now_ms += 1.0
        clock.end_step(step, c.WAIT_START)


def test_times_appear_only_when_their_events_are_done() -> None:
    """Late events: nothing is published before, the right times after."""
    device, rows = SimulatedDevice(), list[tuple[int, ...]]()
    clock = DeviceClock(device, lambda *row: rows.append(row))
    run_steps(clock, device, range(1, 4))
    assert rows == []
    for event in device.recorded:
        event.done = True
    clock.poll()
    assert [row[0] for row in rows] == [1, 2, 3]
    for row in rows:
        assert row[1 + c.INPUT] == 1_000_000
        assert row[1 + c.FORWARD] == 5_000_000
        assert row[1 + c.BACKWARD] == 3_000_000
        assert row[-1] == 1_000_000
        assert sum(row[1:]) == 10_000_000


def test_steps_that_complete_out_of_order_get_their_own_times() -> None:
    """A later step whose events are done does not wait for an earlier one."""
    device, rows = SimulatedDevice(), list[tuple[int, ...]]()
    clock = DeviceClock(device, lambda *row: rows.append(row))
    run_steps(clock, device, range(1, 3))
    first = device.recorded[:5]
    for event in device.recorded[5:]:
        event.done = True
    clock.poll()
    assert [row[0] for row in rows] == [2]
    for event in first:
        event.done = True
    clock.poll()
    assert [row[0] for row in rows] == [2, 1]
    assert all(sum(row[1:]) == 10_000_000 for row in rows)


def test_events_that_complete_in_random_order_never_mix_up_steps() -> None:
    """Events complete in any order while steps go on and events are reused: every time is right."""
    chance = random.Random(1)
    device, rows = SimulatedDevice(), list[tuple[int, ...]]()
    clock = DeviceClock(device, lambda *row: rows.append(row))
    for step in range(1, 200):
        run_steps(clock, device, range(step, step + 1))
        for event in device.recorded:
            if not event.done and chance.random() < 0.4:
                event.done = True
    for event in device.recorded:
        event.done = True
    clock.poll()
    assert sorted(row[0] for row in rows) == list(range(1, 200))
    assert all(row[1 + c.FORWARD] == 5_000_000 and sum(row[1:]) == 10_000_000 for row in rows)


def test_events_that_never_complete_are_dropped_after_a_limit() -> None:
    """A device that never answers costs bounded memory and publishes nothing."""
    device, rows = SimulatedDevice(), list[tuple[int, ...]]()
    clock = DeviceClock(device, lambda *row: rows.append(row))
    run_steps(clock, device, range(1, MOST_PENDING + 51))
    assert rows == []
    assert clock.given_up == 50


def test_events_of_another_stream_give_no_time_rather_than_a_wrong_one() -> None:
    """Events that run backwards (another stream) make the step's device time unknown."""
    device, rows = SimulatedDevice(), list[tuple[int, ...]]()
    clock = DeviceClock(device, lambda *row: rows.append(row))
    device.now_ms = 10.0
    clock.mark(c.INPUT)
    device.now_ms = 4.0
    clock.mark(c.FORWARD)
    clock.end_step(1, c.WAIT_START)
    for event in device.recorded:
        event.done = True
    clock.poll()
    assert rows == []


def test_phases_learned_late_are_renamed_on_the_device_clock_too() -> None:
    """A batch or forward whose role is learned late is charged to it on the device's clock."""
    device, rows = SimulatedDevice(), list[tuple[int, ...]]()
    clock = DeviceClock(device, lambda *row: rows.append(row))
    device.now_ms = 2.0
    clock.mark(PENDING_FETCH)
    device.now_ms = 5.0
    clock.mark(PENDING_EVAL)
    clock.rename(PENDING_EVAL, c.FORWARD)
    clock.end_step(1, c.WAIT_START)
    for event in device.recorded:
        event.done = True
    clock.poll()
    assert rows[0][1 + c.INPUT] == 2_000_000
    assert rows[0][1 + c.FORWARD] == 3_000_000


@pytest.mark.parametrize("complete", [True, False])
def test_window_uses_the_device_clock_only_if_it_is_complete(
    recorder: Recorder, make_training: Callable[..., Any], complete: bool
) -> None:
    """Whole training on the simulated device: device times for all steps, or the host clock for all."""
    model, optimizer, loader = make_training(30)
    device = SimulatedDevice()
    for index, (x, y) in enumerate(loader):
        if index == 1:
            path = str(recorder.session.writer.path).replace(".steps", ".device")  # type: ignore[union-attr]
            recorder.session.use_device(device, path, {"kind": "device"})
        optimizer.zero_grad()
        device.now_ms += 7.0
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        if complete or index < 8:
            for event in device.recorded:
                event.done = True
    if recorder.session.device_clock is not None:
        recorder.session.device_clock.poll()
    window = align(Tail(recorder.folder).read().ranks)
    assert window.clock == ("device" if complete else "host")
    if complete:
        assert np.allclose(window.step_ns, 7e6)


def test_only_copies_to_the_device_are_h2d(recorder: Recorder, make_training: Callable[..., Any]) -> None:
    """Host data to the device counts; parameters, casts and copies on the host do not."""
    model, optimizer, loader = make_training(6)
    for index, (x, y) in enumerate(loader):
        if index == 1:
            path = str(recorder.session.writer.path).replace(".steps", ".device")  # type: ignore[union-attr]
            recorder.session.use_device(SimulatedDevice(), path, {"kind": "device"})
        if index == 2:
            x.to("meta")
        if index == 3:
            torch.empty(4, 8, device="meta").copy_(x)
        if index == 4:
            nn.Parameter(x).to("meta")
            x.to(torch.float64)
            x.to("cpu")
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    assert [v > 0 for v in recorder.rows()["h2d"]] == [False, False, True, True, False, False]


def test_device_memory_is_recorded_in_the_rows(recorder: Recorder, make_training: Callable[..., Any]) -> None:
    """Allocated and reserved memory of the device are in the rows, marked as measured."""
    model, optimizer, loader = make_training(4)
    device = SimulatedDevice()
    for index, (x, y) in enumerate(loader):
        if index == 1:
            path = str(recorder.session.writer.path).replace(".steps", ".device")  # type: ignore[union-attr]
            recorder.session.use_device(device, path, {"kind": "device"})
        recorder.session.memory_due = 0
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    rows = recorder.rows()
    assert rows["peak_allocated_bytes"][-1] == 10_000_000
    assert rows["peak_reserved_bytes"][-1] == 20_000_000
    assert rows["flags"][-1] & c.FLAG_DEVICE_MEMORY
