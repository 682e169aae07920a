"""Optimizers that are given a closure: its code is the training loop's, as in Lightning and with L-BFGS."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.capture.conftest import Recorder
from traceml.capture.switch import c_module
from traceml.recording.tail import Tail

NAP_S = 0.01
SPIN_NS = 50_000
Make = Callable[..., Any]


class Steps:
    """Steps in closures that sleep between the forward and the backward pass, and note how long."""

    def __init__(self, make_training: Make, kind: str, fails: str = "", steps: int = 6) -> None:
        model, self.optimizer, self.loader = make_training(steps)
        if kind == "lbfgs":
            self.optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
        self.model, self.kind, self.fails = model, kind, fails
        self.napped_ms: list[float] = []

    def run(self) -> None:
        for number, (x, y) in enumerate(self.loader):
            self.napped_ms.append(0.0)
            closure = self.closure(x, y, self.fails if number == 4 else "")
            if self.kind == "keyword":
                self.optimizer.step(closure=closure)
            else:
                self.optimizer.step(closure)

    def closure(self, x: Any, y: Any, fails: str) -> Callable[[], Any]:
        def closure() -> Any:
            self.optimizer.zero_grad()
            loss = nn.functional.mse_loss(self.model(x[:, :3] if fails == "forward" else x), y)
            began = time.perf_counter()
            time.sleep(NAP_S)
            self.napped_ms[-1] += 1e3 * (time.perf_counter() - began)
            if fails == "closure":
                raise ValueError("bad loss")
            loss.backward()
            return loss

        return closure


@pytest.mark.parametrize("kind", ["positional", "keyword", "lbfgs"])
def test_time_in_a_closure_is_not_the_optimizers(recorder: Recorder, make_training: Make, kind: str) -> None:
    """A sleep there is wait after the forward pass; the passes are forward and backward, and a step is one
    call of the optimizer."""
    steps = Steps(make_training, kind)
    steps.run()
    assert len(recorder.rows()) == 6
    for napped, waited in zip(steps.napped_ms, recorder.ms("wait_forward"), strict=True):
        assert waited >= 0.9 * napped, "the rest may count as the loss"
    assert min(recorder.ms("optimizer")) < min(steps.napped_ms) / 2, "the others may have lacked a core"
    assert min(recorder.ms("forward")) > 0
    assert min(recorder.ms("backward")) > 0


@pytest.mark.parametrize(("fails", "during"), [("closure", None), ("forward", "forward")])
def test_error_in_a_closure_is_not_the_optimizers(
    recorder: Recorder, make_training: Make, monkeypatch: pytest.MonkeyPatch, fails: str, during: str | None
) -> None:
    """It has the phase that it left, if it left one, its line, and no frame of ours in its traceback."""
    with pytest.raises((ValueError, RuntimeError)) as raised:
        Steps(make_training, "positional", fails).run()
    frames = traceback.extract_tb(raised.value.__traceback__)
    assert not [frame for frame in frames if "traceml/capture" in frame.filename]
    monkeypatch.setattr(sys, "last_value", raised.value, raising=False)
    recorder.session.close()
    (error,) = recorder.events("error")
    assert error.during == during
    assert error.raised_at is not None
    assert error.raised_at.startswith("test_closures.py:")
    assert len(recorder.rows()) == 4


@pytest.mark.skipif(c_module is None, reason="only the C switch measures itself")
@pytest.mark.timed
def test_closure_is_not_taken_for_the_cost_of_recording(recorder: Recorder, make_training: Make) -> None:
    """In a sampled step the calls in the closure have a cost of their own, but its own time is no cost."""
    model, optimizer, loader = make_training(100)
    spun_ns: list[int] = []

    def closure() -> Any:
        optimizer.zero_grad()
        began = time.perf_counter_ns()
        while time.perf_counter_ns() - began < SPIN_NS:
            pass
        spun_ns.append(time.perf_counter_ns() - began)
        return 0.0

    for x, y in loader:
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step(closure)
    (live,) = (rank.live for rank in Tail(recorder.folder).local_ranks())
    sampled = spun_ns[8::16]
    assert live.own_steps == len(sampled)
    assert 0 < live.own_ns < sum(sampled)
