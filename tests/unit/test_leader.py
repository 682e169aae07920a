"""Which optimizer's step ends a training step, for one, several, retired and replaced optimizers."""

from __future__ import annotations

import gc

import pytest

from traceml.capture.leading_optimizer import ENDS_STEP, EXTENDS_STEP, NOTHING, LeadingOptimizer


class Optimizer:
    """Anything that can step."""


def steps(leader: LeadingOptimizer, *optimizers: Optimizer) -> list[int]:
    return [leader.stepped(o) for o in optimizers]


def test_one_optimizer_ends_every_step() -> None:
    """The common case, with or without batches being announced."""
    only = Optimizer()
    assert steps(LeadingOptimizer(), *[only] * 20) == [ENDS_STEP] * 20


def test_the_only_optimizer_is_known_after_a_while() -> None:
    """After a few rounds the only optimizer is known as the leader, until another one steps."""
    leader, only = LeadingOptimizer(), Optimizer()
    steps(leader, *[only] * 6)
    assert leader.only == id(only)
    leader.stepped(Optimizer())
    assert leader.only == 0


@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_cycle_of_optimizers_is_one_step(count: int) -> None:
    """GAN: a step is one round of all optimizers; from the second round on, the last one ends it."""
    leader, cycle = LeadingOptimizer(), [Optimizer() for _ in range(count)]
    assert steps(leader, *cycle) == [ENDS_STEP, *[EXTENDS_STEP] * (count - 1)]
    leader.new_batch()
    for _ in range(10):
        assert steps(leader, *cycle) == [*[NOTHING] * (count - 1), ENDS_STEP]


def test_a_cycle_without_loader_is_found_by_repetition() -> None:
    """Without batches the first optimizer coming again closes the first cycle."""
    leader, a, b = LeadingOptimizer(), Optimizer(), Optimizer()
    assert steps(leader, a, b) == [ENDS_STEP, EXTENDS_STEP]
    assert leader.undecided
    assert steps(leader, a, b, a, b) == [NOTHING, ENDS_STEP, NOTHING, ENDS_STEP]
    assert not leader.undecided


def test_a_discriminator_that_steps_more_often_is_part_of_the_step() -> None:
    """WGAN: five steps of the critic for one of the generator are one training step."""
    leader, critic, generator = LeadingOptimizer(), Optimizer(), Optimizer()
    steps(leader, critic, generator)
    leader.new_batch()
    for _ in range(10):
        assert steps(leader, *[critic] * 5, generator) == [NOTHING] * 5 + [ENDS_STEP]


def test_a_late_second_optimizer_does_not_split_steps() -> None:
    """An optimizer that joins later, before the leader, adds no step of its own."""
    leader, main, late = LeadingOptimizer(), Optimizer(), Optimizer()
    steps(leader, *[main] * 10)
    assert [steps(leader, late, main) for _ in range(5)] == [[NOTHING, ENDS_STEP]] * 5


def whole(leader: LeadingOptimizer, *optimizers: Optimizer) -> list[int]:
    """Steps without batches, each with a backward pass of its own."""
    return [leader.stepped(o, has_own_backward=True) for o in optimizers]


def test_the_next_stage_of_a_training_loses_no_step() -> None:
    """Forward-forward: another optimizer goes on, with its own backward passes, while the old one lives."""
    leader, old, new, last = LeadingOptimizer(), Optimizer(), Optimizer(), Optimizer()
    assert whole(leader, *[old] * 10, *[new] * 10, *[last] * 10) == [ENDS_STEP] * 30


def test_a_row_that_was_written_early_grows_if_the_leader_follows() -> None:
    """The newcomer was the begin of a cycle: once its row is superseded, then it is known."""
    leader, main, late = LeadingOptimizer(), Optimizer(), Optimizer()
    whole(leader, *[main] * 10)
    assert whole(leader, late, main) == [ENDS_STEP, EXTENDS_STEP]
    assert [whole(leader, late, main) for _ in range(5)] == [[NOTHING, ENDS_STEP]] * 5


def test_a_retired_leader_is_replaced() -> None:
    """The second stage of a training uses another optimizer: after a short patience it leads."""
    leader, old, new = LeadingOptimizer(), Optimizer(), Optimizer()
    steps(leader, *[old] * 10)
    answers = steps(leader, *[new] * 10)
    assert answers[0] == NOTHING
    assert answers[3:] == [ENDS_STEP] * 7


def test_a_leader_that_is_gone_is_replaced_at_once() -> None:
    """A collected optimizer never steps again: the next one leads without patience."""
    leader, old = LeadingOptimizer(), Optimizer()
    steps(leader, *[old] * 10)
    new = Optimizer()
    del old
    gc.collect()
    assert steps(leader, new, new) == [ENDS_STEP, ENDS_STEP]


def test_a_batch_before_any_step_decides_nothing() -> None:
    """Fetching is no step: the first optimizer still opens the first cycle."""
    leader, a, b = LeadingOptimizer(), Optimizer(), Optimizer()
    leader.new_batch()
    assert leader.undecided
    assert steps(leader, a, b) == [ENDS_STEP, EXTENDS_STEP]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_round_is_counted_once(count: int) -> None:
    """However many optimizers, n rounds are n steps: none lost, none counted twice."""
    leader, cycle = LeadingOptimizer(), [Optimizer() for _ in range(count)]
    ended = 0
    for _ in range(50):
        ended += steps(leader, *cycle).count(ENDS_STEP)
        leader.new_batch()
    assert ended == 50


def test_optimizers_of_unequal_frequency_are_described() -> None:
    """Five critic steps per generator step: the words say which one ends a step, and how many do not."""
    leader, critic, generator = LeadingOptimizer(), Optimizer(), Optimizer()
    for _ in range(6):
        steps(leader, *[critic] * 5, generator)
    assert leader.other_steps > 0
    assert f"others stepped {leader.other_steps} times" in leader.describe()
    assert "Optimizer" in leader.describe()


def test_an_optimizer_made_later_takes_over_at_once() -> None:
    """Folds without a loader: the old optimizer lives on, a new one is made and steps; no step is lost."""
    leader, old, new = LeadingOptimizer(), Optimizer(), Optimizer()
    steps(leader, *[old] * 6)
    leader.made(new)
    assert steps(leader, *[new] * 6) == [ENDS_STEP] * 6


def test_an_optimizer_that_joins_later_does_not_split_steps() -> None:
    """Unfreezing: a second optimizer is made while the first goes on; a step is one round of both."""
    for joins_first in (False, True):
        leader, first, second = LeadingOptimizer(), Optimizer(), Optimizer()
        steps(leader, *[first] * 6)
        leader.made(second)
        pair = [second, first] if joins_first else [first, second]
        assert sorted(steps(leader, *pair)) == [NOTHING, ENDS_STEP]
        for _ in range(6):
            assert sorted(steps(leader, *pair)) == [NOTHING, ENDS_STEP]
