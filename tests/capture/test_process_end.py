"""The error that ends a training process: what it said, the phase that it left, and the user's line."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.capture.conftest import Recorder


def train(model: Any, optimizer: Any, x: Any, y: Any) -> None:
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()


@pytest.mark.parametrize(
    ("part", "during"),
    [
        *(("input", "input"), ("worker", "input"), ("evaluation", "validation"), ("save", "checkpoint")),
        *(("clip", "optimizer"), ("forward", "forward"), ("metric", None)),
    ],
)
def test_error_is_recorded_with_its_phase_and_line(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, part: str, during: str | None
) -> None:
    """Whatever part of a loop ends the process: what it said, the phase, and the line of the script."""
    with pytest.raises((ValueError, RuntimeError)) as raised:
        failing_training(part)
    monkeypatch.setattr(sys, "last_value", raised.value, raising=False)
    recorder.session.close()
    (error,) = recorder.events("error")
    assert error.message is not None
    assert error.message.startswith("RuntimeError: The total norm" if part == "clip" else "ValueError: bad")
    assert error.message.endswith("(in a loader worker)") == (part == "worker")
    assert error.during == during
    assert error.raised_at is not None
    assert re.fullmatch(r"test_process_end\.py:\d+", error.raised_at)


def failing_training(part: str) -> None:
    """Some steps and an evaluation; then `part` of it raises."""

    class Data(torch.utils.data.Dataset[Any]):
        def __init__(self, fails: bool) -> None:
            self.fails = fails

        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> Any:
            if self.fails and index == 14:
                raise ValueError("bad sample")
            return torch.randn(8)

    class Model(nn.Linear):
        def forward(self, x: Any) -> Any:
            if part == ("forward" if self.training else "evaluation") and x[0, 0] > 50:
                raise ValueError("bad batch")
            return super().forward(x)

    class Unsaved:
        def __reduce__(self) -> Any:
            raise ValueError("bad state")

    model = Model(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    workers = 1 if part == "worker" else 0
    loader = torch.utils.data.DataLoader(Data(part in ("input", "worker")), batch_size=2, num_workers=workers)
    for x in loader:
        train(model, optimizer, x, torch.zeros(2, 1))
    model.eval()
    with torch.no_grad():
        for x in torch.utils.data.DataLoader(Data(fails=False), batch_size=2):
            model(x + (100 if part == "evaluation" else 0))
    model.train()
    if part == "save":
        torch.save(Unsaved(), io.BytesIO())
    for x in loader:
        model(x + (100 if part == "forward" else 0)).sum().backward()
        if part == "clip":
            model.weight.grad = torch.full_like(model.weight, torch.nan)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        optimizer.step()
        if part == "metric":
            raise ValueError("bad metric")


def test_failure_that_the_script_survives_is_forgotten(
    recorder: Recorder, make_training: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint that could not be written ends no step, and a later error is not blamed on it."""
    model, optimizer, loader = make_training(6)
    for index, (x, y) in enumerate(loader):
        train(model, optimizer, x, y)
        if index == 5:
            with contextlib.suppress(Exception):
                torch.save(lambda: None, None)
    assert len(recorder.rows()) == 6
    assert not recorder.events("aborted_step")
    monkeypatch.setattr(sys, "last_value", ValueError("later"), raising=False)
    recorder.session.close()
    assert [e.during for e in recorder.events("error")] == [None]
