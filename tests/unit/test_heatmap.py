"""Ranks by steps for a picture: small, nothing hidden, and the slow rank is the one that stands out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.unit import made
from traceml.analyze.metrics import FEWEST_BINS, MOST_BINS, MOST_LIVE_ROWS, MOST_ROWS, heatmap
from traceml.analyze.window import PHASE_KEYS, Floats, Window
from traceml.schema.summary import Heatmap

SYNC = PHASE_KEYS.index("sync")


def window(own_ms: Floats, sync_ms: Floats | float = 0.0) -> Window:
    """Ranks with these own times and waits for other ranks, (rank, step)."""
    ranks, count = own_ms.shape
    one = made.window(count, first_step=11)
    phases = np.repeat(one.phases, ranks, axis=0)
    phases[:, :, SYNC] = np.broadcast_to(sync_ms, own_ms.shape) * 1e6
    step_ns = own_ms * 1e6 + phases[:, :, SYNC]
    return replace(one, ranks=tuple(range(ranks)), phases=phases, step_ns=step_ns)


def test_each_rank_and_step_has_its_cell() -> None:
    """In a small run nothing is put together."""
    own = np.arange(12.0).reshape(3, 4) + 1
    found = heatmap(window(own), final=True)
    assert found == Heatmap([0, 1, 2], [0, 1, 2], [11, 12, 13, 14], own.tolist())


def test_waiting_for_other_ranks_does_not_count() -> None:
    """All steps of ranks that wait for each other are equally long; only the slow one's own work is."""
    own = np.full((4, 10), 5.0)
    own[2] = 30.0
    found = heatmap(window(own, 30.0 - own), final=True)
    assert [row[0] for row in found.own_ms] == [5.0, 5.0, 30.0, 5.0]


@pytest.mark.parametrize(("final", "most"), [(True, MOST_ROWS), (False, MOST_LIVE_ROWS)])
def test_thousands_of_ranks_keep_the_slow_one(final: bool, most: int) -> None:
    """Neighbours share a row, which shows the slowest of them and names it."""
    own = np.full((4096, 150), 10.0)
    own[1234] = 20.0
    found = heatmap(window(own), final)
    assert (len(found.own_ms), len(found.steps)) == (most, FEWEST_BINS)
    slow = [at for at, row in enumerate(found.own_ms) if max(v or 0 for v in row) > 15]
    assert [found.worst_ranks[at] for at in slow] == [1234]
    assert found.first_ranks[slow[0]] <= 1234 < found.first_ranks[slow[0] + 1]
    assert found.own_ms[slow[0]] == [20.0] * FEWEST_BINS


def test_one_long_step_is_not_hidden_by_its_neighbours() -> None:
    """A rank that stalls once shows in its row even if another rank of the row is slower on the whole."""
    own = np.full((4096, 60), 10.0)
    own[0] = 12.0
    own[1, 50] = 100.0
    found = heatmap(window(own), final=True)
    assert (found.worst_ranks[0], found.own_ms[0][50]) == (0, 100.0)
    assert found.own_ms[0][49] == 12.0


def test_long_run_of_few_ranks_has_more_bins() -> None:
    """The fewer ranks, the finer the steps."""
    assert len(heatmap(window(np.full((4, 1000), 10.0)), final=True).steps) == MOST_BINS


def test_numbers_are_short() -> None:
    """Three digits of the smallest value: a picture shows no more, and the file stays small."""
    own = np.array([[0.0123456, 0.0234567], [12.345678, 0.0234567]])
    assert heatmap(window(own), final=True).own_ms == [[0.0123, 0.0235], [12.3457, 0.0235]]


def test_no_steps_give_no_cells() -> None:
    """A run without steps has an empty map."""
    assert heatmap(window(np.zeros((2, 0))), final=True) == Heatmap()
