"""Whatever part of capture fails, the training does not notice: same results, one line on standard error."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.capture.test_device import SimulatedDevice
from traceml import errors
from traceml.capture import device, events, gradients, inputs, install, leading_optimizer, rank
from traceml.capture import other_thread as other_threads
from traceml.capture import session as sessions
from traceml.recording import writer
from traceml.recording.tail import Tail

CALLED: tuple[tuple[Any, str], ...] = (
    *((sessions.Session, name) for name in ("enter_forward", "backward_begins", "backward_ended")),
    *((sessions.Session, name) for name in ("optimizer_stepped", "end_step", "drop_step", "phase_failed")),
    *((sessions.Session, name) for name in ("loader_starts", "fetch_begins", "fetch_stopped")),
    *((sessions.Session, name) for name in ("become_rank", "use_device", "_read_memory")),
    *((inputs.Inputs, name) for name in ("open", "fetched", "loader_started", "resolve", "infer", "is_open")),
    (inputs.Inputs, "role_of"),
    *((leading_optimizer.LeadingOptimizer, name) for name in ("stepped", "new_batch", "made")),
    *((gradients.GradientWatch, name) for name in ("step_ended",)),
    *(
        (install, name) for name in ("is_wait", "wrap_own_calls")
    ),  # of the watch for garbage, of the first step
    *((events.EventLog, name) for name in ("add", "open")),
    *((writer.RecordingWriter, name) for name in ("__init__", "grow", "append_packed")),
    *((device.DeviceClock, name) for name in ("_mark", "_poll", "_resolve", "rename", "drop_step")),
    *((SimulatedDevice, name) for name in ("new_event", "memory", "is_capturing")),
    *((other_threads.OtherThread, name) for name in ("takes_over", "show_in", "_count_steps")),
    (sessions.Session, "adopt_thread"),
    (other_threads, "_is_of_python"),
    (inputs, "size_of"),
    (sessions, "trained_parameters"),
    (rank, "_own_cost_ns"),
)
"""Everything of ours that a patch leads to."""


@pytest.fixture(autouse=True)
def _no_line_was_printed_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(errors, "_said", set())
    yield
    install.deactivate()


def train(session: Any = None) -> list[float]:
    """Two epochs with a skipped batch, an evaluation, a second optimizer, another thread; all losses."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for _ in range(2)]
    data = torch.utils.data.TensorDataset(torch.randn(48, 8))
    losses = []
    for epoch in range(2):
        for index, (x,) in enumerate(torch.utils.data.DataLoader(data, batch_size=4)):
            try:
                loss = model(x[:, :5] if index == 3 else x).pow(2).mean()
            except RuntimeError:
                continue  # a batch of the wrong shape
            optimizers[epoch].zero_grad()
            loss.backward()
            optimizers[epoch].step()
            losses.append(loss.item())
            if session is not None and session.writer is not None and session.device is None and index == 1:
                session.use_device(SimulatedDevice(), str(Path(session.run_dir) / f"{epoch}.device"), {})
        with torch.no_grad():
            losses.append(model(torch.ones(4, 8)).sum().item())
        thread = threading.Thread(target=elsewhere, args=(model, optimizers[epoch], losses))
        thread.start()
        while thread.is_alive():
            pass  # busy, so that training has not moved to that thread
    return losses


@functools.cache
def plainly() -> list[float]:
    """The losses without capture."""
    return train()


def elsewhere(model: nn.Module, optimizer: torch.optim.Optimizer, losses: list[float]) -> None:
    for _ in range(3):
        loss = model(torch.ones(4, 8)).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())


@pytest.mark.parametrize("first", [1, *(pytest.param(n, marks=pytest.mark.thorough) for n in (2, 9))])
@pytest.mark.parametrize(("owner", "name"), CALLED, ids=lambda value: getattr(value, "__name__", value))
def test_training_survives_the_failure_of_any_part(
    owner: Any, name: str, first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its n-th call on this part raises: every loss is that of the plain training."""
    plain = plainly()
    real, calls = getattr(owner, name), []

    def failing(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) >= first:
            raise RuntimeError("broken on purpose")
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, failing)
    (tmp_path / "recording").mkdir()
    session = install.activate(run_dir=str(tmp_path))
    guarded = errors.failsafe("using a simulated device", None)
    if session is not None:
        session.use_device = guarded(session.use_device)  # type: ignore[method-assign]
    assert train(session) == plain


def test_a_part_that_failed_is_in_the_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line on standard error is also an event, and the summary says what is missing since when."""
    (tmp_path / "recording").mkdir()
    session = install.activate(run_dir=str(tmp_path))
    assert session is not None
    train()
    monkeypatch.setattr(inputs, "size_of", lambda batch: 1 // 0)
    train()
    session.close()
    (failed,) = [e for e in Tail(tmp_path).read().ranks[0].events if e.kind == "capture_failed"]
    assert failed.message is not None
    assert "counting the samples of a batch failed (ZeroDivisionError" in failed.message


def test_a_failure_before_the_first_step_is_left_beside_the_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a recording of its own the process still says why it has none."""
    (tmp_path / "recording").mkdir()
    assert install.activate(run_dir=str(tmp_path)) is not None
    monkeypatch.setattr(sessions, "open_rank", lambda *_: 1 // 0)
    train()
    (failed,) = Tail(tmp_path).read().early_events
    assert failed.kind == "capture_failed"
    assert "start of recording failed (ZeroDivisionError" in str(failed.message)


def test_a_failed_installation_is_left_beside_the_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If capture cannot even begin, the summary does not claim that nothing was trained."""
    (tmp_path / "recording").mkdir()
    monkeypatch.setattr(sessions.Session, "begin", lambda self: 1 // 0)
    assert install.activate(run_dir=str(tmp_path)) is None
    (failed,) = Tail(tmp_path).read().early_events
    assert failed.kind == "capture_failed"
    assert "installing TraceML failed (ZeroDivisionError" in str(failed.message)
