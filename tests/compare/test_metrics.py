"""The table, the phases that explain the change, and the ranks that changed."""

from __future__ import annotations

import pytest

from tests.compare.making import blocks, compared, stat, summary


def ranked(forward: list[float], sync: list[float], seed: int = 0, nodes: list[int] | None = None):  # type: ignore[no-untyped-def]
    """A distributed run whose ranks spend this many ms in forward and in sync."""
    step = max(f + s for f, s in zip(forward, sync, strict=True)) + 10
    same = {"step_ms": step, "input_ms": 10.0, "backward_ms": 0.0, "wait_ms": 0.0}
    own = {
        rank: {**same, "forward_ms": f, "sync_ms": s}
        for rank, (f, s) in enumerate(zip(forward, sync, strict=True))
    }
    means = {key: sum(r[key] for r in own.values()) / len(own) for key in own[0] if key != "step_ms"}
    places = dict(enumerate(nodes)) if nodes else None
    return summary(step, means, seed=seed, world=len(forward), ranks=own, node_of=places)


def test_delta_is_b_minus_a() -> None:
    """Every delta is B - A, absolute and relative. Shares have no relative change."""
    found = compared(summary(100, {"wait_ms": 10}), summary(80, {"wait_ms": 20}, seed=1)).metrics
    assert found["step_ms"].delta == pytest.approx(-20)
    assert found["step_ms"].delta_share == pytest.approx(-0.2)
    assert found["wait_share"].delta == pytest.approx(0.15)
    assert found["wait_share"].delta_share is None


def test_missing_metric_is_not_zero() -> None:
    """A metric that only one side has gets no delta; one that neither side has is left out."""
    a, b = summary(), summary(seed=1)
    b.system.metrics["gpu_util_percent"] = stat(50.0)
    found = compared(a, b).metrics
    utilization = found["system.gpu_util_percent"]
    assert (utilization.a, utilization.delta) == (None, None)
    assert "sync_ms" not in found


def test_phases_that_offset_the_change_are_named() -> None:
    """Input got faster and forward slower: forward is named as offsetting part of the gain."""
    a = summary(100, {"input_ms": 60, "forward_ms": 40})
    b = summary(60, {"input_ms": 10, "forward_ms": 50}, seed=1)
    found = compared(a, b)
    assert "Input -50.0 ms explains 125 % of the change." in found.why
    assert "Partly offset by Forward +10.0 ms." in found.why


def test_compute_phases_that_grow_together_are_one_cause() -> None:
    """Forward, backward and optimizer that grow together are called compute; one alone keeps its name."""
    a = {"forward_ms": 30.0, "backward_ms": 60.0, "optimizer_ms": 10.0}
    both = compared(summary(100, a), summary(130, {k: 1.3 * v for k, v in a.items()}, seed=1))
    assert [c.phase for c in both.explained_by] == ["compute"]
    alone = compared(summary(100, a), summary(130, {**a, "optimizer_ms": 40.0}, seed=1))
    assert [c.phase for c in alone.explained_by] == ["optimizer"]


def test_phases_are_scaled_to_the_same_work() -> None:
    """With twice the batch size, the phases of B are scaled to the work of A."""
    a = summary(100, {"input_ms": 20, "forward_ms": 80}, batch=32)
    b = summary(160, {"input_ms": 0, "forward_ms": 160}, batch=64, seed=1)
    found = compared(a, b)
    assert [(c.phase, c.delta_ms) for c in found.explained_by] == [("input", -20.0)]
    assert "scaled to the work of one step of A" in found.why


def test_average_that_contradicts_the_typical_step_is_reported() -> None:
    """If a burst makes A's average slower although its typical step is faster, no phase is blamed."""
    found = compared(summary(130, means=blocks(100)), summary(110, seed=1))
    assert found.verdict == "REGRESSION"
    assert found.explained_by == []
    assert any("slow stretches" in w for w in found.warnings)


def test_slower_rank_is_named_and_waiting_ranks_are_not() -> None:
    """The rank whose own work grew is named. Ranks that wait for it are not."""
    found = compared(
        ranked([40, 40, 40, 40], [0, 0, 0, 0]), ranked([40, 40, 70, 40], [30, 30, 0, 30], seed=1)
    )
    assert [m.ranks for m in found.moved] == [[2]]
    assert found.moved[0].phase == "forward"
    assert "r2 changed on its own: Forward 40.0 ms -> 70.0 ms" in found.why
    assert "Forward on r2 +30.0 ms explains 100 % of the change" in found.why


@pytest.mark.parametrize("slower", [True, False])
def test_of_two_ranks_the_one_that_changed_is_named(slower: bool) -> None:
    """Whether r1 gets slower or is fixed: it is named, and r0, which waits for it, is not."""
    even, late = ranked([40, 40], [0, 0]), ranked([40, 70], [30, 0], seed=1)
    found = compared(even, late) if slower else compared(late, even)
    assert [m.ranks for m in found.moved] == [[1]]
    assert {c.rank for c in found.explained_by} == {1}


def test_all_ranks_of_a_node_are_named_as_the_node() -> None:
    """If all ranks of a node get slower alike, the node is named."""
    before = ranked([40] * 6, [0] * 6, nodes=[0, 0, 1, 1, 2, 2])
    after = ranked([40, 40, 70, 70, 40, 40], [30, 30, 0, 0, 30, 30], seed=1, nodes=[0, 0, 1, 1, 2, 2])
    found = compared(before, after)
    assert [(m.node, m.ranks) for m in found.moved] == [(1, [2, 3])]
    assert "Node 1 (r2, r3) changed on its own" in found.why


def test_ranks_that_change_together_are_not_named() -> None:
    """If all ranks get slower alike, no rank is named."""
    found = compared(ranked([40] * 4, [0] * 4), ranked([60] * 4, [0] * 4, seed=1))
    assert found.moved == []
    assert found.explained_by[0].rank is None


def test_several_runs_per_side_are_averaged() -> None:
    """The table shows the mean over the runs of a side."""
    found = compared([summary(100), summary(110, seed=1)], [summary(105, seed=2), summary(115, seed=3)])
    assert found.metrics["step_ms"].a == pytest.approx(105)
    assert found.metrics["step_ms"].b == pytest.approx(110)
    assert found.a.name == "before and 1 more"
