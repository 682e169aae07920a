"""Which steps are sampled, and what that costs; times from a device that answers late."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.capture.test_device import SimulatedDevice
from tests.deep.conftest import Layer3, Recorder, use_hand_clock
from traceml.capture import deep as deep_mode
from traceml.capture.deep import Deep


class Steps:
    """A switch that only counts, and a plan that follows from what a sample and a step take."""

    def __init__(self) -> None:
        self.step, self.visit, self.layers, self.now = 0, 0, None, 0

    def clock(self) -> int:
        return self.now

    def charged(self, _slot: int) -> int:
        return 0


def planned(cost_us: float, step_us: float, steps: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps that would be sampled."""
    monkeypatch.setattr(deep_mode, "core_wait_ns", lambda: 0)
    switch = Steps()
    deep: Any = Deep(torch, switch, None, "unused")  # type: ignore[arg-type]
    sampled = []
    while deep._next < steps:
        switch.now += int((deep._next - switch.step) * step_us * 1e3)
        switch.step = deep._next
        sampled.append(switch.step)
        deep._costs.append(int(cost_us * 1e3))
        deep._plan()
    return sampled


@pytest.mark.parametrize(
    ("cost_us", "step_us"), [(300, 200), (300, 5_000), (20_000, 1_000), (20_000, 100_000), (50, 100_000)]
)
def test_samples_take_about_one_percent_at_most(
    cost_us: float, step_us: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with tiny steps and large models: of the time after the first sample."""
    steps = 100_000
    sampled = planned(cost_us, step_us, steps, monkeypatch)
    assert sampled[0] == 4
    assert cost_us * len(sampled[1:]) / (step_us * steps) <= 0.0101
    assert len(sampled) >= 10


def test_long_runs_are_sampled_ever_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recording grows with the logarithm of the steps."""
    counts = [len(planned(1, 100_000, steps, monkeypatch)) for steps in (10_000, 100_000, 1_000_000)]
    assert counts[0] < 250
    assert counts[2] - counts[1] == pytest.approx(counts[1] - counts[0], rel=0.3)


def test_ranks_that_choose_differently_still_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps of the rank that samples less often are among those of the other, so no rank waits for two
    samples."""
    often, rarely = (planned(cost, 1_000, 20_000, monkeypatch) for cost in (500, 3_000))
    assert len(rarely) < len(often)
    assert set(rarely) <= set(often)


def test_steps_between_samples_see_nothing_of_deep_mode(deep: Recorder) -> None:
    """In a step that is not sampled, the wrappers call nothing of deep mode."""
    deep.session.deep._next = 10**9
    deep.session.switch.layers = None
    deep.session.deep._sample = None
    deep.session.switch.visit = 10**9
    seen = []

    def look(out: torch.Tensor) -> torch.Tensor:
        seen.append(deep.session.switch.layers)
        return out.sum()

    deep.train(Layer3(1, 2), steps=5, loss=look)
    assert seen == [None] * 5


def test_device_times_come_from_events_that_are_done(deep: Recorder) -> None:
    """Nothing waits for the device: a sample is written when all of its events have completed."""
    device = SimulatedDevice()
    deep.session.deep._stop()
    use_hand_clock(deep.session, device)

    class OnDevice(Layer3):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            device.now_ms += 5
            return super().forward(x)

    model = torch.nn.Sequential(OnDevice(0, 0), OnDevice(0, 0))
    optimizer = deep.train(model, steps=6)
    assert deep.samples() == []
    for event in device.recorded:
        event.done = True
    deep.step(model, optimizer)
    samples = deep.samples()
    assert samples
    assert samples[0].clock == "device"
    assert dict(zip(samples[0].paths, samples[0].columns["forward"], strict=True))["1"] == 5_000_000


def test_a_device_that_records_a_graph_is_left_alone(deep: Recorder) -> None:
    """An event of ours would become part of the graph."""
    device = SimulatedDevice()
    device.is_capturing = lambda: True  # type: ignore[method-assign]
    deep.session.deep._stop()
    use_hand_clock(deep.session, device)
    deep.train(Layer3(1, 2), steps=6)
    assert device.recorded == []
