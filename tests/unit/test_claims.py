"""What other nodes claim is not believed against node 0's own ranks, and never costs node 0 its summary."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.unit import made
from traceml.analyze.recordings import believed
from traceml.analyze.summarize import summarize
from traceml.schema.recorded import RankRecording, RunFacts, RunRecording

FACTS = RunFacts("demo", status="completed", exit_code=0, begin_ns=0, end_ns=10**12)


def rank(number: int, node: int = 0, world_size: int = 2, steps: int = 40, at_s: int = 0) -> RankRecording:
    """A rank with ordinary steps that began to record at this second."""
    rows = made.steps(steps, input=2.0, forward=4.0, backward=3.0, optimizer=1.0)
    for column in ("begin_ns", "end_ns"):
        rows[column] += at_s * 10**9
    pid = 100 * node + number + at_s
    found = made.rank(rows, number, clock_ns=at_s * 10**9, world_size=world_size, pid=pid)
    return replace(found, node=node)


@pytest.mark.parametrize("size", [3, 999_999, 2_000_000_000])
def test_another_size_of_the_run_is_set_aside(size: int) -> None:
    """Node 0's ranks say 2. What says otherwise is left out and named, and no list grows with the claim."""
    found = summarize(RunRecording([rank(0), rank(1, 1), rank(1, 2, size)]), FACTS)
    assert found.run.world_size == 2
    assert found.run.ranks.used == [0, 1]
    assert found.run.ranks.lost == []
    assert any(note.startswith("Set aside: r1 of node 2") for note in found.run.notes)
    assert found.run.recorded_steps == 120


def test_an_impossible_world_size_of_our_own_is_noted() -> None:
    """WORLD_SIZE has another meaning here: the run counts as one process, and a note says why."""
    found = summarize(RunRecording([rank(0, world_size=2_000_000_000)]), FACTS)
    assert (found.run.world_size, found.run.steps.total) == (1, 40)
    (note,) = (note for note in found.run.notes if "WORLD_SIZE" in note)
    assert "2,000,000,000" in note


def test_a_rank_that_does_not_exist_is_set_aside() -> None:
    """Rank 2 of 2, on another node."""
    kept, notes = believed([rank(0), rank(2, 1)])
    assert [r.rank for r in kept] == [0]
    assert notes == ["Set aside: r2 of node 1 (there is no such rank among 2)."]


def test_node_0_is_believed_about_its_own_rank() -> None:
    """Another node that also claims rank 0 is left out, however many steps it sends."""
    found = summarize(RunRecording([rank(0, steps=30), rank(1, 1), rank(0, 2, steps=400)]), FACTS)
    assert found.run.totals["steps"] == 30
    assert any("2 processes trained as r0 at the same time" in note for note in found.run.notes)


def test_a_node_with_a_wrong_clock_starts_no_new_attempt() -> None:
    """Its rank appears again in a hundred years: the attempt with node 0's ranks is analyzed."""
    found = summarize(RunRecording([rank(0), rank(1, 1), rank(1, 1, at_s=3_000_000_000)]), FACTS)
    assert found.run.ranks.used == [0, 1]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("end_ns", -1),
        ("begin_ns", np.iinfo(np.int64).min),
        ("step", -5),
        ("forward", 2**62),
        ("end_ns", 2**62),
    ],
)
def test_rows_that_cannot_be_are_set_aside(column: str, value: int) -> None:
    """One impossible number and the whole recording is left out: its means would be nonsense."""
    broken = rank(1, 1)
    broken.rows[column][7] = value
    found = summarize(RunRecording([rank(0), broken]), FACTS)
    assert found.run.ranks.used == [0]
    assert any("impossible numbers" in note for note in found.run.notes)


def test_without_ranks_of_node_0_the_majority_counts() -> None:
    """A node 0 that does not train still gets a summary of the others."""
    kept, notes = believed([rank(0, 1), rank(1, 2), rank(1, 3, world_size=7)])
    assert [r.node for r in kept] == [1, 2]
    assert len(notes) == 1


def test_elastic_restarts_may_change_the_size() -> None:
    """Node 0 trained with 2 ranks, then with 1: both sizes are the run's."""
    kept, notes = believed([rank(0), rank(1, 1), rank(0, world_size=1, at_s=50)])
    assert (len(kept), notes) == (3, [])
