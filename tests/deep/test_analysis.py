"""From sampled steps to the table: outliers, ranks, and what the notes say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.deep import made_layers
from tests.unit import made
from traceml.analyze.layers import layers_section
from traceml.analyze.summarize import summarize
from traceml.schema.recorded import RunFacts


def test_layers_that_take_longest_come_first() -> None:
    """Both passes together decide; shares are of each pass."""
    found = layers_section({0: made_layers.rank([made_layers.sample()])}, 30.0)
    assert found is not None
    assert [layer.path for layer in found.layers] == ["head", "blocks.1", "blocks.0", "embed", "(Net)"]
    assert (found.forward_ms, found.backward_ms) == (10, 20)
    assert (found.layers[0].forward_share, found.layers[0].share) == (0.4, 0.4)
    assert found.cost_share == pytest.approx(0.4 / (16 * 30))


def test_a_pause_in_one_sample_does_not_count() -> None:
    """One of eight samples was interrupted for a second: the layer keeps its usual time."""
    usual = [made_layers.sample(step) for step in range(8, 15)]
    paused = made_layers.sample(15, forward=[0, 1000, 2, 3, 4])
    found = layers_section({0: made_layers.rank([*usual, paused])}, 30.0)
    assert found is not None
    assert {layer.path: layer.forward_ms for layer in found.layers}["embed"] == 1


def test_the_rank_on_which_a_layer_takes_longer_is_named() -> None:
    """The table has the median rank; the note names layer and rank."""
    slow = [made_layers.sample(step, backward=[0, 2, 4, 40, 8]) for step in range(8, 12)]
    usual = [made_layers.sample(step) for step in range(8, 12)]
    ranks = {n: made_layers.rank(slow if n == 2 else usual, n, 4) for n in range(4)}
    found = layers_section(ranks, 60.0)
    assert found is not None
    worst = {layer.path: layer for layer in found.layers}["blocks.1"]
    assert (worst.backward_ms, worst.worst.rank, worst.worst.value) == (6, 2, 43)
    assert found.notes == ["blocks.1 takes 43.0 ms on r2, 9.00 ms on the median rank."]


def test_ranks_that_hardly_differ_are_not_named() -> None:
    """A wrong name is worse than none: neither small differences nor few samples name a rank."""
    usual = [made_layers.sample(step) for step in range(8, 12)]
    little = [made_layers.sample(step, backward=[0, 2, 4, 7, 8]) for step in range(8, 12)]
    much = [made_layers.sample(8, backward=[0, 2, 4, 60, 8])]
    for other in (little, much):
        found = layers_section({0: made_layers.rank(usual, 0, 2), 1: made_layers.rank(other, 1, 2)}, 60.0)
        assert found is not None
        assert found.notes == []


def test_without_deep_mode_there_is_no_section() -> None:
    """`layers` is null, not an empty table."""
    assert summarize(made.run(made.rank(made.steps(50, forward=10))), RunFacts("demo")).layers is None


def test_cost_of_sampling_is_part_of_what_traceml_says_it_costs() -> None:
    """The line at the end of the text has both: recording, and samples."""
    plain = summarize(made.run(made.rank(made.steps(100, forward=10, backward=20))), RunFacts("demo"))
    deep = summarize(made.run(made_layers.rank([made_layers.sample()])), RunFacts("demo"))
    assert plain.overhead.us_per_step is not None
    assert deep.overhead.us_per_step == pytest.approx(plain.overhead.us_per_step + 400 / 16)


def test_old_torch_has_no_activations() -> None:
    """Null with a note, not 0."""
    old = replace(made_layers.sample(), reads_saved=False)
    found = layers_section({0: made_layers.rank([old])}, 30.0)
    assert found is not None
    assert found.activation_bytes is None
    assert all(layer.activation_bytes is None for layer in found.layers)
    assert any("no activations" in note for note in found.notes)
