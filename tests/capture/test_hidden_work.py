"""Model work that no module call or optimizer step shows: transforms, autograd functions, updates by hand."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from statistics import median
from typing import Any

import pytest
import torch
from torch import nn

from tests.capture.conftest import Recorder
from tests.capture.test_roles import LOSS, NAP_MS, Sleeper, spin, train
from traceml.capture import install
from traceml.schema import catalog as c

pytestmark = pytest.mark.timed
STEPS = 6


def later(values: list[float]) -> list[float]:
    """Without the first step, in which it shows what is what."""
    assert len(values) == STEPS
    return values[1:]


def test_a_transform_is_forward_but_making_its_batch_is_input(recorder: Recorder) -> None:
    """What a transform does before it calls a module is no input; its backward pass is backward."""
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def loss_of(parameters: Any, x: Any) -> Any:
        spin(NAP_MS)
        return torch.func.functional_call(model, parameters, (x,)).square().mean()

    for _ in range(STEPS):
        time.sleep(NAP_MS / 1000)
        x = torch.randn(4, 8)
        gradients = torch.func.grad(loss_of)(dict(model.named_parameters()), x)
        for name, parameter in model.named_parameters():
            parameter.grad = gradients[name]
        optimizer.step()
    assert min(later(recorder.ms("forward"))) > 0.95 * NAP_MS
    assert 0.95 * NAP_MS < min(later(recorder.ms("input"))) < 1.9 * NAP_MS
    assert min(recorder.ms("backward")) > 0


def test_data_that_a_transform_has_seen_before_is_no_input(recorder: Recorder) -> None:
    """The same batch again: a pause before a transform is wait, though it wraps the tensors anew."""
    model, x = nn.Linear(8, 1), torch.randn(4, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        time.sleep(NAP_MS / 1000)
        torch.func.vmap(model)(x).sum().backward()
        optimizer.step()
    assert not any(recorder.ms("input"))
    assert min(later(recorder.ms("wait_start"))) > 0.95 * NAP_MS


@pytest.mark.parametrize("how", ["grad", "vmap", "vjp", "jvp"])
def test_transforms_can_be_compiled_as_a_whole(recorder: Recorder, how: str) -> None:
    """torch.compile(fullgraph=True) sees nothing of ours in a transform."""
    func = torch.func
    calls: dict[str, Callable[[Any], Any]] = {
        "grad": lambda x: func.grad(lambda v: v.sin().sum())(x),
        "vmap": lambda x: func.vmap(torch.sin)(x),
        "vjp": lambda x: func.vjp(torch.sin, x)[1](x)[0],
        "jvp": lambda x: func.jvp(torch.sin, (x,), (x,))[1],
    }
    x = torch.randn(3)
    compiled = torch.compile(calls[how], fullgraph=True, backend="eager")
    assert torch.allclose(compiled(x), calls[how](x))


class Adjoint(torch.autograd.Function):
    """Calls a module without gradients, as solvers of differential equations do."""

    @staticmethod
    def forward(context: Any, model: Any, x: Any, *_: Any) -> Any:
        context.rows = len(x)
        time.sleep(NAP_MS / 1000)
        return model(x)

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        return None, None, gradients[0].new_ones(1, 8), gradients[0].new_ones(1)


def test_modules_in_an_autograd_function_are_forward(recorder: Recorder) -> None:
    """`Function.apply` turns gradients off, but a backward pass follows: forward, not no_grad and wait."""
    model = Sleeper()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        x = torch.randn(4, 8)
        LOSS(Adjoint.apply(model, x, *model.parameters()), torch.zeros(4, 1)).backward()
        optimizer.step()
    assert min(later(recorder.ms("forward"))) > 1.95 * NAP_MS
    assert max(later(recorder.ms("no_grad"))) == 0


def test_an_autograd_function_without_gradients_stays_no_grad(recorder: Recorder) -> None:
    """The same function under no_grad, in every step: a target, not the training's forward pass."""
    target, model = Sleeper(), nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        x = torch.randn(4, 8)
        with torch.no_grad():
            y = Adjoint.apply(target, x)
        train(model, optimizer, x, y)
    assert min(later(recorder.ms("no_grad"))) > 0.95 * NAP_MS
    assert min(recorder.ms("forward")) < 0.5 * NAP_MS


def test_an_exception_in_an_autograd_function_passes(recorder: Recorder) -> None:
    """It arrives as it is, and the step that it ended is dropped."""

    class Fails(Adjoint):
        @staticmethod
        def forward(context: Any, model: Any, x: Any, *_: Any) -> Any:
            if len(x) == 3:
                raise ValueError("three")
            return model(x)

    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for rows in (4, 4, 3, 4):
        with pytest.raises(ValueError, match="three") if rows == 3 else nullcontext():
            Fails.apply(model, torch.randn(rows, 8), *model.parameters()).sum().backward()
            optimizer.step()
    assert len(recorder.rows()) == 3
    assert recorder.session.switch.current >= c.FIRST_WAIT


def test_a_target_network_that_follows_is_no_input(recorder: Recorder) -> None:
    """Averaging into another network after the optimizer's step is optimizer work, also without a loader."""
    model, target = nn.Linear(8, 1), nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        x = torch.randn(4, 8)
        train(model, optimizer, x, torch.zeros(4, 1))
        for ours, theirs in zip(model.parameters(), target.parameters(), strict=False):
            spin(NAP_MS / 2)
            theirs.data.copy_(0.1 * ours.data + 0.9 * theirs.data)
    assert min(later(recorder.ms("optimizer"))) > 0.95 * NAP_MS
    assert min(later(recorder.ms("input"))) < 0.5 * NAP_MS


def test_logging_of_parameters_is_wait(recorder: Recorder) -> None:
    """A walk over one module that changes nothing must not look like an optimizer."""
    model, critic = nn.Linear(8, 1), nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(4, 8), torch.zeros(4, 1)
    for _ in range(STEPS):
        train(model, optimizer, x, y)
        for module in (model, critic):
            assert next(module.parameters()).device.type == "cpu"
            for _name, _parameter in module.named_parameters():
                spin(NAP_MS / 4)
    assert min(recorder.ms("optimizer")) < 0.5 * NAP_MS
    assert min(later(recorder.ms("wait_start"))) > 0.95 * NAP_MS


def test_a_penalty_on_parameters_is_forward(recorder: Recorder) -> None:
    """A walk in which autograd records operations belongs to the loss, also next to another network's."""
    model, anchor = (
        nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)),
        nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        loss = model(torch.randn(4, 8)).square().mean()
        for ours, theirs in zip(model.parameters(), anchor.parameters(), strict=False):
            loss = loss + (ours - theirs.detach()).square().sum()
            spin(1)
        loss.backward()
        optimizer.step()
    assert min(recorder.ms("optimizer")) < 2


def test_an_update_by_hand_is_the_optimizer(recorder: Recorder, make_training: Any) -> None:
    """Without an optimizer, a walk over the parameters after the backward pass is measured as one."""
    model, _, loader = make_training(steps=40)
    for x, y in loader:
        LOSS(model(x), y).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                spin(1)
                parameter -= 0.01 * parameter.grad
        model.zero_grad()
    recorder.session.close()
    rows = recorder.rows()
    assert len(rows) == 40
    assert all(rows["flags"] & (1 << c.OPTIMIZER))
    assert min(recorder.ms("optimizer")) > 3.8


def test_a_batch_that_is_made_after_an_update_by_hand_is_input(recorder: Recorder) -> None:
    """Without loader and optimizer, gradients may be zeroed after the batch was made; it is input."""
    model = nn.Linear(8, 1)
    for _ in range(40):
        time.sleep(NAP_MS / 1000)
        x = torch.randn(4, 8)
        model.zero_grad()
        LOSS(model(x), torch.zeros(4, 1)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.data.add_(parameter.grad, alpha=-0.01)
    recorder.session.close()
    assert len(recorder.rows()) == 40
    assert min(recorder.ms("input")[1:-1]) > 0.95 * NAP_MS
    assert max(recorder.ms("wait_backward")) < 0.5 * NAP_MS


class Around(torch.optim.Optimizer):
    """An optimizer around another one that never calls Optimizer.__init__, and steps every other time."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.calls = inner, 0
        self.scaler: Any = None

    def step(self, closure: Any = None) -> Any:
        self.calls += 1
        spin(NAP_MS)
        return self.inner.step(closure) if self.calls % 2 == 0 else None


def test_what_an_optimizer_around_another_does_is_optimizer_work(recorder: Recorder) -> None:
    """Clipping and noise before the inner step are optimizer work; a step that it skips ends no step."""
    model = nn.Linear(8, 1)
    optimizer = Around(torch.optim.SGD(model.parameters(), lr=0.01))
    for _ in range(2 * STEPS):
        LOSS(model(torch.randn(4, 8)), torch.zeros(4, 1)).backward()
        optimizer.step()
    assert min(later(recorder.ms("optimizer"))) > 1.9 * NAP_MS
    assert list(recorder.rows()["micro_batches"]) == [2] * STEPS


class TwoParts(torch.optim.Optimizer):
    """Sharpness-aware minimization: the loop calls two methods; the second steps another optimizer."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})
        self.inner = torch.optim.SGD(self.param_groups, lr=0.01)

    def first_step(self) -> None:
        spin(NAP_MS)

    def second_step(self) -> None:
        spin(NAP_MS / 2)
        self.inner.step()


def test_parts_of_an_optimizer_step_are_optimizer_work(recorder: Recorder) -> None:
    """Methods of other names count too, and the step ends when the inner optimizer has stepped."""
    model = nn.Linear(8, 1)
    optimizer = TwoParts(model.parameters())
    x, y = torch.randn(4, 8), torch.zeros(4, 1)
    for _ in range(STEPS):
        LOSS(model(x), y).backward()
        optimizer.first_step()
        LOSS(model(x), y).backward()
        optimizer.second_step()
    assert min(later(recorder.ms("optimizer"))) > 1.45 * NAP_MS
    assert list(recorder.rows()["micro_batches"]) == [2] * STEPS


def test_operations_on_parameters_before_the_first_module_are_no_input(recorder: Recorder) -> None:
    """Copies of parameters that autograd records, as for an inner loop, are forward work, not a batch. The
    median step says so: on a busy machine a step that was not looked at may lose its core there."""
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(60):
        x = torch.randn(64, 64)
        copies = list(model.parameters())
        for _ in range(20):
            copies = [copy * 1.01 for copy in copies]
        (model(x).sum() + sum(copy.sum() for copy in copies)).backward()
        optimizer.step()
        optimizer.zero_grad()
    later_half = slice(30, None)
    forward, made = (median(recorder.ms(key)[later_half]) for key in ("forward", "input"))
    assert made < 0.3 * forward


class Scaled(Around):
    """Steps through a GradScaler, which skips steps whose gradients are not finite."""

    def step(self, closure: Any = None) -> Any:
        return self.scaler.step(self.inner)


def test_a_step_that_a_scaler_skips_inside_another_optimizer_is_a_step(recorder: Recorder) -> None:
    """The scaler's seam ends steps, so an optimizer around it must not decide that none was made."""
    model = nn.Linear(8, 1)
    optimizer = Scaled(torch.optim.SGD(model.parameters(), lr=0.01))
    optimizer.scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for step in range(STEPS):
        loss = LOSS(model(torch.randn(4, 8)), torch.zeros(4, 1)) * (float("inf") if step % 3 == 2 else 1.0)
        optimizer.scaler.scale(loss).backward()
        optimizer.step()
        optimizer.scaler.update()
        optimizer.inner.zero_grad()
    assert len(recorder.rows()) == STEPS


def test_a_module_with_a_call_of_its_own_is_forward(recorder: Recorder) -> None:
    """A class whose `__call__` never reaches torch's is timed like the others, also where it is compiled."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8))

        def __call__(self, x: Any) -> Any:
            return x * self.weight

    class Slow(Own):
        def __call__(self, x: Any) -> Any:
            spin(NAP_MS)
            return super().__call__(x)

    plain, model = Own.__call__, Slow()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(torch.randn(4 * STEPS, 8), batch_size=4)
    for x in loader:
        model(x).sum().backward()
        optimizer.step()
    assert min(later(recorder.ms("forward"))) > 0.9 * NAP_MS
    compiled = torch.compile(Own(), backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(2, 8)), torch.ones(2, 8))
    install.deactivate()
    assert Own.__call__ is plain
