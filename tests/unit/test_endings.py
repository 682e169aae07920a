"""How a failed run ended: which rank ended first, where, and why."""

from __future__ import annotations

from typing import Any

from tests.unit import made
from traceml.analyze.diagnose import choose_primary as choose
from traceml.analyze.endings import describe, ended_first
from traceml.analyze.summarize import summarize
from traceml.schema.recorded import RankRecording, RecordedEvent, RunFacts, RunRecording
from traceml.schema.summary import CRIT, EndedFirst, EvidenceValue, Finding

MS = 1_000_000
USUAL: dict[str, Any] = {"input": 2.0, "forward": 4.0, "backward": 3.0, "optimizer": 1.0}


def rank(number: int, steps: int = 15, **parts: Any) -> RankRecording:
    return made.rank(made.steps(steps, **USUAL), number, world_size=2, **parts)


def gone(number: int, at_ms: int, closed: bool = False, phase: str = "forward", **more: Any) -> RecordedEvent:
    """What the monitor records about a rank that is gone."""
    who = {"kind": "rank_ended", "rank": number, "pid": 100 + number, "step": 15, "time_ns": at_ms * MS}
    return RecordedEvent(**{**who, "phase": phase, "closed": closed, **more})


def raised(message: str, during: str | None, at_ms: int = 0) -> RecordedEvent:
    return RecordedEvent(kind="error", message=message, during=during, time_ns=at_ms * MS)


def test_phase_is_the_one_that_raised() -> None:
    """By the time the process is gone it is in no phase, so the phase of the exception is reported."""
    ranks = {0: rank(0), 1: rank(1, events=[raised("ValueError: bad", "optimizer")])}
    noticed = [gone(0, 10, phase="sync"), gone(1, 20, closed=True, phase="wait")]
    assert ended_first(ranks, noticed) == EndedFirst(1, 15, "optimizer", False)
    assert describe(ranks, noticed) == "r1 ended first (after step 15, in optimizer); r1: ValueError: bad"


def test_no_first_rank_is_claimed_when_ranks_vanish_together() -> None:
    """Several ranks are found gone at the same moment without an error; one by one, the first is named."""
    ranks = {0: rank(0), 1: rank(1)}
    together = [gone(0, 10), gone(1, 11, phase="sync")]
    said = describe(ranks, together)
    assert said == "several ranks were killed or crashed at the same time (r0 after step 15, in forward)"
    one_by_one = [gone(1, 10), gone(0, 310)]
    assert describe(ranks, one_by_one) == "r1 was killed or crashed first (after step 15, in forward)"


def test_killed_rank_is_named_if_the_other_raised_because_of_it() -> None:
    """r1 was killed and r0 raised a connection error at the same moment: r1 ended first."""
    ranks = {0: rank(0, events=[raised("RuntimeError: connection reset", "backward")]), 1: rank(1)}
    said = describe(ranks, [gone(0, 10, closed=True, phase="wait"), gone(1, 11)])
    assert said is not None
    assert said.startswith("r1 was killed or crashed first (after step 15, in forward); r0: RuntimeError")


def test_rank_on_which_an_exchange_failed_did_not_end_first() -> None:
    """The launcher ended it before it could report an error: the rank that broke the exchange is named."""
    ranks = {0: rank(0), 1: rank(1)}
    noticed = [gone(0, 10, phase="wait", failed_in="backward"), gone(1, 10)]
    assert describe(ranks, noticed) == "r1 was killed or crashed first (after step 15, in forward)"
    # On all of them: the first is the best guess, and the phase in which it failed is reported.
    noticed = [gone(0, 10, phase="wait", failed_in="backward"), gone(1, 90, failed_in="sync")]
    assert describe(ranks, noticed) == "r0 was killed or crashed first (after step 15, in backward)"


def test_order_from_the_kernel_counts_more_than_the_phase() -> None:
    """r1 was killed while it waited; the launcher ended r0 90 ms later, in the middle of its work."""
    ranks = {0: rank(0), 1: rank(1)}
    noticed = [gone(1, 10, phase="sync", exact=True), gone(0, 100, exact=True)]
    assert describe(ranks, noticed) == "r1 was killed or crashed first (after step 15, in sync)"
    left = [gone(1, 10, closed=True, phase="wait", exact=True), gone(0, 100, exact=True)]
    assert describe(ranks, left) == "r1 ended first (after step 15, in wait)", "sys.exit, no exception"


def test_own_error_during_an_exchange_is_not_an_echo() -> None:
    """r1 ran out of memory in its own backward; then the launcher ended r0, which was computing."""
    ranks = {0: rank(0), 1: rank(1, events=[raised("OutOfMemoryError: out of memory", "backward")])}
    noticed = [gone(1, 10, closed=True, phase="wait", failed_in="backward"), gone(0, 160)]
    said = describe(ranks, noticed)
    assert said == "r1 ended first (after step 15, in backward); r1: OutOfMemoryError: out of memory"


def test_ends_on_several_machines_are_ordered_by_wall_clock() -> None:
    """Monotonic clocks start at boot; the wall clock shows that the rank of node 1 ended first."""
    ranks = {0: rank(0, events=[raised("RuntimeError: connection reset", "backward")]), 1: rank(1, node=1)}
    noticed = [gone(0, 10, closed=True, wall_ns=9_900 * MS), gone(1, 70_000, wall_ns=9_000 * MS)]
    said = describe(ranks, noticed)
    assert said is not None
    assert said.startswith("r1 was killed or crashed first (after step 15, in forward); r0: RuntimeError")


def test_oom_kill_is_reported_for_a_rank_that_vanished() -> None:
    """The kernel's counter rose during the run: reported if the rank vanished, not if it raised."""
    alone = {0: rank(0)}
    said = describe(alone, [gone(0, 10, oom_kills=1)])
    assert said is not None
    assert said.startswith("r0 was killed or crashed (after step 15, in forward); the kernel's OOM killer")
    alone = {0: rank(0, events=[raised("ValueError: bad", None)])}
    assert describe(alone, [gone(0, 10, closed=True, oom_kills=1)]) == "ValueError: bad"


def test_different_numbers_of_steps_are_noted() -> None:
    """One rank trained ten times longer: a note says that only common steps are analyzed."""
    facts = RunFacts("demo", status="completed", exit_code=0)
    recording = RunRecording(ranks=[rank(0, 200), rank(1, 20)])
    (note,) = [n for n in summarize(recording, facts).run.notes if "different numbers of steps" in n]
    assert "r1 20, r0 200" in note
    nearly = RunRecording(ranks=[rank(0, 21), rank(1, 20)])
    assert not [n for n in summarize(nearly, facts).run.notes if "different numbers of steps" in n]


def test_speedup_is_relative_to_the_slowest_rank_s_step() -> None:
    """If ranks do not wait for each other, fixing the slow one saves at most its excess."""
    evidence: dict[str, EvidenceValue] = {"cost_ms": 30.0, "slowest_step_ms": 72.0}
    finding = Finding("COMPUTE_STRAGGLER", "COMPUTE STRAGGLER", CRIT, "", "", evidence=evidence)
    primary = choose([finding], [], [], 42.0)
    assert primary.potential_speedup == 72.0 / 42.0


def test_rank_lost_long_before_the_signal_is_in_the_reason() -> None:
    """The launcher hung and was stopped: both are reported; ranks that the signal ended are not."""
    facts = RunFacts("demo", "interrupted", 1, reason="stopped by SIGTERM", begin_ns=0, end_ns=60_000 * MS)
    lost = RunRecording(
        ranks=[rank(0), rank(1)], monitor_events=[gone(1, 10_000), gone(0, 59_500, phase="sync")]
    )
    said = summarize(lost, facts).run.reason
    assert said == "stopped by SIGTERM; before that, r1 was killed or crashed (after step 15, in forward)"
    by_signal = RunRecording(ranks=[rank(0), rank(1)], monitor_events=[gone(1, 59_400), gone(0, 59_500)])
    assert summarize(by_signal, facts).run.reason == "stopped by SIGTERM"
