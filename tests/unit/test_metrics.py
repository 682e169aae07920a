"""Numbers of the summary: of real ranks, with spreads, and null if nothing was measured."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tests.fuzz import examples
from tests.unit import made
from tests.unit.made import align
from traceml.analyze import metrics as m
from traceml.schema import catalog as c
from traceml.schema.summary import Finding, MetricStat

NAN = math.nan


def stat(ranks: tuple[int, ...], values: np.ndarray, smaller_is_worse: tuple[str, ...] = ()) -> MetricStat:
    """Statistics of a metric "x" with these values."""
    return m.Table(ranks, {"x": (values, 1.0)}).stats(smaller_is_worse)["x"]


def test_median_and_worst_are_real_ranks() -> None:
    """The median is one rank's mean, not an average of two; the worst value and rank belong together."""
    found = stat((3, 5, 8, 9), np.array([[10.0, 10], [20, 20], [40, 40], [30, 30]]))
    assert (found.median.value, found.median.rank) == (20, 5)
    assert (found.worst.value, found.worst.rank) == (40, 8)
    assert found.average == 25
    assert found.skew == 1.0


def test_worst_rate_is_the_smallest() -> None:
    """For samples per second the slowest rank is the worst."""
    found = stat((0, 1), np.array([[100.0], [50.0]]), ("x",))
    assert (found.worst.value, found.worst.rank) == (50, 1)


@pytest.mark.parametrize("values", [np.zeros((0, 0)), np.full((2, 3), NAN), np.zeros((1, 0))])
def test_unmeasured_metric_is_null_everywhere(values: np.ndarray) -> None:
    """All NaN or no steps at all: every field is None, not 0."""
    found = stat((0, 1), values)
    assert (found.average, found.p5, found.p95, found.skew, found.share) == (None,) * 5
    assert (found.median.value, found.worst.value, found.worst.rank) == (None,) * 3


def test_rank_that_measured_nothing_does_not_count() -> None:
    """It does not count as 0 and is neither median nor worst."""
    found = stat((0, 1, 2), np.array([[5.0, 7], [NAN, NAN], [9, 9]]))
    assert (found.median.rank, found.worst.rank, found.average) == (0, 2, 7.5)


def test_skew_is_null_if_the_median_is_zero() -> None:
    """A ratio to zero is undefined."""
    assert stat((0, 1), np.array([[0.0], [5.0]])).skew is None


@given(
    arrays(
        np.float64,
        st.tuples(st.integers(1, 4), st.integers(1, 12)),
        elements=st.one_of(st.floats(0, 1e12), st.just(NAN)),
    )
)
@examples(150)
def test_every_number_is_finite_or_null(values: np.ndarray) -> None:
    """No NaN and no infinity ever reaches the summary, and the worst is at least the median."""
    found = stat(tuple(range(len(values))), values)
    numbers = (found.average, found.median.value, found.worst.value, found.p5, found.p95, found.skew)
    assert all(n is None or math.isfinite(n) for n in numbers)
    if found.worst.value is not None and found.median.value is not None:
        assert found.worst.value >= found.median.value


def test_metrics_have_the_keys_of_the_catalog() -> None:
    """Every step-time metric of the catalog, in its order, user phases before wait."""
    found = m.step_time_metrics(m.step_time_table(made.window(user={"augment": 1.0}, forward=10)))
    expected = [row.key for row in c.STEP_TIME_METRICS]
    expected.insert(expected.index("wait_ms"), "user.augment_ms")
    assert list(found) == expected


def test_shares_are_of_the_step_and_compute_is_model_work() -> None:
    """Shares are of the whole step; compute is forward, backward and optimizer."""
    found = m.step_time_metrics(m.step_time_table(made.window(forward=3, backward=4, optimizer=1, input=2)))
    assert found["compute_ms"].average == 8
    assert found["compute_ms"].share == pytest.approx(0.8)
    assert found["step_ms"].share == 1.0


def test_unmeasured_phase_is_null_and_so_is_compute() -> None:
    """h2d that was not measured is null; without backward there is no compute either."""
    found = m.step_time_metrics(
        m.step_time_table(made.window(forward=10, unmeasured=("h2d", "sync", "backward")))
    )
    for key in ("h2d_ms", "backward_ms", "compute_ms"):
        assert (found[key].average, found[key].share) == (None, None)
    assert found["checkpoint_ms"].average == 0


def test_share_is_the_median_of_the_ranks_shares() -> None:
    """Not the share of the medians: each rank's share is computed first."""
    usual: dict[str, Any] = {"forward": 10.0, "backward": 10.0, "optimizer": 0.0}
    ranks = [made.rank(made.steps(20, input=i, **usual), n) for n, i in enumerate((0.0, 20.0, 60.0))]
    assert m.step_time_metrics(m.step_time_table(align(ranks)))["input_ms"].share == pytest.approx(20 / 40)


def test_rate_is_total_samples_over_total_time() -> None:
    """Samples per second over the whole window: a mean of per-step rates would favour short steps."""
    window = made.window(4, forward=[10, 10, 10, 70], samples=np.full((1, 4), 5.0))
    found = m.step_time_metrics(m.step_time_table(window))
    assert found["samples_per_s"].average == pytest.approx(200)
    assert found["tokens_per_s"].average is None


def test_each_rank_has_its_own_means() -> None:
    """A rank has its mean, or null if it measured nothing."""
    found = m.Table((0, 1), {"x": (np.array([[1.0, 3.0], [NAN, NAN]]), 1.0)}).of_members((0, 1))
    assert found == {0: {"x": 2.0}, 1: {"x": None}}


# ---- blocks and series


@pytest.mark.parametrize(
    ("count", "blocks"), [(1, 1), (19, 19), (20, 20), (50, 20), (100, 20), (150, 30), (200, 40), (5000, 40)]
)
def test_there_are_at_least_twenty_blocks_if_the_run_allows(count: int, blocks: int) -> None:
    """Twenty blocks from twenty steps on, up to forty in long runs: enough for statistics."""
    found = m.blocks(made.window(count, forward=10))
    assert len(found.start_steps) == blocks
    assert len(found.metrics["step_ms"]) == blocks


def test_blocks_contain_every_step_once() -> None:
    """The mean of equal blocks is the mean of the run; blocks are in the order of the steps."""
    forward = np.arange(200.0)
    found = m.blocks(made.window(200, forward=forward))
    means = made.measured(found.metrics["forward_ms"])
    assert np.mean(means) == pytest.approx(forward.mean())
    assert means == sorted(means)


def test_blocks_leave_out_unmeasured_metrics() -> None:
    """An unmeasured metric has no block means, rather than zeros."""
    found = m.blocks(made.window(100, forward=10))
    assert "h2d_ms" not in found.metrics


@pytest.mark.parametrize("count", [1, 7, 300, 301, 4321])
def test_series_are_short_and_keep_the_slowest_step(count: int) -> None:
    """At most 300 points however long the run, and a single slow step is never lost in an average."""
    forward = np.full(count, 10.0)
    forward[count // 2] = 500.0
    found = m.step_series(made.window(count, forward=forward))
    assert len(found["steps"]) == min(count, 300)
    assert max(made.measured(found["step_ms_max"])) == 500
    assert len(found["forward_ms"]) == len(found["steps"])


def test_an_empty_window_has_null_metrics() -> None:
    """No steps: all keys are present and null; no blocks, no series."""
    window = align([])
    found = m.step_time_metrics(m.step_time_table(window))
    assert {stat.average for stat in found.values()} == {None}
    assert m.blocks(window).start_steps == []
    assert m.step_series(window) == {"steps": []}


def test_live_summary_of_many_ranks_lists_those_that_are_named() -> None:
    """The ranks of findings, the median and worst rank of each metric, and an even selection."""
    ranks = tuple(range(1000))
    metrics = {"x": stat(ranks, np.arange(1000.0)[:, None])}
    finding = Finding("K", "K", "warn", "", "", ranks=[777])
    found = m.members_to_list(ranks, metrics, [finding], 100)
    assert {777, 499, 999}.issubset(found)
    assert found == sorted(set(found))
    assert 50 < len(found) <= 100 + 3
    assert m.members_to_list(ranks, metrics, [finding], None) == list(ranks)
    assert m.members_to_list(ranks, metrics, [finding], 1000) == list(ranks)
