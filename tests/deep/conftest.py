"""Deep mode inside the test process, on a clock that only the layers of the test move: times are exact."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from traceml.analyze.layers import layers_section
from traceml.capture import deep as deep_mode
from traceml.capture import install
from traceml.capture.device import Device
from traceml.capture.session import Session
from traceml.recording.tail import Tail
from traceml.schema.recorded import LayerSample
from traceml.schema.summary import Layer, Layers

torch.set_num_threads(1)
MS = 1_000_000


class HandClock:
    """The switch of the session with another clock."""

    now = 0

    def __init__(self, switch: Any) -> None:
        self.__dict__["_switch"] = switch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._switch, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._switch, name, value)

    def clock(self) -> int:
        return HandClock.now

    def charged(self, _slot: int) -> int:
        return 0


class Work(torch.autograd.Function):
    """Takes this many milliseconds of the hand clock, forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward_ms: float, backward_ms: float) -> torch.Tensor:
        ctx.backward_ms = backward_ms
        HandClock.now += int(forward_ms * MS)
        return x * 1

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        HandClock.now += int(ctx.backward_ms * MS)
        return gradients[0], None, None


class Layer3(nn.Module):
    """A linear layer, and work of its own."""

    def __init__(self, forward_ms: float, backward_ms: float, width: int = 4) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.ms = (forward_ms, backward_ms)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Work.apply(torch.tanh(self.linear(x)), *self.ms)


class Recorder:
    """A session in deep mode; every step from the fourth on is sampled."""

    def __init__(self, session: Session, folder: Path) -> None:
        self.session, self.folder = session, folder

    def train(
        self, model: Any, steps: int = 8, width: int = 4, loss: Callable[..., Any] | None = None
    ) -> Any:
        """Plain steps; returns the optimizer."""
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)
        for _ in range(steps):
            self.step(model, optimizer, width, loss)
        return optimizer

    def step(
        self, model: Any, optimizer: Any, width: int = 4, loss: Callable[..., Any] | None = None
    ) -> None:
        optimizer.zero_grad()
        out = model(torch.ones(2, width))
        (loss(out) if loss is not None else out.sum()).backward()
        optimizer.step()

    def samples(self) -> list[LayerSample]:
        (rank,) = Tail(self.folder).read().ranks
        return rank.layers

    def found(self) -> Layers:
        (rank,) = Tail(self.folder).read().ranks
        section = layers_section({0: rank}, step_ms=1.0)
        assert section is not None
        return section

    def layers(self) -> dict[str, Layer]:
        return {layer.path: layer for layer in self.found().layers}


def use_hand_clock(session: Session, device: Device | None = None) -> None:
    """From the next step on, deep mode sees the hand clock and samples each step."""
    path = str(session.deep._path)
    session.deep._stop()
    session.deep = deep_mode.Deep(session.torch, HandClock(session.switch), device, path)  # type: ignore[arg-type]


@pytest.fixture
def deep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """Capture on in deep mode, for one test."""
    monkeypatch.setenv("TRACEML_DEEP", "1")
    monkeypatch.setattr(deep_mode, "LEAST_EVERY", 1)
    monkeypatch.setattr(deep_mode, "TARGET_SHARE", 1e9)
    monkeypatch.setattr(deep_mode, "PER_DOUBLING", 1e9)
    os.mkdir(tmp_path / "recording")
    session = install.activate(run_dir=str(tmp_path))
    assert session is not None
    first = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(first.parameters(), lr=0.01)
    first(torch.ones(1, 1)).sum().backward()
    optimizer.step()  # the process is a rank
    use_hand_clock(session)
    yield Recorder(session, tmp_path)
    session.switch.layers = None
    install.deactivate()
