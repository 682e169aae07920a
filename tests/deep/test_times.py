"""Whose time it is: known amounts of work on a hand-moved clock, and exactly these in the recording."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.deep.conftest import HandClock, Layer3, Recorder, Work
from traceml.capture import deep_layers


class Nested(nn.Module):
    """Two levels, with work in a layer, in a container and between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Layer3(1, 2)
        self.body = nn.Sequential(Layer3(3, 4), nn.ReLU(), Layer3(5, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Work.apply(self.body(self.first(x)), 7, 8)


def test_time_is_that_of_the_innermost_layer_and_totals_have_the_rest(deep: Recorder) -> None:
    """Forward and backward: a layer's own time, and with the layers that it calls."""
    deep.train(Nested())
    found = deep.layers()
    own = {path: [layer.forward_ms, layer.backward_ms] for path, layer in found.items()}
    assert own["first"] == [1, 2]
    assert own["body.0"] == [3, 4]
    assert own["body.2"] == [5, 6]
    assert own["(Nested)"] == [7, 8]
    assert own["body"] == own["body.1"] == own["first.linear"] == [0, 0]
    totals = {path: [layer.forward_total_ms, layer.backward_total_ms] for path, layer in found.items()}
    assert totals["(Nested)"] == [16, 20]
    assert totals["body"] == [8, 10]
    assert totals["first"] == [1, 2]
    assert found["body.2"].forward_share == 5 / 16
    assert found["body.2"].backward_share == 6 / 20


def test_loss_outside_of_modules_is_backward_of_no_layer(deep: Recorder) -> None:
    """A functional loss is not charged to the last layer."""
    deep.train(Layer3(1, 2), loss=lambda out: Work.apply(out, 3, 4).sum())
    section = deep.found()
    assert (section.forward_ms, section.backward_ms, section.outside_ms) == (1, 6, 4)
    assert deep.layers()["(Layer3)"].backward_ms == 2


def test_a_shared_module_is_one_layer_with_two_calls(deep: Recorder) -> None:
    """Times are summed over its calls, parameters counted once; the caller's total has its own call."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Sequential(Layer3(1, 2))
            self.b = nn.Sequential(self.a[0], Layer3(10, 20))

        def forward(self, x: torch.Tensor) -> Any:
            return self.b(self.a(x))

    deep.train(Twice())
    found = deep.layers()
    assert set(found) == {"(Twice)", "a", "a.0", "a.0.linear", "b", "b.1", "b.1.linear"}
    assert (found["a.0"].calls, found["a.0"].forward_ms, found["a.0"].backward_ms) == (2, 2, 4)
    assert (found["a"].forward_total_ms, found["b"].forward_total_ms) == (1, 11)
    assert (found["a"].backward_total_ms, found["b"].backward_total_ms) == (2, 22)
    assert found["(Twice)"].parameter_total_bytes == 2 * 80


def test_recursion_counts_inner_calls_once(deep: Recorder) -> None:
    """A module that calls itself: its total is the outer call's, not more than the whole."""

    class Tree(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.leaf = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, depth: int = 2) -> Any:
            inner = self(x, depth - 1) if depth else self.leaf(x)
            return Work.apply(inner, 1, 2)

    deep.train(Tree())
    found = deep.layers()["(Tree)"]
    assert (found.calls, found.forward_ms, found.forward_total_ms, found.backward_total_ms) == (3, 3, 3, 6)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_recomputation_is_not_counted_as_forward(deep: Recorder, use_reentrant: bool) -> None:
    """Under checkpointing a layer's forward counts once; what is computed again in backward is apart."""

    class Saving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kept, self.again, self.tail = Layer3(1, 2), nn.Sequential(Layer3(3, 4), nn.Tanh()), nn.ReLU()

        def forward(self, x: torch.Tensor) -> Any:
            return self.tail(checkpoint(self.again, self.kept(x), use_reentrant=use_reentrant))

    deep.train(Saving())
    found = deep.layers()
    again, kept = found["again.0"], found["kept"]
    assert (again.calls, again.forward_ms, again.recompute_ms, again.backward_ms) == (1, 3, 3, 4)
    assert (kept.forward_ms, kept.recompute_ms, kept.backward_ms) == (1, 0, 2)
    assert found["again"].recompute_total_ms == found["(Saving)"].recompute_total_ms == 3
    assert found["(Saving)"].backward_total_ms == 6
    section = deep.found()
    assert (section.forward_ms, section.backward_ms, section.recompute_ms) == (4, 9, 3)
    assert any("computed again in backward" in note for note in section.notes)


def test_200_layers_are_all_there(deep: Recorder) -> None:
    """A ModuleList, which is never called itself: each layer has its own times."""

    class Deep200(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Layer3(index, 2 * index) for index in range(200))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    deep.train(Deep200(), steps=5)
    section = deep.found()
    assert section.count == 401
    found = {layer.path: layer for layer in section.layers}
    for index in range(1, 200):
        layer = found[f"layers.{index}"]
        assert (layer.forward_ms, layer.backward_ms) == (index, 2 * index)
    assert section.forward_ms == sum(range(200))


def test_micro_batches_add_up(deep: Recorder) -> None:
    """With gradient accumulation a step has several passes: times add up, activations are those of one."""
    model = Layer3(1, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(6):
        optimizer.zero_grad()
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    found = deep.layers()
    assert (found["(Layer3)"].calls, found["(Layer3)"].forward_ms, found["(Layer3)"].backward_ms) == (3, 3, 6)
    assert found["(Layer3)"].activation_bytes == 2 * 4 * 4


def test_validation_is_not_counted(deep: Recorder) -> None:
    """Passes without gradients, and evaluation with them, are no part of a layer's step."""
    model = Layer3(1, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(6):
        deep.step(model, optimizer)
        model.eval()
        with torch.no_grad():
            model(torch.ones(2, 4))
        model(torch.ones(2, 4))  # somebody forgot no_grad
        model.train()
    assert deep.layers()["(Layer3)"].forward_ms == 1


def test_waiting_after_the_last_gradient_is_no_layers_time(deep: Recorder) -> None:
    """What backward does once all gradients are there (with DDP: waiting) is not the first layer's."""
    model = Layer3(1, 2)

    def slow_end(_parameter: Any) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(wait)

    def wait() -> None:
        HandClock.now += 50_000_000

    model.linear.weight.register_post_accumulate_grad_hook(slow_end)
    deep.train(model)
    section = deep.found()
    assert section.backward_ms == 2


def test_two_models_have_their_own_names(deep: Recorder) -> None:
    """The larger one's paths stand alone, the other's begin with its type."""
    judge = nn.Sequential(Layer3(3, 4))
    deep.train(Nested(), loss=lambda out: judge(out).sum())
    found = deep.layers()
    assert found["first"].forward_ms == 1
    assert found["Sequential.0"].forward_ms == 3
    assert found["Sequential.0"].backward_ms == 4


def test_layers_are_named_by_the_module_whose_method_calls_them(deep: Recorder) -> None:
    """As in Lightning: `training_step` calls parts of a module that is never called itself."""

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(Layer3(1, 2), nn.ReLU())

        def training_step(self, x: torch.Tensor) -> Any:
            return self.net(x).sum()

    model = Module()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(6):
        optimizer.zero_grad()
        model.training_step(torch.ones(2, 4)).backward()
        optimizer.step()
    assert deep.layers()["net.0"].backward_ms == 2


def test_a_model_that_is_replaced_gives_way(deep: Recorder) -> None:
    """The layers of the new model are shown, with a note, once it has been sampled three times."""
    deep.train(Nested(), steps=10)
    deep.train(nn.Sequential(Layer3(9, 9)), steps=6)
    section = deep.found()
    assert {layer.path for layer in section.layers} == {"(Sequential)", "0", "0.linear"}
    assert section.forward_ms == 9
    assert any("replaced" in note for note in section.notes)


def test_a_layer_that_runs_in_some_steps_only_counts_in_part(deep: Recorder) -> None:
    """A layer that runs in some steps, as with stochastic depth: its time per step is that of its calls times
    how often it runs."""

    class Sometimes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.always, self.often, self.count = Layer3(1, 1), Layer3(8, 8), 0

        def forward(self, x: torch.Tensor) -> Any:
            self.count += 1
            x = self.always(x)
            return self.often(x) if self.count % 4 else x

    deep.train(Sometimes(), steps=4 + 16)
    found = deep.layers()
    assert found["always"].forward_ms == 1
    assert found["often"].forward_ms == pytest.approx(6, abs=0.6)


def test_large_graphs_are_left_alone(deep: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph with too many nodes is left out: no sample, and training goes on."""
    monkeypatch.setattr(deep_layers, "MOST_NODES", 2)
    deep.train(Nested())
    assert deep.samples() == []
    assert deep.session.step >= 8
