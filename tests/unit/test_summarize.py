"""The whole summary of hand-made runs: the time adds up, notes tell what was odd, null is never 0."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.unit import made
from traceml.analyze.summarize import summarize
from traceml.schema.facts import RunFacts
from traceml.schema.recorded import RankRecording, RunRecording
from traceml.schema.summary import Summary

FACTS = RunFacts("demo", "completed", 0, begin_ns=0, end_ns=4_000_000_000, cores=4)
USUAL = {"input": 1.0, "forward": 4.0, "backward": 4.0, "optimizer": 1.0}


def summary_of(*ranks: RankRecording, facts: RunFacts = FACTS, **parts: Any) -> Summary:
    return summarize(made.run(*ranks, **parts), facts)


def numbers(value: Any) -> list[float]:
    """Every float in a decoded summary."""
    if isinstance(value, dict):
        return [n for v in value.values() for n in numbers(v)]
    if isinstance(value, list):
        return [n for v in value for n in numbers(v)]
    return [value] if isinstance(value, float) else []


@pytest.mark.parametrize("count", [0, 1, 2, 4, 5, 19, 20, 50, 400])
def test_a_run_of_any_length_has_a_summary(count: int) -> None:
    """Zero steps, one step, many: valid JSON, four sections with a diagnosis, no NaN anywhere."""
    found = summary_of(made.rank(made.steps(count, **USUAL)))
    decoded = msgspec.json.decode(msgspec.json.encode(found))
    assert all(math.isfinite(n) for n in numbers(decoded))
    for section in (found.step_time, found.step_memory, found.system, found.process):
        assert section.diagnosis is section.issues[0]
    assert found.run.steps["total"] == count


def test_the_runs_seconds_add_up() -> None:
    """Start-up, steps, dropped steps and the end are the run's duration, to the nanosecond."""
    first = made.steps(50, begin_ns=1_000_000_000, **USUAL)
    gap = 300_000_000  # an aborted step published nothing: its time is a gap
    later = made.steps(50, begin_ns=int(first["end_ns"][-1]) + gap, first_step=51, **USUAL)
    found = summary_of(made.rank(np.concatenate([first, later]))).run
    assert found.duration_s == 4.0
    assert sum(v for v in found.accounting.values() if v is not None) == pytest.approx(4.0)
    assert found.accounting == pytest.approx(
        {"startup_s": 1.0, "steps_s": 1.0, "dropped_steps_s": 0.3, "after_last_step_s": 1.7}
    )


def test_phases_add_up_to_the_step() -> None:
    """The averages of all phases, user phases and wait are the average step."""
    rank = made.rank(
        made.steps(100, wait=0.5, validation=0.25, user1=0.75, **USUAL),
        user_names=[None, "augment", *[None] * 5],
    )
    metrics = summary_of(rank).step_time.metrics
    parts = [
        v.average
        for k, v in metrics.items()
        if k.endswith("_ms") and k not in ("step_ms", "compute_ms", "gc_ms")
    ]
    assert sum(p for p in parts if p is not None) == pytest.approx(metrics["step_ms"].average)


def test_a_summary_is_made_the_same_twice() -> None:
    """Analysis is pure: the same rows give the same bytes."""
    rank = made.rank(made.steps(100, **USUAL))
    assert msgspec.json.encode(summary_of(rank)) == msgspec.json.encode(summary_of(rank))


def test_ranks_seen_used_and_lost() -> None:
    """An expected rank with no rows is named; one dark rank does not silence the others."""
    lit = made.rank(made.steps(60, input=40, forward=60), 0, world_size=4)
    dark = made.rank(made.steps(0), 2, world_size=4)
    found = summary_of(lit, dark)
    assert found.run.world_size == 4
    ranks = {"seen": [0, 2], "used": [0], "lost": [1, 2, 3], "ended_first": None, "earlier_attempts": []}
    assert found.run.ranks == ranks
    assert found.primary_diagnosis.status == "INPUT-BOUND"
    assert any("r2" in note for note in found.run.notes)


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (set(), "No Python process started under TraceML"),
        ({"python"}, "torch was never imported"),
        ({"python", "torch"}, "no backward pass or optimizer step ran"),
        ({"python", "old-python"}, "older than 3.10"),
    ],
)
def test_a_run_that_recorded_nothing_says_how_far_it_came(seen: set[str], words: str) -> None:
    """No rank: NO DATA, and a note that says why."""
    found = summarize(RunRecording(ranks=[], seen=frozenset(seen)), FACTS)
    assert found.primary_diagnosis.status == "NO DATA"
    assert any(words in note for note in found.run.notes)


def test_a_running_run_is_not_blamed_for_having_nothing_yet() -> None:
    """A live view before the first step has no note about nothing."""
    assert summarize(RunRecording(ranks=[]), RunFacts("demo"), final=False).run.notes == []


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"lost_rows": True}, "The disk was full"),
        ({"rows": made.steps(50, extra_flags=made.c.FLAG_INPUT_INFERRED, **USUAL)}, "Input time is inferred"),
        (
            {"rows": made.steps(50, **{**USUAL, "forward": [900.0, *[4.0] * 49]})},
            "Warm-up left out: 1 step(s)",
        ),
    ],
)
def test_what_was_odd_is_noted(parts: dict[str, Any], words: str) -> None:
    """A full disk, inferred input, warm-up: each has its note."""
    rank = made.rank(**{"rows": made.steps(50, **USUAL), **parts})
    assert any(words in note for note in summary_of(rank).run.notes)


def test_other_work_on_the_machine_is_noted_and_taken_into_account() -> None:
    """Threads that waited for a core 12 % of the time: a note, and the number where jitter can see it."""
    forward = np.where(np.random.default_rng(5).permutation(200) < 20, 250.0, 100.0)
    rank = made.rank(made.steps(200, forward=forward))
    rows = made.process(10, cpu_delay_percent=12.0)
    rows["time_ns"] = np.linspace(rank.rows["begin_ns"][0], rank.rows["end_ns"][-1], 10).astype(np.int64)
    alone, disturbed = summary_of(rank), summary_of(rank, process_rows=rows)
    assert alone.primary_diagnosis.kind == "JITTER"
    assert disturbed.primary_diagnosis.kind == "COMPUTE_BOUND"
    assert any("waited for a core 12.0 %" in note for note in disturbed.run.notes)


def test_problems_of_the_reader_are_passed_on() -> None:
    """A damaged file is a note of the summary, and does not hide the rest."""
    found = summary_of(made.rank(made.steps(50, **USUAL)), problems=["rank-1.steps: damaged header"])
    assert found.run.notes[0] == "rank-1.steps: damaged header"
    assert found.run.steps["total"] == 50


def test_the_error_of_a_failed_run_is_its_reason() -> None:
    """The last error event of the training is why it failed; a completed run has no reason."""
    rank = made.rank(made.steps(50, **USUAL), events=[{"kind": "error", "message": "ValueError: boom"}])
    failed = replace(FACTS, status="failed", exit_code=1)
    assert summary_of(rank, facts=failed).run.reason == "ValueError: boom"
    assert summary_of(rank).run.reason is None


def test_events_are_in_order_and_in_the_summarys_units() -> None:
    """Seconds since the start, milliseconds of duration, rank; the order is that of time."""
    events = [
        {"kind": "gc", "step": 7, "time_ns": 2_000_000_000, "duration_ns": 5_000_000},
        {"kind": "epoch_start", "step": 1, "time_ns": 1_000_000_000, "duration_ns": None, "workers": 2},
        {"kind": "odd"},
    ]
    found = summary_of(made.rank(made.steps(50, **USUAL), events=events)).events
    assert [e["kind"] for e in found] == ["epoch_start", "gc", "odd"]
    assert found[0] == {
        "kind": "epoch_start",
        "rank": 0,
        "step": 1,
        "time_s": 1.0,
        "duration_ms": 0,
        "workers": 2,
    }
    assert (found[1]["time_s"], found[1]["duration_ms"]) == (2.0, 5.0)
    assert found[2]["time_s"] is None


def test_several_events_without_a_time_are_no_crash() -> None:
    """Events of a run whose begin is unknown, or that carry no time, come last."""
    events = [{"kind": "odd"}, {"kind": "odder"}, {"kind": "gc", "time_ns": 5}]
    found = summary_of(made.rank(made.steps(50, **USUAL), events=events), facts=RunFacts("demo")).events
    assert [e["time_s"] for e in found] == [None, None, None]


def test_a_storm_of_events_is_cut_to_the_longest() -> None:
    """At most 200 events, the longest ones."""
    events = [{"kind": "gc", "time_ns": i, "duration_ns": i * 1000} for i in range(1, 1001)]
    found = summary_of(made.rank(made.steps(50, **USUAL), events=events)).events
    assert len(found) == 200
    assert min(e["duration_ms"] for e in found) == pytest.approx(0.801)


def test_the_environment_tells_batch_and_versions() -> None:
    """What the rank's header and rows know; unknown batch sizes are null."""
    known = summary_of(made.rank(made.steps(50, samples=32, **USUAL))).environment
    assert (known["torch"], known["device"], known["batch_size"]) == ("2.13.0", "cpu", 32)
    assert summary_of(made.rank(made.steps(50, **USUAL))).environment["batch_size"] is None


def test_our_own_cost_is_told() -> None:
    """µs a step and its share of step time, from what was measured when recording began."""
    rank = made.rank(made.steps(50, **USUAL), overhead={"switch_ns": 1000, "row_ns": 5000})
    found = summary_of(rank).overhead
    assert found["us_per_step"] == pytest.approx(10.0)
    assert found["share"] == pytest.approx(0.001)
    assert summary_of(made.rank(made.steps(0))).overhead["us_per_step"] is None


def test_user_phases_are_in_the_catalogue() -> None:
    """Readers need no knowledge of ours: every metric key has its row."""
    rank = made.rank(made.steps(50, user0=1.0, **USUAL), user_names=["augment", *[None] * 6])
    found = summary_of(rank)
    rows = {(r["section"], r["key"]) for r in found.catalog}
    for name in ("step_time", "step_memory", "system", "process"):
        assert {(name, key) for key in getattr(found, name).metrics} <= rows


def test_a_rank_that_died_early_does_not_silence_the_others() -> None:
    """One step of r3, 200 of the others: judged without r3, which is named."""
    slow = made.steps(200, input=40.0, forward=60.0)
    ranks = [made.rank(slow.copy(), i, world_size=4) for i in range(3)]
    found = summary_of(*ranks, made.rank(slow[:1].copy(), 3, world_size=4))
    assert found.primary_diagnosis.status == "INPUT-BOUND"
    assert found.run.steps["total"] == 200
    assert "r3 completed 1 step(s) at most: left out." in found.run.notes


def test_ranks_of_which_nothing_was_recorded_are_named() -> None:
    """A world of four with three recordings; and waiting for a rank that is not there is no balance."""
    ranks = [made.rank(made.steps(60, **USUAL), i, world_size=4) for i in (0, 1, 3)]
    assert "Nothing was recorded of r2, of 4 ranks that were expected." in summary_of(*ranks).run.notes
    keys = (*made.ALL_MEASURED, "sync")
    waits = made.rank(made.steps(60, measured=keys, forward=10.0, sync=90.0), 0, world_size=2)
    primary = summary_of(waits).primary_diagnosis
    assert primary.status == "INCOMPLETE DATA"
    assert "the other ranks" in primary.summary


def test_a_stall_is_in_the_notes() -> None:
    """Where each rank was when nobody moved; those that did not wait for others come first."""
    noticed = [
        {"kind": "stall", "rank": rank, "step": 20, "phase": phase, "duration_ns": 40 * 10**9, "wall_ns": 5}
        for rank, phase in ((0, "sync"), (1, "forward"))
    ]
    ranks = [made.rank(made.steps(20, **USUAL), i, world_size=2) for i in range(2)]
    assert (
        "No rank completed a step for at least 40 s: r1 in forward after step 20, r0 in sync after step 20."
        in summary_of(*ranks, monitor_events=noticed).run.notes
    )
