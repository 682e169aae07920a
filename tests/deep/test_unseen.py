"""Training is the same with deep mode: results, random numbers, exceptions, compiled graphs, references."""

from __future__ import annotations

import gc
import sys
import traceback
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.deep.conftest import Layer3, Recorder, use_hand_clock
from traceml.capture import deep as deep_mode
from traceml.capture import deep_layers, deep_sample


class Dropping(nn.Module):
    """Random numbers in the forward pass, perhaps checkpointed."""

    def __init__(self, use_reentrant: bool | None = None) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.inner = nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.GELU())
        self.use_reentrant = use_reentrant

    def forward(self, x: torch.Tensor) -> Any:
        x = self.first(x)
        if self.use_reentrant is None:
            return self.inner(x)
        return checkpoint(self.inner, x, use_reentrant=self.use_reentrant)


def penalized(out: torch.Tensor) -> torch.Tensor:
    """A loss with a gradient inside: backward through backward."""
    (gradient,) = torch.autograd.grad(out.pow(2).sum(), out, create_graph=True)
    return out.sum() + gradient.pow(2).sum()


KINDS: dict[str, tuple[Callable[[], Any], Any]] = {
    "dropout": (Dropping, None),
    "reentrant": (lambda: Dropping(True), None),
    "not reentrant": (lambda: Dropping(False), None),
    "double backward": (Dropping, penalized),
    "bfloat16": (lambda: Dropping().bfloat16(), None),
    "lstm": (lambda: First(nn.LSTM(4, 8, num_layers=2, dropout=0.3)), None),
    "compiled": (lambda: torch.compile(Dropping(), backend="aot_eager"), None),
    "compiled in part": (lambda: nn.Sequential(torch.compile(nn.Linear(4, 8), backend="eager")), None),
}


class First(nn.Module):
    """The first result of a module that has several."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x)[0]


def trained(make: Callable[[], Any], loss: Any, steps: int = 10) -> tuple[list[bytes], bytes]:
    """The weights and the state of random numbers after a few steps."""
    torch.manual_seed(3)
    model = make()
    kind = next(model.parameters()).dtype
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        out = model(torch.randn(6, 4).to(kind))
        (out.sum() if loss is None else loss(out)).backward()
        optimizer.step()
    state = [value.detach().float().numpy().tobytes() for value in model.state_dict().values()]
    return state, torch.get_rng_state().numpy().tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_weights_and_random_numbers_are_bit_identical(deep: Recorder, kind: str) -> None:
    """The same training with no step sampled, and with every step sampled."""
    make, loss = KINDS[kind]
    deep.session.deep._stop()
    plain = trained(make, loss)
    deep.session.deep = deep_mode.Deep(
        torch, deep.session.switch, None, str(deep.folder / "recording" / "again.jsonl")
    )
    before = deep.session.step
    assert trained(make, loss) == plain
    lines = (deep.folder / "recording" / "again.jsonl").read_text().splitlines()
    assert len(lines) >= 5, f"{deep.session.step - before} steps"


def test_the_compiler_makes_the_same_graphs(deep: Recorder) -> None:
    """No graph more, no break more, and a note that what is inside cannot be told apart."""
    import torch._dynamo

    def count() -> dict[str, int]:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        deep.train(torch.compile(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), backend="aot_eager"), steps=6)
        counted = torch._dynamo.utils.counters
        return {**counted["stats"], **counted["frames"], "breaks": len(counted["graph_break"])}

    deep.session.deep._stop()
    plain = count()
    use_hand_clock(deep.session)
    assert count() == plain
    found = deep.found()
    assert any("is compiled" in note for note in found.notes)
    assert found.parameter_bytes == 80


def test_exceptions_pass_as_they_are(deep: Recorder) -> None:
    """The script's own object, no frame of ours; the step that failed is not recorded, later ones are."""
    failure, calls, raised = ValueError("mine"), 0, []

    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = Layer3(1, 2)

        def forward(self, x: torch.Tensor) -> Any:
            nonlocal calls
            calls += 1
            if calls == 6:
                raise failure
            return self.layer(x)

    model = nn.Sequential(Fails())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(12):
        try:
            deep.step(model, optimizer)
        except ValueError as problem:
            raised.append(problem)
    assert raised == [failure]
    assert failure.__context__ is None
    files = {Path(frame.filename).name for frame in traceback.extract_tb(failure.__traceback__)}
    assert not {name for name in files if name.startswith("deep")}
    assert deep.layers()["0.layer"].forward_ms == 1
    assert len(deep.samples()) >= 4


def test_nested_modules_as_deep_as_without_us(deep: Recorder) -> None:
    """We are not on the stack while a module runs: recursion goes as deep as in steps without a sample."""

    class Inner(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> Any:
            return self.inner(x)

    def deepest(sampled: bool) -> int:
        model: nn.Module = nn.Linear(4, 4)
        depth = 0
        deep.session.switch.layers = (
            deep_sample.Sample(torch, deep.session.switch, None, deep.session.deep._enclosing).callbacks
            if sampled
            else None
        )
        try:
            while True:
                model(torch.ones(1, 4))
                model, depth = Inner(model), depth + 1
        except RecursionError:
            return depth
        finally:
            deep.session.switch.layers = None

    before = sys.getrecursionlimit()
    sys.setrecursionlimit(400)
    try:
        assert abs(deepest(True) - deepest(False)) <= 1
    finally:
        sys.setrecursionlimit(before)


def test_nothing_of_the_model_is_kept_alive(deep: Recorder) -> None:
    """After a sampled step, and in the middle of one that never ends."""
    model = nn.Sequential(Layer3(1, 2))
    optimizer = deep.train(model)
    assert deep.session.switch.layers is not None, "a step is being sampled"
    model(torch.ones(2, 4)).sum().backward()
    kept = [weakref.ref(model), weakref.ref(model[0].linear), weakref.ref(model[0].linear.weight)]
    del model, optimizer
    gc.collect()
    assert [one() for one in kept] == [None] * 3


def test_no_hook_is_on_the_model(deep: Recorder) -> None:
    """Not even in a sampled step: a model that is copied or saved in there has nothing of ours."""
    model = nn.Sequential(Layer3(1, 2))
    seen: list[Any] = []

    def look(out: torch.Tensor) -> torch.Tensor:
        for module in model.modules():
            seen.extend(v for k, v in vars(module).items() if "hooks" in k and v)
            seen.extend(hook for hook in [module.__dict__.get("forward")] if hook)
        return out.sum()

    deep.train(model, loss=look)
    assert deep.samples()
    assert seen == []


def test_hooks_on_nodes_are_gone_after_backward(deep: Recorder) -> None:
    """A graph that is kept and used again, in a later step, calls nothing of ours."""
    model = Layer3(1, 2)
    optimizer = deep.train(model)
    sample = deep.session.deep._sample
    out = model(torch.ones(2, 4)).sum()
    out.backward(retain_graph=True)
    optimizer.step()
    trail = list(sample.trail)
    deep.session.switch.layers = None
    out.backward()
    assert sample.trail == trail
    assert len(trail) > 4


def test_a_failure_of_ours_ends_deep_mode_only(
    deep: Recorder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line; training and step times go on."""

    def broken(*_: Any) -> Any:
        raise KeyError("ours")

    monkeypatch.setattr(deep_layers, "nodes_of", broken)
    deep.train(Layer3(1, 2), steps=8)
    assert deep.session.step >= 8
    assert deep.session.switch.layers is None
    assert deep.samples() == []
    assert "deep mode failed (KeyError: 'ours'); training goes on" in capsys.readouterr().err
