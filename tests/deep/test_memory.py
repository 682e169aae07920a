"""Bytes of layers: parameters, gradients, and what each one keeps for backward, exact by tensor sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.deep.conftest import Recorder
from traceml.capture.deep_layers import Held


def test_each_layer_has_its_parameters_gradients_and_activations(deep: Recorder) -> None:
    """A linear layer keeps its input, a tanh its output, a ReLU what a tanh has not kept before it."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 16, bias=False), nn.ReLU())
    deep.train(model)
    found = deep.layers()
    rows = {path: [x.parameter_bytes, x.gradient_bytes, x.activation_bytes] for path, x in found.items()}
    assert rows["0"] == [4 * 8 * 4 + 8 * 4, 4 * 8 * 4 + 8 * 4, 2 * 4 * 4]  # its input
    assert rows["1"] == [0, 0, 2 * 8 * 4]  # its output, which the next layer shares
    assert rows["2"] == [8 * 16 * 4, 8 * 16 * 4, 0]
    assert rows["3"] == [0, 0, 2 * 16 * 4]
    whole = found["(Sequential)"]
    assert whole.parameter_total_bytes == sum(p.nbytes for p in model.parameters())
    assert whole.activation_total_bytes == 32 + 64 + 128


def test_frozen_layers_have_no_gradients(deep: Recorder) -> None:
    """Parameters that are not trained take memory, their gradients do not."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].requires_grad_(False)
    deep.train(model)
    found = deep.layers()
    assert (found["0"].parameter_bytes, found["0"].gradient_bytes, found["1"].gradient_bytes) == (80, 0, 80)


def test_a_parameter_that_two_layers_share_counts_once(deep: Recorder) -> None:
    """As with tied embeddings: for the first of the two layers."""
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    deep.train(model)
    found = deep.layers()
    assert (found["0"].parameter_bytes, found["1"].parameter_bytes) == (64, 0)
    assert deep.found().parameter_bytes == deep.found().gradient_bytes == 64


def test_modules_that_are_never_called_belong_to_the_layer_around_them(deep: Recorder) -> None:
    """MultiheadAttention uses the weights of `out_proj` without calling it."""

    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

        def forward(self, x: torch.Tensor) -> Any:
            return self.attention(x[None], x[None], x[None])[0]

    model = Attends()
    deep.train(model)
    found = deep.layers()
    assert set(found) == {"(Attends)", "attention"}
    assert found["attention"].parameter_bytes == sum(p.nbytes for p in model.parameters())


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointed_layers_keep_nothing(deep: Recorder, use_reentrant: bool) -> None:
    """Their activations are made again in backward; nothing is unpacked, so nothing is computed for us."""
    calls = []

    class Saving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kept = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
            self.again = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

        def inner(self, x: torch.Tensor) -> Any:
            calls.append(1)
            return torch.tanh(self.again(x))  # a function of the model's own inside, too

        def forward(self, x: torch.Tensor) -> Any:
            return checkpoint(self.inner, self.kept(x), use_reentrant=use_reentrant)

    deep.train(Saving(), steps=6)
    assert len(calls) == 12  # once in forward and once in backward, as without us
    found = deep.layers()
    assert found["kept.1"].activation_bytes == 2 * 4 * 4
    assert found["again.0"].activation_bytes == found["again.1"].activation_bytes == 0


def test_packed_tensors_are_never_unpacked_for_us(deep: Recorder) -> None:
    """Hooks of the script (offloading to the CPU, compression) run as often as without us."""
    model, unpacked = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), []

    def unpack(tensor: torch.Tensor) -> torch.Tensor:
        unpacked.append(1)
        return tensor

    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    counts = []
    for _ in range(6):
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
            deep.step(model, optimizer)
        counts.append(len(unpacked))
        unpacked.clear()
    assert len(set(counts)) == 1
    assert deep.found().activation_bytes == 0  # what they hold now is the hooks' matter


def test_a_part_of_a_large_tensor_counts_as_that_part() -> None:
    """A batch that is a view of a dataset is not as large as the dataset; views never exceed the whole."""
    data = torch.zeros(1000, 4)
    held = Held([])
    assert held.add(data[:10]) == 10 * 4 * 4
    assert held.add(data[:10]) == 0  # the same again
    assert held.add(data[10:20]) == 10 * 4 * 4
    assert held.add(torch.zeros(1).expand(1000)) == 4
    assert Held([data.untyped_storage()._cdata]).add(data) == 0  # a parameter
    assert held.add(torch.zeros(3, 3).to_sparse()) == 0  # has no storage
