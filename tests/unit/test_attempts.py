"""Restarted ranks: which recordings belong together, and what the summary says about the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit import made
from tests.unit.made import align
from traceml.analyze.recordings import find_attempts
from traceml.analyze.summarize import summarize
from traceml.schema.recorded import RankRecording, RunFacts
from traceml.schema.summary import Attempt, EndedFirst

S = 1_000_000_000
USUAL: dict[str, Any] = {"input": 2.0, "forward": 4.0, "backward": 3.0, "optimizer": 1.0}
FACTS = RunFacts("demo", status="completed", exit_code=0, begin_ns=0, end_ns=100 * S)


def started(at_s: float, rank: int, steps: int = 40, **parts: Any) -> RankRecording:
    """A process that started recording at this time, with steps of 10 ms from then on."""
    rows = made.steps(steps, **USUAL)
    moved = int(at_s * S) - (int(rows["begin_ns"][0]) if steps else 0)
    rows["begin_ns"] += moved
    rows["end_ns"] += moved
    pid = parts.pop("pid", int(100 * at_s) + rank)
    return made.rank(rows, rank, clock_ns=int(at_s * S), world_size=2, pid=pid, **parts)


def ended(recording: RankRecording, at_s: float, closed: bool = False, phase: str = "wait") -> dict[str, Any]:
    """What the monitor records when this process is gone."""
    step = int(recording.rows["step"][-1]) if len(recording.rows) else 0
    who = {"rank": recording.rank, "pid": recording.pid, "step": step}
    return {
        "kind": "rank_ended",
        **who,
        "time_ns": int(at_s * S),
        "duration_ns": 0,
        "phase": phase,
        "closed": closed,
    }


def test_restarted_rank_counts_once_with_its_newest_steps() -> None:
    """The newest recording with steps is used; a newer one without steps changes nothing."""
    old, new, unborn = started(1, 0, 90), started(5, 0, 30), started(9, 0, 0)
    found = find_attempts([new, unborn, old])
    assert found.chosen == {0: new}
    assert found.before == [{0: old}]
    assert align([new, unborn, old]).total_steps == 30


def test_steps_of_two_attempts_are_never_compared() -> None:
    """Rank 1 ended before its first step in the second attempt: its rows of the first one are not used."""
    first = [started(1, 0, 15), started(1.1, 1, 15)]
    second = [started(9, 0, 20)]
    found = find_attempts([*first, *second])
    assert found.chosen == {0: second[0]}
    assert found.before == [{0: first[0], 1: first[1]}]
    assert align([*first, *second]).ranks == (0,)


def test_rank_that_continued_is_kept_when_another_restarts() -> None:
    """Only rank 1 restarted while rank 0 continued: both are in the window."""
    steady, old, new = started(1, 0, 2000), started(1, 1, 100), started(6, 1, 900)
    found = find_attempts([steady, old, new])
    assert found.chosen == {0: steady, 1: new}


def test_attempt_with_one_step_does_not_hide_the_one_before() -> None:
    """One step shows nothing: the summary covers the attempt with many steps."""
    long, short = started(1, 0, 500), started(50, 0, 1)
    assert find_attempts([long, short]).chosen == {0: long}


def test_helper_process_with_a_rank_s_environment_is_listed_apart() -> None:
    """It claims to be r0 while r0 trains: the steps of the real r0 count, and the helper has its line."""
    ranks = [started(0, 0, steps=300), started(0, 1, steps=300), started(0.5, 0, steps=5, pid=999)]
    found = find_attempts(ranks)
    assert [r.pid for r in found.chosen.values()] == [ranks[0].pid, ranks[1].pid]
    assert found.before == []
    run = summarize(made.run(*ranks), FACTS).run
    assert run.steps.total == 300
    assert [(t.pid, t.steps, t.in_tables) for t in run.trainings] == [
        (ranks[0].pid, 300, True),
        (999, 5, False),
    ]
    assert any(note.startswith("2 processes trained as r0 at the same time.") for note in run.notes)


def test_every_training_without_ranks_is_summarized() -> None:
    """Two trainings at once and one before them, all without ranks: each has its numbers and its verdict."""
    earlier, slow_input, model = (
        made.rank(rows, pid=pid, clock_ns=int(rows["begin_ns"][0]))
        for pid, rows in (
            (7, made.steps(40, begin_ns=1 * S, forward=10.0)),
            (8, made.steps(50, begin_ns=10 * S, input=30.0, forward=10.0)),
            (9, made.steps(60, begin_ns=10 * S, forward=20.0, backward=20.0)),
        )
    )
    run = summarize(made.run(earlier, slow_input, model), FACTS).run
    assert [(t.pid, t.steps, t.in_tables, t.status) for t in run.trainings] == [
        (9, 60, True, "COMPUTE-BOUND"),
        (7, 40, False, "COMPUTE-BOUND"),
        (8, 50, False, "INPUT-BOUND"),
    ]
    assert run.trainings[2].step_ms == pytest.approx(40.0)
    assert run.trainings[2].input_share == pytest.approx(0.75, abs=0.01)


def test_attempts_on_machines_with_different_clocks_are_matched_by_wall_clock() -> None:
    """A machine's monotonic clock starts at boot; the wall clock at the start of a recording relates them."""

    def elsewhere(recording: RankRecording) -> RankRecording:
        process = recording.header["process"]
        ahead = {**process, "wall_ns": process["clock_ns"], "clock_ns": process["clock_ns"] + 7000 * S}
        header = {**recording.header, "process": ahead}
        rows = recording.rows.copy()
        rows["begin_ns"] += 7000 * S
        rows["end_ns"] += 7000 * S
        identity = replace(recording.identity, host="other")
        return replace(recording, header=header, rows=rows, node=1, identity=identity)

    first = [started(1, 0), elsewhere(started(1.2, 1))]
    second = [started(20, 0), elsewhere(started(20.2, 1))]
    found = find_attempts([first[1], second[1], first[0], second[0]])
    assert found.chosen == dict(enumerate(second))
    assert found.before == [dict(enumerate(first))]


def test_summary_says_why_the_earlier_attempt_ended_and_what_it_cost() -> None:
    """Rank 1 raised in the first attempt: in the notes, the list of attempts, and the accounting."""
    error = {"kind": "error", "message": "ValueError: bad batch", "time_ns": 2 * S}
    first = [started(1, 0, 15), started(1, 1, 15, events=[error])]
    second = [started(9, 0), started(9, 1)]
    noticed = [ended(first[0], 2.1, phase="sync"), ended(first[1], 2.2)]
    run = summarize(made.run(*first, *second, monitor_events=noticed), FACTS).run
    assert run.status == "completed"
    assert run.steps.total == 40
    assert run.ranks.ended_first is None
    (attempt,) = run.ranks.earlier_attempts
    assert attempt.steps == 15
    assert attempt.ended_first == EndedFirst(1, 15, "wait")
    (note,) = [n for n in run.notes if "were started 2 times" in n]
    assert "completed 15 steps: r1 ended first, after step 15, in wait; r1: ValueError: bad batch." in note
    assert run.accounting["earlier_attempts_s"] == 8.0
    assert sum(v for v in run.accounting.values() if v is not None) == run.duration_s


def test_end_of_a_failed_run_is_the_end_of_its_last_attempt() -> None:
    """Rank 1 ended first in the first attempt, rank 0 in the last one: the run's end names rank 0."""
    first, second = [started(1, 0), started(1, 1)], [started(9, 0), started(9, 1)]
    noticed = [ended(first[1], 3), ended(first[0], 4), ended(second[0], 11), ended(second[1], 12)]
    facts = replace(FACTS, status="failed", exit_code=1)
    run = summarize(made.run(*first, *second, monitor_events=noticed), facts).run
    assert run.ranks.ended_first is not None
    assert run.ranks.ended_first.rank == 0
    (earlier,) = run.ranks.earlier_attempts
    assert earlier.ended_first is not None
    assert earlier.ended_first.rank == 1


def test_two_trainings_in_sequence_are_not_a_failure() -> None:
    """A command trains twice: the first training is mentioned without a reason, because it ended well."""
    first, second = started(1, 0), started(9, 0)
    noticed = [ended(first, 3, closed=True), ended(second, 12, closed=True)]
    run = summarize(made.run(first, second, monitor_events=noticed), FACTS).run
    assert run.ranks.earlier_attempts == [Attempt(40)]
    assert any(note.endswith("before it completed 40 steps.") for note in run.notes)


def test_two_processes_of_a_rank_that_was_not_started_again_cost_no_summary() -> None:
    """Two processes trained as rank 0 at the same time; after that only rank 1 was started again."""
    rows, later = made.steps(30, forward=10.0), made.steps(30, forward=10.0, begin_ns=10_000_000_000)
    first = [made.rank(rows, number, world_size=2) for number in (0, 1)]
    double = made.rank(rows[:20], 0, world_size=2, pid=500, clock_ns=10)
    again = made.rank(later, 1, world_size=2, pid=501, clock_ns=9_000_000_000)
    found = summarize(made.run(*first, double, again), RunFacts("demo"))
    assert found.run.ranks.used == [1]
    assert not any("at the same time" in note for note in found.run.notes)


def test_process_that_trained_longer_speaks_for_the_run() -> None:
    """Of two trainings at the same time, one with many quick steps does not hide one with few long steps."""
    quick, slow = started(1, 0, 90, pid=5), started(1.1, 0, 30, pid=6)
    slow.rows["end_ns"] += slow.rows["step"] * S // 10
    slow.rows["begin_ns"][1:] = slow.rows["end_ns"][:-1]
    assert find_attempts([quick, slow]).chosen == {0: slow}
    assert find_attempts([slow, quick]).doubles == (quick,)
