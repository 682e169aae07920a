"""How ranks that did not end well ended, in words."""

from __future__ import annotations

from typing import Any

from tests.unit import made
from traceml.analyze.endings import describe, ended_first
from traceml.analyze.primary import choose
from traceml.analyze.summarize import summarize
from traceml.schema.facts import RunFacts
from traceml.schema.recorded import RankRecording, RunRecording
from traceml.schema.summary import CRIT, Finding

MS = 1_000_000
USUAL = {"input": 2.0, "forward": 4.0, "backward": 3.0, "optimizer": 1.0}


def rank(number: int, steps: int = 15, **parts: Any) -> RankRecording:
    return made.rank(made.steps(steps, **USUAL), number, world_size=2, **parts)


def gone(
    number: int, at_ms: int, closed: bool = False, phase: str = "forward", **more: Any
) -> dict[str, Any]:
    """What the monitor notes of a rank that it finds gone."""
    who = {"kind": "rank_ended", "rank": number, "pid": 100 + number, "step": 15, "time_ns": at_ms * MS}
    return {**who, "phase": phase, "closed": closed, **more}


def raised(message: str, during: str | None, at_ms: int = 0) -> dict[str, Any]:
    return {"kind": "error", "message": message, "during": during, "time_ns": at_ms * MS}


def test_the_phase_is_that_of_the_exception() -> None:
    """By the time that the process is gone it is in no phase: where it raised is what counts."""
    ranks = {0: rank(0), 1: rank(1, events=[raised("ValueError: bad", "optimizer")])}
    noticed = [gone(0, 10, phase="sync"), gone(1, 20, closed=True, phase="wait")]
    assert ended_first(ranks, noticed) == {"rank": 1, "step": 15, "phase": "optimizer", "together": False}
    assert describe(ranks, noticed) == "r1 ended first: after step 15, in optimizer; r1: ValueError: bad"


def test_ranks_that_vanish_together_have_no_first_one() -> None:
    """Ended by the launcher, or all killed: found gone at one look, without a word."""
    ranks = {0: rank(0), 1: rank(1)}
    together = [gone(0, 10), gone(1, 11, phase="sync")]
    said = describe(ranks, together)
    assert said == "several ranks were killed or crashed at the same time, r0 after step 15, in forward"
    one_by_one = [gone(1, 10), gone(0, 310)]
    assert describe(ranks, one_by_one) == "r1 was killed or crashed first: after step 15, in forward"


def test_an_exception_tells_who_it_was_also_at_one_look() -> None:
    """One rank was killed and the other raised because of it, all within one look."""
    ranks = {0: rank(0, events=[raised("RuntimeError: connection reset", "backward")]), 1: rank(1)}
    said = describe(ranks, [gone(0, 10, closed=True, phase="wait"), gone(1, 11)])
    assert said is not None
    assert said.startswith("r1 was killed or crashed first: after step 15, in forward; r0: RuntimeError")


def test_a_rank_that_an_exchange_failed_on_did_not_go_first() -> None:
    """The launcher ended it before it could report its error: the rank that broke the exchange is named."""
    ranks = {0: rank(0), 1: rank(1)}
    noticed = [gone(0, 10, phase="wait", failed_in="backward"), gone(1, 10)]
    assert describe(ranks, noticed) == "r1 was killed or crashed first: after step 15, in forward"
    # All of them: the first one is the best guess, and where it failed says more than where it was later.
    noticed = [gone(0, 10, phase="wait", failed_in="backward"), gone(1, 90, failed_in="sync")]
    assert describe(ranks, noticed) == "r0 was killed or crashed first: after step 15, in backward"


def test_the_kernel_s_order_counts_more_than_the_phase() -> None:
    """Killed while it waited for the others; the launcher ended those 90 ms later, in the middle of work."""
    ranks = {0: rank(0), 1: rank(1)}
    noticed = [gone(1, 10, phase="sync", exact=True), gone(0, 100, exact=True)]
    assert describe(ranks, noticed) == "r1 was killed or crashed first: after step 15, in sync"
    left = [gone(1, 10, closed=True, phase="wait", exact=True), gone(0, 100, exact=True)]
    assert describe(ranks, left) == "r1 ended first: after step 15, in wait", "sys.exit, no exception"


def test_an_error_of_its_own_during_an_exchange_is_no_echo() -> None:
    """Out of memory in its own backward; the launcher then ended the rank that computed."""
    ranks = {0: rank(0), 1: rank(1, events=[raised("OutOfMemoryError: out of memory", "backward")])}
    noticed = [gone(1, 10, closed=True, phase="wait", failed_in="backward"), gone(0, 160)]
    said = describe(ranks, noticed)
    assert said == "r1 ended first: after step 15, in backward; r1: OutOfMemoryError: out of memory"


def test_ends_on_several_machines_are_ordered_by_their_wall_clocks() -> None:
    """Each machine's own clock begins at its boot: the wall clock says that node 1's rank went first."""
    ranks = {0: rank(0, events=[raised("RuntimeError: connection reset", "backward")]), 1: rank(1, node=1)}
    noticed = [gone(0, 10, closed=True, wall_ns=9_900 * MS), gone(1, 70_000, wall_ns=9_000 * MS)]
    said = describe(ranks, noticed)
    assert said is not None
    assert said.startswith("r1 was killed or crashed first: after step 15, in forward; r0: RuntimeError")


def test_a_kill_for_memory_is_named() -> None:
    """The kernel's counter rose during the run: said of a rank that vanished, not of one that raised."""
    alone = {0: rank(0)}
    said = describe(alone, [gone(0, 10, oom_kills=1)])
    assert said is not None
    assert said.startswith("r0 was killed or crashed: after step 15, in forward; the kernel killed 1 process")
    alone = {0: rank(0, events=[raised("ValueError: bad", None)])}
    assert describe(alone, [gone(0, 10, closed=True, oom_kills=1)]) == "ValueError: bad"


def test_uneven_numbers_of_steps_are_noted() -> None:
    """One rank trained ten times longer: the summary says that this is not in it."""
    facts = RunFacts("demo", status="completed", exit_code=0)
    recording = RunRecording(ranks=[rank(0, 200), rank(1, 20)])
    (note,) = [n for n in summarize(recording, facts).run.notes if "uneven" in n]
    assert "r1 20, r0 200" in note
    nearly = RunRecording(ranks=[rank(0, 21), rank(1, 20)])
    assert not [n for n in summarize(nearly, facts).run.notes if "uneven" in n]


def test_the_gain_is_of_the_slowest_rank_s_step() -> None:
    """Ranks that do not wait for each other: mending the slow one cannot make it faster than the others."""
    evidence = {"cost_ms": 30.0, "slowest_step_ms": 72.0}
    finding = Finding("COMPUTE_STRAGGLER", "COMPUTE STRAGGLER", CRIT, "", "", evidence=evidence)
    primary = choose([finding], [], [], 42.0)
    assert primary.potential_speedup == 72.0 / 42.0


def test_a_rank_lost_long_before_the_signal_is_in_the_reason() -> None:
    """Its launcher hung, and somebody stopped it: both are told; ranks that the signal ended are not."""
    facts = RunFacts("demo", "interrupted", 1, reason="stopped by SIGTERM", begin_ns=0, end_ns=60_000 * MS)
    lost = RunRecording(
        ranks=[rank(0), rank(1)], monitor_events=[gone(1, 10_000), gone(0, 59_500, phase="sync")]
    )
    said = summarize(lost, facts).run.reason
    assert said == "stopped by SIGTERM; before that r1 was killed or crashed: after step 15, in forward"
    by_signal = RunRecording(ranks=[rank(0), rank(1)], monitor_events=[gone(1, 59_400), gone(0, 59_500)])
    assert summarize(by_signal, facts).run.reason == "stopped by SIGTERM"
