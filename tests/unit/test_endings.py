"""How a failed run ended: which rank ended first, where, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

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
    assert describe(ranks, noticed) == "r1 ended first, after step 15, in optimizer; r1: ValueError: bad"


def test_no_first_rank_is_claimed_when_ranks_vanish_together() -> None:
    """Several ranks are found gone at the same moment without an error; one by one, the first is named."""
    ranks = {0: rank(0), 1: rank(1)}
    together = [gone(0, 10), gone(1, 11, phase="sync")]
    said = describe(ranks, together)
    assert said == "several ranks were killed or crashed at the same time (r0 after step 15, in forward)"
    one_by_one = [gone(1, 10), gone(0, 310)]
    assert describe(ranks, one_by_one) == "r1 was killed or crashed first, after step 15, in forward"


def test_rank_that_the_launcher_ended_was_not_first() -> None:
    """r1 was gone before the kernel could tell how; that r0 got the launcher's SIGTERM says enough."""
    ranks = {0: rank(0), 1: rank(1)}
    ended = gone(0, 10, phase="sync", exact=True, signal="SIGTERM")
    said = describe(ranks, [ended, gone(1, 11, phase="sync")])
    assert said == "r1 was killed or crashed first, after step 15, in sync"


def test_killed_rank_is_named_if_the_other_raised_because_of_it() -> None:
    """r1 was killed and r0 raised a connection error at the same moment: r1 ended first."""
    ranks = {0: rank(0, events=[raised("RuntimeError: connection reset", "backward")]), 1: rank(1)}
    said = describe(ranks, [gone(0, 10, closed=True, phase="wait"), gone(1, 11)])
    assert said is not None
    assert said.startswith("r1 was killed or crashed first, after step 15, in forward; r0: RuntimeError")


def test_rank_on_which_an_exchange_failed_did_not_end_first() -> None:
    """The launcher ended it before it could report an error: the rank that broke the exchange is named."""
    ranks = {0: rank(0), 1: rank(1)}
    noticed = [gone(0, 10, phase="wait", failed_in="backward"), gone(1, 10)]
    assert describe(ranks, noticed) == "r1 was killed or crashed first, after step 15, in forward"
    # On all of them: the first is the best guess, and the phase in which it failed is reported.
    noticed = [gone(0, 10, phase="wait", failed_in="backward"), gone(1, 90, failed_in="sync")]
    assert describe(ranks, noticed) == "r0 was killed or crashed first, after step 15, in backward"


def test_order_from_the_kernel_counts_more_than_the_phase() -> None:
    """r1 was killed while it waited; the launcher ended r0 90 ms later, in the middle of its work."""
    ranks = {0: rank(0), 1: rank(1)}
    noticed = [gone(1, 10, phase="sync", exact=True), gone(0, 100, exact=True)]
    assert describe(ranks, noticed) == "r1 was killed or crashed first, after step 15, in sync"
    left = [gone(1, 10, closed=True, phase="wait", exact=True), gone(0, 100, exact=True)]
    assert describe(ranks, left) == "r1 ended first, after step 15, in wait", "sys.exit, no exception"


def test_own_error_during_an_exchange_is_not_an_echo() -> None:
    """r1 ran out of memory in its own backward; then the launcher ended r0, which was computing."""
    ranks = {0: rank(0), 1: rank(1, events=[raised("OutOfMemoryError: out of memory", "backward")])}
    noticed = [gone(1, 10, closed=True, phase="wait", failed_in="backward"), gone(0, 160)]
    said = describe(ranks, noticed)
    assert said == "r1 ended first, after step 15, in backward; r1: OutOfMemoryError: out of memory"


KILLED: dict[str, Any] = {"exact": True, "signal": "SIGKILL"}
ENDED_BY_LAUNCHER: dict[str, Any] = {"exact": True, "signal": "SIGTERM"}
GLOO = (
    "RuntimeError: [/__w/gloo/transport/tcp/pair.cc:537] Connection closed by peer [127.0.0.1]:25322. "
    "This is typically caused by a remote worker crashing."
)
GLOO_IN_BRIEF = "RuntimeError: Connection closed by peer [127.0.0.1]:25322"


@pytest.mark.parametrize("during", ["backward", "sync", "forward", "input", None])
@pytest.mark.parametrize(
    "message",
    [
        GLOO,
        "DistBackendError: NCCL communicator was aborted on rank 0",
        "DistStoreError: wait timeout after 3000ms, keys: /default_pg/0//x",
        "DistNetworkError: failed to recv, got 0 bytes",
        "RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 3000 ms",
    ],
)
def test_error_about_a_peer_never_makes_its_rank_the_first(message: str, during: str | None) -> None:
    """Wherever it surfaces, and even if its rank was found gone earlier: the killed rank is named, with the
    signal that killed it and its last step."""
    ranks = {0: rank(0, events=[raised(message, during, 12)]), 1: rank(1)}
    noticed = [gone(0, 9, closed=True), gone(1, 11, phase="wait", **KILLED)]
    assert ended_first(ranks, noticed) == EndedFirst(1, 15, "wait", False, "SIGKILL")
    brief = GLOO_IN_BRIEF if message == GLOO else message
    said = describe(ranks, noticed)
    assert said == f"r1 ended first: it was killed by SIGKILL after step 15, in wait; r0: {brief}"


def test_signal_tells_the_killed_rank_from_those_that_the_launcher_ended() -> None:
    """They end at the same moment; the killed rank was waiting, the one that SIGTERM ended was computing."""
    ranks = {0: rank(0), 1: rank(1)}
    noticed = [gone(0, 10, **ENDED_BY_LAUNCHER), gone(1, 11, phase="sync", **KILLED)]
    first = ended_first(ranks, noticed)
    assert first is not None
    assert (first.rank, first.signal) == (1, "SIGKILL")


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"signal": "SIGSEGV"}, "it crashed with SIGSEGV after step 15, in forward"),
        ({"signal": "SIGKILL"}, "it was killed by SIGKILL after step 15, in forward"),
        ({"exit_code": 3}, "it exited with code 3 after step 15, in forward"),
    ],
)
def test_end_is_reported_as_the_kernel_tells_it(how: dict[str, Any], words: str) -> None:
    """A signal, a crash and an exit code are reported differently."""
    ranks = {0: rank(0, events=[raised(GLOO, "backward", 12)]), 1: rank(1)}
    said = describe(ranks, [gone(0, 20, closed=True), gone(1, 10, exact=True, **how)])
    assert said == f"r1 ended first: {words}; r0: {GLOO_IN_BRIEF}"
    assert describe({1: rank(1)}, [gone(1, 10, exact=True, **how)]) == f"r1 {words[3:]}"


def test_rank_that_ended_well_is_not_named_if_another_one_failed() -> None:
    """r0 was done and exited; a second later r1 exited with an error code."""
    ranks = {0: rank(0), 1: rank(1)}
    well = gone(0, 10, closed=True, exact=True, exit_code=0)
    failed = gone(1, 1_000, closed=True, phase="wait", exact=True, exit_code=4)
    assert describe(ranks, [well, failed]) == ("r1 ended first: it exited with code 4 after step 15, in wait")
    assert describe(ranks, [well, gone(1, 1_000, **KILLED)]) == (
        "r1 ended first: it was killed by SIGKILL after step 15, in forward"
    )


def test_rank_that_left_without_an_error_is_named_if_its_peers_lost_it() -> None:
    """r1 called sys.exit() in the middle; r0 lost its peer, and the launcher ended r2."""
    ranks = {0: rank(0, events=[raised(GLOO, "backward", 12)]), 1: rank(1), 2: rank(2)}
    left = gone(1, 10, closed=True, exact=True, exit_code=0)
    noticed = [left, gone(0, 40, closed=True, exit_code=1), gone(2, 80, **ENDED_BY_LAUNCHER)]
    assert describe(ranks, noticed) == (
        f"r1 ended first: it exited with code 0 after step 15, in forward; r0: {GLOO_IN_BRIEF}"
    )


def test_victim_is_not_named_if_the_first_rank_left_no_recording() -> None:
    """r1 was killed before its first backward pass, so only r0 is known, which the launcher ended."""
    ranks = {0: rank(0, 0)}
    noticed = [gone(0, 10, phase="sync", step=0, **ENDED_BY_LAUNCHER)]
    assert ended_first(ranks, noticed, absent=[1]) is None
    said = "r1 left no recording and may have ended first, before any backward pass"
    assert describe(ranks, noticed, absent=[1]) == said
    lost_its_peer = {0: rank(0, 0, events=[raised(GLOO, "backward", 12)])}
    ended = [gone(0, 10, closed=True, exit_code=1)]
    assert describe(lost_its_peer, ended, absent=[1]) == f"{said}; r0: {GLOO_IN_BRIEF}"
    killed = [gone(0, 10, step=0, **KILLED)]
    assert describe(ranks, killed, absent=[1]) == "r0 was killed by SIGKILL in its first step, in forward"


def test_first_steps_do_not_tell_backward_from_sync() -> None:
    """Until the last gradient is learned, a rank in its backward pass looks as if it waited for others."""
    ranks = {0: rank(0), 1: rank(1)}
    noticed = [gone(1, 10, phase="sync", step=0, exact=True, exit_code=7), gone(0, 70, **ENDED_BY_LAUNCHER)]
    assert describe(ranks, noticed) == (
        "r1 ended first: it exited with code 7 in its first step, in backward or sync"
    )


def test_no_rank_is_blamed_if_one_signal_ended_all() -> None:
    """The launcher was stopped and ended all of them: none crashed, and none was first."""
    ends = [gone(n, 10 + n, exact=True, signal="SIGTERM") for n in range(2)]
    assert describe({0: rank(0), 1: rank(1)}, ends) == (
        "the launcher, or another process, ended the ranks with SIGTERM (r0 after step 15, in forward)"
    )


def test_exception_is_reported_with_its_line() -> None:
    """The user's line, and the phase that it left, or else where the process was when it ended."""
    place, message = "wait (right after the optimizer step)", "ValueError: bad"
    ends = [gone(1, 20, closed=True, phase=place), gone(0, 70, **ENDED_BY_LAUNCHER)]
    for during, said in (("input", "input"), (None, place)):
        error = replace(raised(message, during, 10), raised_at="train.py:9", step=16)
        assert describe({0: rank(0), 1: rank(1, events=[error])}, ends) == (
            f"r1 ended first, after step 15, in {said}, at train.py:9; r1: ValueError: bad"
        )
    assert describe({0: rank(0, events=[error])}, []) == "ValueError: bad, after step 15, at train.py:9"
    twice = [error, replace(error, time_ns=99 * MS, message="KeyError: 1")]
    assert describe({0: rank(0, events=twice)}, []) == "ValueError: bad, after step 15, at train.py:9"


def test_hanging_rank_is_named_if_the_others_gave_up_waiting() -> None:
    """A collective timed out on r0; then the launcher ended r1, which never came, and r2, which waited."""
    ranks = {0: rank(0, events=[raised(GLOO, "sync", 10)]), 1: rank(1), 2: rank(2)}
    noticed = [
        gone(0, 20, closed=True),
        gone(2, 70, phase="sync", **ENDED_BY_LAUNCHER),
        gone(1, 99, **ENDED_BY_LAUNCHER),
    ]
    said = describe(ranks, noticed)
    assert said == f"other ranks gave up waiting for r1 (after step 15, in forward); r0: {GLOO_IN_BRIEF}"
    later = [noticed[0], gone(1, 30_000, **KILLED)]
    assert describe({0: ranks[0], 1: ranks[1]}, later) == said, "it ignored SIGTERM"
    elsewhere = {0: ranks[0], 1: rank(1, node=1)}
    said = describe(elsewhere, [noticed[0], gone(1, 70_000, wall_ns=1, **KILLED)])
    assert str(said).startswith("r1 ended first: it was killed by SIGKILL"), "clocks of two machines"
    both = [noticed[0], gone(2, 70, **ENDED_BY_LAUNCHER), gone(1, 99, **ENDED_BY_LAUNCHER)]
    assert "gave up waiting for r1, r2 (r2 was after step 15" in str(describe(ranks, both))


def test_no_rank_is_named_if_all_lost_their_peers() -> None:
    """Every rank raised an echo: the one that ended first left no trace, and none is made up."""
    ranks = {n: rank(n, events=[raised(GLOO, "backward", 10 + n)]) for n in (0, 1)}
    noticed = [gone(0, 20, closed=True), gone(1, 30, closed=True)]
    assert ended_first(ranks, noticed) is None
    assert describe(ranks, noticed) == f"no rank is known to have ended first; r0: {GLOO_IN_BRIEF}"


def test_lost_file_server_is_the_rank_s_own_error() -> None:
    """Python's ConnectionResetError in the input is no echo of another rank, although a peer reset it."""
    message = "ConnectionResetError: [Errno 104] Connection reset by peer"
    ranks = {0: rank(0), 1: rank(1, events=[raised(message, "input", 10)])}
    said = describe(ranks, [gone(1, 20, closed=True), gone(0, 70, **ENDED_BY_LAUNCHER)])
    assert said == f"r1 ended first, after step 15, in input; r1: {message}"


def test_error_that_a_kill_caused_does_not_hide_the_kill() -> None:
    """r1 was killed; 100 ms later r0 raised an error because of that: the kernel's order counts."""
    ranks = {0: rank(0, events=[raised("MyError: lost a worker", None, 110)]), 1: rank(1)}
    first = ended_first(ranks, [gone(1, 10, **KILLED), gone(0, 150, closed=True)])
    assert first is not None
    assert first.rank == 1


def test_ends_on_several_machines_are_ordered_by_wall_clock() -> None:
    """Monotonic clocks start at boot; the wall clock shows that the rank of node 1 ended first."""
    ranks = {0: rank(0, events=[raised("RuntimeError: connection reset", "backward")]), 1: rank(1, node=1)}
    noticed = [gone(0, 10, closed=True, wall_ns=9_900 * MS), gone(1, 70_000, wall_ns=9_000 * MS)]
    said = describe(ranks, noticed)
    assert said is not None
    assert said.startswith("r1 was killed or crashed first, after step 15, in forward; r0: RuntimeError")


def test_oom_kill_is_reported_for_a_rank_that_vanished() -> None:
    """The kernel's counter rose during the run: reported if the rank vanished, not if it raised."""
    alone = {0: rank(0)}
    said = describe(alone, [gone(0, 10, oom_kills=1)])
    assert said is not None
    assert said.startswith("r0 was killed or crashed, after step 15, in forward; the kernel's OOM killer")
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
    assert said == "stopped by SIGTERM; before that, r1 was killed or crashed, after step 15, in forward"
    by_signal = RunRecording(ranks=[rank(0), rank(1)], monitor_events=[gone(1, 59_400), gone(0, 59_500)])
    assert summarize(by_signal, facts).run.reason == "stopped by SIGTERM"


def test_the_rank_that_a_signal_killed_is_first_even_if_the_launcher_is_quick() -> None:
    """torchrun ends the others with SIGTERM within milliseconds: only the one with SIGKILL can be first."""
    ranks = {0: rank(0), 1: rank(1)}
    noticed = [gone(1, 10, exact=True, signal="SIGKILL"), gone(0, 22, exact=True, signal="SIGTERM")]
    said = describe(ranks, noticed)
    assert said is not None
    assert said.startswith("r1 ended first: it was killed by SIGKILL")


def test_script_that_ends_itself_is_not_placed_in_a_phase() -> None:
    """`sys.exit(1)` after a step: the process closed its recording when it had left the loop, so the phase at
    that moment says nothing."""
    one = {0: made.rank(made.steps(15, **USUAL), 0)}
    assert (
        describe(one, [gone(0, 10, closed=True, phase="wait", exit_code=1)])
        == "the script exited after step 15"
    )


@pytest.mark.parametrize(
    ("code", "says"),
    [(3, "the script exited after step 15"), (139, "r0 was killed or crashed, after step 15, in forward")],
)
def test_exit_code_of_the_command_is_that_of_the_only_rank(code: int, says: str) -> None:
    """The monitor collected the command before the kernel was asked how its process ended: on a busy machine
    both happen at once. A code that a shell gives for a signal says nothing about the script."""
    ended = gone(0, 10, closed=code < 128)
    one = RunRecording(ranks=[made.rank(made.steps(15, **USUAL), 0)], monitor_events=[ended])
    facts = RunFacts("demo", "failed", code, begin_ns=0, end_ns=60_000 * MS)
    assert summarize(one, facts).run.reason == says
