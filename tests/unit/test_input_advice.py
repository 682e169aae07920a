"""What is advised about input: never what would make the training slower. On hand-made windows."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.unit.made import every, window
from traceml.analyze.cores import CoreUse
from traceml.analyze.diagnose import choose_primary, diagnose_time
from traceml.schema.summary import Primary

IDLE = CoreUse(cores=8, run_busy=0.3, others_busy=0.0)
COMPUTES = CoreUse(cores=8, run_busy=0.9, others_busy=0.0)
"""As many idle cores, beside a model that computes most of the time."""


def verdict(use: CoreUse = IDLE, workers: int = 0, **phases: Any) -> Primary:
    made = window(core_use=use, workers=workers, **phases)
    found = choose_primary(diagnose_time(made), [], [], float(made.step_ns.mean()) / 1e6)
    assert found.kind == "INPUT_BOUND"
    return found


def test_number_of_workers_hides_the_input() -> None:
    """74 ms of input next to 9 ms of model work, idle cores: 8 workers, and the gain is a promise."""
    found = verdict(input=74.0, forward=9.0)
    assert "(DataLoader with num_workers=8)" in found.action
    assert found.potential_speedup == pytest.approx(83 / 10)
    assert found.potential_is_bound is False


@pytest.mark.parametrize(("waited", "promised"), [(0.09, True), (0.11, False)])
def test_gain_is_promised_only_on_calm_cores(waited: float, promised: bool) -> None:
    """If threads wait for a core a tenth of the time, the gain is at most that."""
    use = CoreUse(cores=8, run_busy=0.3, others_busy=0.0, wait_share=waited)
    found = verdict(use, input=74.0, forward=9.0)
    assert found.potential_is_bound is not promised
    assert ("try to load batches" in found.action) is not promised


@pytest.mark.parametrize(("input_ms", "workers"), [(3.9, False), (4.1, True)])
def test_workers_need_an_input_of_four_hand_overs(input_ms: float, workers: bool) -> None:
    """A hand-over takes 1 ms."""
    action = verdict(input=input_ms, forward=10.0).action
    assert ("num_workers=1" in action) is workers
    assert ("loader workers would cost more than they save" in action) is not workers


def test_small_share_of_input_is_not_blamed_on_the_cores() -> None:
    """11 % of the step is input, and cores are idle: a worker hides it."""
    assert "(DataLoader with num_workers=1)" in verdict(COMPUTES, input=5.6, forward=44.4).action


def test_workers_that_compute_are_limited_by_the_cores() -> None:
    """Input that computes: two cores make a step of 100 ms CPU time at most twice as fast."""
    found = verdict(CoreUse(cores=2, run_busy=1.0, others_busy=0.0), input=90.0, forward=10.0)
    assert "num_workers=2" in found.action
    assert found.potential_speedup == pytest.approx(100 / 51)


@pytest.mark.parametrize("workers", [0, 2])
def test_cheap_batches_get_no_workers(workers: int) -> None:
    """0.3 ms of input in a step of 0.9 ms: the hand-over of a worker costs more than that."""
    found = verdict(workers=workers, input=0.3, forward=0.6)
    assert ("workers would cost more" if not workers else "try num_workers=0") in found.action
    assert "larger batches" in found.action
    assert found.potential_is_bound is True


def test_workers_that_nearly_keep_up_are_kept() -> None:
    """Three workers hide most of what a batch takes: without them, the whole step would wait for it."""
    action = verdict(COMPUTES, workers=3, input=2.1, forward=14.0).action
    assert "num_workers" not in action
    assert "fewer workers" not in action
    assert "larger batches" in action


def test_cores_that_other_work_keeps_busy_cost_no_workers() -> None:
    """Two workers that wait for storage, while other processes have the cores: one would be slower."""
    others = CoreUse(cores=2, run_busy=0.3, others_busy=1.6, wait_share=0.2, workers=2)
    action = verdict(others, workers=2, input=11.5, forward=3.0).action
    assert "num_workers=1" not in action


@pytest.mark.parametrize(("workers", "words"), [(0, "would only compete"), (4, "try num_workers=1, or ")])
def test_busy_cores_get_no_more_workers(workers: int, words: str) -> None:
    """Four workers keep both cores busy: more of them would not help, fewer may."""
    busy = CoreUse(cores=2, run_busy=1.95, others_busy=0.05, workers=workers)
    found = verdict(busy, workers=workers, input=60.0, forward=40.0)
    assert words in found.action
    assert "the 2 cores are busy" in found.action
    assert found.potential_is_bound is True


def test_slow_workers_on_idle_cores_get_company() -> None:
    """Two workers that are too slow, and cores to spare: more workers, and the gain is a bound."""
    found = verdict(workers=2, input=30.0, forward=10.0)
    assert "the loader already has 2 workers, too few or too slow: try num_workers=9, or" in found.action
    assert found.potential_speedup == pytest.approx(4.0)
    assert found.potential_is_bound is True


def test_worker_start_in_each_epoch_is_not_taken_for_slow_batches() -> None:
    """Epochs of 3 steps whose first one waits for workers to start: keep the workers."""
    starts = frozenset(range(1, 101, 3))
    found = verdict(workers=2, input=every(3, 90.0, 100, otherwise=1.0), forward=30.0, epoch_starts=starts)
    assert "persistent_workers=True" in found.action


def test_jitter_where_epochs_begin_says_so() -> None:
    """Epochs of 20 steps: the slow steps are those in which workers start, or the dataset without them."""
    slow = every(20, 400.0, 100, otherwise=1.0)
    made = window(workers=2, input=slow, forward=50.0, epoch_starts=frozenset(range(1, 101, 20)))
    found = diagnose_time(made)[0]
    assert found.kind == "JITTER"
    assert "an epoch begins: loader workers start, so set persistent_workers=True" in found.action
    alone = diagnose_time(window(input=slow, forward=50.0, epoch_starts=frozenset(range(1, 101, 20))))[0]
    assert "an epoch begins: look at what the dataset and its sampler do then" in alone.action
    between = diagnose_time(window(wait=slow, forward=50.0, epoch_starts=frozenset(range(1, 101, 20))))[0]
    assert between.action == "In those steps an epoch begins: look at what the loop does between epochs."
    other = window(workers=2, input=slow, forward=50.0, epoch_starts=frozenset({50}))
    assert "persistent_workers" not in diagnose_time(other)[0].action


@pytest.mark.parametrize(
    ("use", "after_ms"),
    [(CoreUse(), 9.0), (CoreUse(cores=8, run_busy=1.6, others_busy=4.0, wait_share=0.15), 16.6)],
)
def test_unknown_or_scarce_cores_make_no_promise(use: CoreUse, after_ms: float) -> None:
    """Without samples, or if threads wait for cores: the advice is to try, the gain a bound. The CPU time of
    a step on all cores is a bound, too."""
    found = verdict(use, input=74.0, forward=9.0)
    assert "try to load batches in the background" in found.action
    assert found.potential_speedup == pytest.approx(83 / after_ms)
    assert found.potential_is_bound is True


def test_starved_run_gets_no_advice_to_start_more_processes() -> None:
    """Threads that wait for a core half of the time: workers would compete for the same cores."""
    starved = CoreUse(cores=2, run_busy=0.5, others_busy=1.5, wait_share=0.5)
    assert "would only compete" in verdict(starved, input=34.0, forward=4.0).action
    with_worker = verdict(starved, 1, input=34.0, forward=4.0)
    assert "more than 1 worker cannot help: try a cheaper" in with_worker.action


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_loading_that_waits_gets_workers_even_on_starved_cores(workers: int) -> None:
    """Other work has the cores, but the dataset only sleeps, which needs no core. No promise."""
    starved = CoreUse(cores=2, run_busy=0.1, others_busy=1.9, wait_share=0.25)
    found = verdict(starved, workers, input=40.0, forward=6.0)
    assert "compete" not in found.action
    assert "cannot help" not in found.action
    assert re.search(r"try (to load .*)?num_workers=\d", found.action)
    assert found.potential_is_bound is True


@pytest.mark.parametrize("workers", [0, 1])
def test_loading_of_unknown_kind_is_advised_with_a_condition(workers: int) -> None:
    """Two torch threads want the cores half of the time, and it is unknown what loading did meanwhile."""
    starved = CoreUse(cores=2, threads=2, run_busy=0.8, others_busy=1.2, wait_share=0.4)
    found = verdict(starved, workers, input=20.0, forward=20.0)
    assert (
        f"try num_workers={workers + 1} if loading waits for storage or a network, otherwise" in found.action
    )
    assert found.potential_is_bound is True
