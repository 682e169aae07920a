"""The whole summary of hand-made runs: time adds up, notes report problems, and null is never 0."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.unit import made
from traceml.analyze.summarize import summarize
from traceml.schema import catalog as c
from traceml.schema.recorded import RankRecording, RecordedEvent, RunFacts, RunRecording
from traceml.schema.summary import Event, Ranks, Run, Summary

FACTS = RunFacts("demo", "completed", 0, begin_ns=0, end_ns=4_000_000_000, cores=4)
USUAL: dict[str, Any] = {"input": 1.0, "forward": 4.0, "backward": 4.0, "optimizer": 1.0}


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
def test_run_of_any_length_has_a_summary(count: int) -> None:
    """No step, one step, many: valid JSON, four sections with a diagnosis, no NaN anywhere."""
    found = summary_of(made.rank(made.steps(count, **USUAL)))
    decoded = msgspec.json.decode(msgspec.json.encode(found))
    assert all(math.isfinite(n) for n in numbers(decoded))
    for section in (found.step_time, found.step_memory, found.system, found.process):
        assert section.diagnosis is section.issues[0]
    assert found.run.steps.total == count


def test_seconds_of_a_run_add_up() -> None:
    """Startup, steps, dropped steps and the end add up to the duration of the run."""
    first = made.steps(50, begin_ns=1_000_000_000, **USUAL)
    gap = 300_000_000  # an aborted step recorded nothing: its time is a gap
    later = made.steps(50, begin_ns=int(first["end_ns"][-1]) + gap, first_step=51, **USUAL)
    found = summary_of(made.rank(np.concatenate([first, later]))).run
    assert found.duration_s == 4.0
    assert sum(v for v in found.accounting.values() if v is not None) == pytest.approx(4.0)
    assert found.accounting == pytest.approx(
        {"startup_s": 1.0, "steps_s": 1.0, "dropped_steps_s": 0.3, "after_last_step_s": 1.7}
    )


def test_validation_and_checkpoints_outside_steps_have_their_share() -> None:
    """Before the first and after the last step, and in warm-up: every second of the run has a name."""
    rows = made.steps(50, begin_ns=2_000_000_000, validation=[500.0, *[0.0] * 49], **USUAL)
    end_ns = int(rows["end_ns"][-1])
    outside = [
        {"kind": "validation", "time_ns": 500_000_000, "duration_ns": 1_000_000_000},
        {"kind": "validation", "time_ns": end_ns, "duration_ns": 400_000_000},
        {"kind": "checkpoint", "time_ns": end_ns + 400_000_000, "duration_ns": 100_000_000},
        {"kind": "checkpoint", "time_ns": 2_100_000_000, "duration_ns": 1_000_000, "step": 2},  # in a step
    ]
    found = summary_of(made.rank(rows, events=outside)).run
    assert found.accounting == pytest.approx(
        {
            "startup_s": 1.0,
            "validation_before_s": 1.0,
            "steps_s": 1.0,
            "dropped_steps_s": 0.0,
            "validation_after_s": 0.4,
            "checkpoint_after_s": 0.1,
            "after_last_step_s": 0.5,
        }
    )
    labels = [(p.label, round(p.seconds, 3)) for p in found.parts]
    assert labels == [
        ("Start-up", 1.0),
        ("Validation before", 1.0),
        ("Warm-up steps", 0.51),
        ("Steps", 0.49),
        ("Validation after", 0.4),
        ("Checkpoint after", 0.1),
        ("End", 0.5),
    ]
    assert sum(p.share for p in found.parts) == pytest.approx(1.0)
    assert next(p.about for p in found.parts if p.label == "Warm-up steps") == "1 step: validation 500.0 ms"


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


def test_same_rows_give_the_same_summary() -> None:
    """Analysis is pure: the bytes are equal."""
    rank = made.rank(made.steps(100, **USUAL))
    assert msgspec.json.encode(summary_of(rank)) == msgspec.json.encode(summary_of(rank))


def test_missing_rank_is_named_and_does_not_hide_the_others() -> None:
    """Ranks are listed as seen, used or lost; the diagnosis uses those that have rows."""
    trains = made.rank(made.steps(60, input=40, forward=60), 0, world_size=4)
    silent = made.rank(made.steps(0), 2, world_size=4)
    found = summary_of(trains, silent)
    assert found.run.world_size == 4
    assert found.run.ranks == Ranks(seen=[0, 2], used=[0], lost=[1, 2, 3])
    assert found.primary_diagnosis.status == "INPUT-BOUND"
    assert "No step was completed by r2." in found.run.notes
    assert "Nothing was recorded for r1, r3 (4 ranks were expected)." in found.run.notes


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (set(), "No Python process started under TraceML"),
        ({"python"}, "torch was never imported"),
        ({"python", "torch"}, "no backward pass or optimizer step ran"),
        ({"python", "torch", "loader"}, "a data loader was read, but no backward pass"),
        ({"python", "old-python"}, "older than 3.10"),
    ],
)
def test_run_that_recorded_nothing_says_why(seen: set[str], words: str) -> None:
    """Without a rank: NO DATA, with what was seen and what to do."""
    found = summarize(RunRecording(ranks=[], seen=frozenset(seen)), FACTS).primary_diagnosis
    assert found.status == "NO DATA"
    assert words in found.summary
    assert found.action != "Let the run complete a few steps."


def test_backward_passes_without_an_optimizer_are_counted() -> None:
    """One inferred step is not enough, and the summary says what was missing."""
    rank = made.rank(made.steps(1, extra_flags=c.FLAG_STEP_INFERRED, **USUAL))
    assert summary_of(rank).primary_diagnosis.summary.startswith("One backward pass began, but no optimizer")


def failed_early(*errors: tuple[int, int, str], ranks: tuple[RankRecording, ...] = ()) -> Run:
    """A run that failed; each error is (process, its rank or -1, message), in the order of time."""
    events = [
        RecordedEvent("error", pid=pid, rank=rank, message=message, wall_ns=at, time_ns=at)
        for at, (pid, rank, message) in enumerate(errors, 1)
    ]
    recording = replace(made.run(*ranks), early_events=events, seen=frozenset({"python", "torch"}))
    return summarize(recording, replace(FACTS, status="failed", exit_code=1)).run


def test_exception_before_the_first_step_is_the_reason() -> None:
    """Also without any recording; a helper that failed before is not the reason."""
    assert failed_early((7, -1, "ValueError: no\nconfig")).reason == "ValueError: no config"
    assert failed_early((8, -1, "ImportError: probe"), (7, -1, "OSError: x")).reason == "OSError: x"


def test_first_rank_that_failed_early_is_the_reason() -> None:
    """Not the ranks that fail because it is gone, and not the launcher that only reports it."""
    launcher = (1, -1, "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: 2 failed")
    echo = (3, 0, "RuntimeError: Connection closed by peer")
    assert failed_early((4, 1, "KeyError: 'shard 1'"), echo, launcher).reason == "r1: KeyError: 'shard 1'"
    spawned = "ProcessRaisedException: \n\nTraceback (most recent call last):\n  File\nOSError: no data"
    assert failed_early((1, -1, spawned)).reason == "OSError: no data"


FAILURE = """[{}]:
  time      : 2026-11-18_17:48:39
  rank      : {} (local_rank: 0)
  exitcode  : {} (pid: 16811)  (SIGTERM)
"""


@pytest.mark.parametrize(
    ("first", "other", "expected"),
    [
        ((1, -9), (0, -15), "r1 ended first: it was killed by SIGKILL"),
        ((0, -15), (1, -9), "r1 ended first: it was killed by SIGKILL"),
        ((3, 7), (0, -15), "r3 ended first: it exited with code 7"),
    ],
)
def test_rank_killed_before_its_first_step_is_named_by_the_launcher(
    first: tuple[int, int], other: tuple[int, int], expected: str
) -> None:
    """It left no word. torchrun lists it, and the ranks that it ended itself."""
    cause, rest = FAILURE.format(0, *first), FAILURE.format(1, *other)
    text = f"ChildFailedError: Root Cause (first observed):\n{cause}====\ntrain.py FAILED\nFailures:\n{rest}"
    assert failed_early((1, -1, text)).reason == expected


def test_error_of_a_rank_that_recorded_is_reported_once() -> None:
    """Its own recording has the same exception: that one counts, with its step."""
    error = {"kind": "error", "message": "ValueError: in step 51", "time_ns": 5}
    rank = made.rank(made.steps(50, **USUAL), pid=7, events=[error])
    assert failed_early((7, -1, "ValueError: in step 51"), ranks=(rank,)).reason == "ValueError: in step 51"


def test_a_recording_that_failed_before_the_first_step_is_the_reason() -> None:
    """Keras broke capture once, and the summary said that no backward pass ran: it must say what failed."""
    failed = RecordedEvent("capture_failed", message="forward detection failed (TypeError: x)", pid=7)
    found = summarize(RunRecording([], seen=frozenset({"python", "torch"}), early_events=[failed]), FACTS)
    assert "because forward detection failed (TypeError: x)" in found.primary_diagnosis.summary
    assert "no backward pass" not in found.primary_diagnosis.summary


def test_running_job_without_steps_has_no_note() -> None:
    """A live view before the first step does not report that nothing was recorded."""
    assert summarize(RunRecording(ranks=[]), RunFacts("demo"), final=False).run.notes == []


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"lost_rows": True}, "The disk was full"),
        (
            {
                "lost_rows": True,
                "events": [RecordedEvent("capture_failed", 7, message="loader detection failed")],
            },
            "On r0, at step 7: loader detection failed",
        ),
        (
            {"events": [RecordedEvent("optimizers", 9, message="Several optimizers are in use.")]},
            "Several optim",
        ),
        ({"rows": made.steps(50, extra_flags=c.FLAG_INPUT_INFERRED, **USUAL)}, "Input time is inferred"),
        ({"rows": made.steps(50, extra_flags=c.FLAG_STEP_INFERRED, **USUAL)}, "Steps are inferred"),
        (
            {"rows": made.steps(50, **{**USUAL, "forward": [900.0, *[4.0] * 49]})},
            "Left out as warm-up: 1 step",
        ),
    ],
)
def test_what_a_reader_must_know_about_the_recording_is_noted(parts: dict[str, Any], words: str) -> None:
    """Each has its note."""
    rank = made.rank(**{"rows": made.steps(50, **USUAL), **parts})
    assert any(words in note for note in summary_of(rank).run.notes)


def test_waiting_for_cores_is_noted_and_considered() -> None:
    """Threads waited for a core 12 % of the time: there is a note, and JITTER takes it into account."""
    forward = np.where(np.random.default_rng(5).permutation(200) < 20, 250.0, 100.0)
    rank = made.rank(made.steps(200, forward=forward))
    rows = made.process(10, cpu_delay_percent=12.0)
    rows["time_ns"] = np.linspace(rank.rows["begin_ns"][0], rank.rows["end_ns"][-1], 10).astype(np.int64)
    alone, disturbed = summary_of(rank), summary_of(rank, process_rows=rows)
    assert alone.primary_diagnosis.kind == "JITTER"
    assert disturbed.primary_diagnosis.kind == "COMPUTE_BOUND"
    assert any("waited for a CPU core 12.0 %" in note for note in disturbed.run.notes)


def test_problems_of_the_reader_are_noted() -> None:
    """A damaged file has a note and does not hide the rest."""
    found = summary_of(made.rank(made.steps(50, **USUAL)), problems=["rank-1.steps: damaged header"])
    assert found.run.notes[0] == "rank-1.steps: damaged header"
    assert found.run.steps.total == 50


def test_error_of_a_failed_run_is_its_reason() -> None:
    """The error event of the training is the reason; a completed run has none."""
    rank = made.rank(made.steps(50, **USUAL), events=[{"kind": "error", "message": "ValueError: boom"}])
    failed = replace(FACTS, status="failed", exit_code=1)
    assert summary_of(rank, facts=failed).run.reason == "ValueError: boom"
    assert summary_of(rank).run.reason is None


def test_events_are_sorted_and_in_the_units_of_the_summary() -> None:
    """Sorted by time, with seconds since the start, duration in milliseconds, and the rank."""
    events = [
        {"kind": "gc", "step": 7, "time_ns": 2_000_000_000, "duration_ns": 5_000_000},
        {"kind": "epoch_start", "step": 1, "time_ns": 1_000_000_000, "workers": 2},
        {"kind": "odd"},
    ]
    found = summary_of(made.rank(made.steps(50, **USUAL), events=events)).events
    assert [e.kind for e in found] == ["epoch_start", "gc", "odd"]
    assert found[0] == Event("epoch_start", rank=0, step=1, time_s=1.0, duration_ms=0, workers=2)
    assert (found[1].time_s, found[1].duration_ms) == (2.0, 5.0)
    assert found[2].time_s is None


def test_events_without_a_time_come_last() -> None:
    """Events of a run whose start is unknown, or without a time, have no time in the summary."""
    events = [{"kind": "odd"}, {"kind": "odder"}, {"kind": "gc", "time_ns": 5}]
    found = summary_of(made.rank(made.steps(50, **USUAL), events=events), facts=RunFacts("demo")).events
    assert [e.time_s for e in found] == [None, None, None]


def test_only_the_longest_of_very_many_events_are_kept() -> None:
    """At most 200 events."""
    events = [{"kind": "gc", "time_ns": i, "duration_ns": i * 1000} for i in range(1, 1001)]
    found = summary_of(made.rank(made.steps(50, **USUAL), events=events)).events
    assert len(found) == 200
    assert min(e.duration_ms for e in found) == pytest.approx(0.801)


def test_environment_has_batch_size_and_versions() -> None:
    """From the rank's header and rows; an unknown batch size is null."""
    known = summary_of(made.rank(made.steps(50, samples=32, **USUAL))).environment
    assert (known.torch, known.device, known.batch_size) == ("2.13.0", "cpu", 32)
    assert summary_of(made.rank(made.steps(50, **USUAL))).environment.batch_size is None


def test_overhead_is_reported() -> None:
    """µs per step and its share of step time, from the costs measured when recording began."""
    rank = made.rank(made.steps(50, **USUAL), overhead={"switch_ns": 1000, "row_ns": 5000})
    found = summary_of(rank).overhead
    assert found.us_per_step == pytest.approx(10.0)
    assert found.share == pytest.approx(0.001)
    assert summary_of(made.rank(made.steps(0))).overhead.us_per_step is None


def test_overhead_is_what_was_measured_in_real_steps() -> None:
    """Where recording measured itself, that is reported, and not the estimate of when it began."""
    rank = made.rank(made.steps(50, **USUAL), own_scale=0.3, overhead={"switch_ns": 1000, "row_ns": 5000})
    assert summary_of(rank).overhead.us_per_step == pytest.approx(3.0)


def c_switch_notes(*ranks: RankRecording) -> list[str]:
    return [note for note in summary_of(*ranks).run.notes if "C phase switch" in note]


def test_a_missing_c_switch_is_reported_once_with_its_cost() -> None:
    """Without the C switch one note says so and gives the cost per step that was measured in this run."""
    python = {"switch_ns": 1000, "row_ns": 5000, "in_c": False}
    ranks = [made.rank(made.steps(50, **USUAL), n, world_size=2, overhead=python) for n in (0, 1)]
    (note,) = c_switch_notes(*ranks)
    assert "is not in use:" in note
    assert "at about 10.0 µs per step" in note


def test_ranks_without_the_c_switch_are_named_if_others_have_it() -> None:
    """The note names the ranks that lack the C switch and gives their cost, not the mean of all ranks."""
    with_c = made.rank(
        made.steps(50, **USUAL), 0, world_size=2, overhead={"switch_ns": 100, "row_ns": 500, "in_c": True}
    )
    without = made.rank(
        made.steps(50, **USUAL), 1, world_size=2, overhead={"switch_ns": 1000, "row_ns": 5000, "in_c": False}
    )
    (note,) = c_switch_notes(with_c, without)
    assert "is not in use on r1:" in note
    assert "at about 10.0 µs per step" in note


@pytest.mark.parametrize("overhead", [{}, {"in_c": True, "switch_ns": 100, "row_ns": 500}])
def test_no_note_about_the_c_switch_without_evidence(overhead: dict[str, Any]) -> None:
    """Nothing is said if the C switch is in use, or if the recording does not say."""
    assert c_switch_notes(made.rank(made.steps(50, **USUAL), overhead=overhead)) == []


def test_no_cost_of_the_python_switch_without_steps() -> None:
    """Without a completed step there is no cost to give; the note gives none."""
    python = {"switch_ns": 1000, "row_ns": 5000, "in_c": False}
    (note,) = c_switch_notes(made.rank(made.steps(0), overhead=python))
    assert "per step" not in note


def test_every_metric_is_in_the_catalog() -> None:
    """Including user phases, so that readers of the file need no other knowledge."""
    rank = made.rank(made.steps(50, user0=1.0, **USUAL), user_names=["augment", *[None] * 6])
    found = summary_of(rank)
    rows = {(r.section, r.key) for r in found.catalog}
    for name in ("step_time", "step_memory", "system", "process"):
        assert {(name, key) for key in getattr(found, name).metrics} <= rows


def test_rank_that_died_early_is_left_out_and_named() -> None:
    """One step of r3, 200 of the others: the diagnosis does not use r3, and a note names it."""
    slow = made.steps(200, input=40.0, forward=60.0)
    ranks = [made.rank(slow.copy(), i, world_size=4) for i in range(3)]
    found = summary_of(*ranks, made.rank(slow[:1].copy(), 3, world_size=4))
    assert found.primary_diagnosis.status == "INPUT-BOUND"
    assert found.run.steps.total == 200
    assert "Left out because of too few steps (at most 1): r3." in found.run.notes


def test_ranks_without_a_recording_are_named() -> None:
    """Three recordings of four ranks; and a rank that waits for a missing rank is not BALANCED."""
    ranks = [made.rank(made.steps(60, **USUAL), i, world_size=4) for i in (0, 1, 3)]
    assert "Nothing was recorded for r2 (4 ranks were expected)." in summary_of(*ranks).run.notes
    keys = (*made.ALL_MEASURED, "sync")
    waits = made.rank(made.steps(60, measured=keys, forward=10.0, sync=90.0), 0, world_size=2)
    primary = summary_of(waits).primary_diagnosis
    assert primary.status == "INCOMPLETE DATA"
    assert "the other ranks" in primary.summary


def test_stall_is_noted() -> None:
    """Where each rank was when no rank made progress; those that did not wait for others come first."""
    noticed = [
        {"kind": "stall", "rank": rank, "step": 20, "phase": phase, "duration_ns": 40 * 10**9, "wall_ns": 5}
        for rank, phase in ((0, "sync"), (1, "forward"))
    ]
    ranks = [made.rank(made.steps(20, **USUAL), i, world_size=2) for i in range(2)]
    assert (
        "No rank completed a step for at least 40 s: r1 in forward after step 20, r0 in sync after step 20."
        in summary_of(*ranks, monitor_events=noticed).run.notes
    )


def test_an_impossible_world_size_is_not_believed() -> None:
    """WORLD_SIZE may hold anything: two thousand million ranks would take all memory to list."""
    found = summary_of(made.rank(made.steps(60, **USUAL), world_size=2_000_000_000))
    assert found.run.world_size == 1
    assert found.run.ranks.lost == []


def test_end_of_a_run_is_what_follows_its_last_step() -> None:
    """What comes before the first and after the last step is judged at the end of a completed run, without
    validation."""
    rows = made.steps(100, **USUAL)
    last = int(rows["end_ns"][-1])
    facts = RunFacts("demo", status="completed", exit_code=0, begin_ns=0, end_ns=last + 30 * 10**9)
    tested = {"kind": "validation", "step": 100, "time_ns": last, "duration_ns": 25 * 10**9}
    idle, validates = made.run(made.rank(rows)), made.run(made.rank(rows, events=made.events([tested])))
    assert "LONG_END" in {f.kind for f in summarize(idle, facts).step_time.issues}
    assert "LONG_END" not in {f.kind for f in summarize(idle, facts, final=False).step_time.issues}
    assert "LONG_END" not in {f.kind for f in summarize(validates, facts).step_time.issues}
    stopped = summarize(made.run(made.rank(rows, lost_rows=True)), facts)
    assert "LONG_END" not in {f.kind for f in stopped.step_time.issues}, "steps that were not recorded"
    assert stopped.run.parts[-1].about == "after the last step that was recorded"
    late = replace(facts, begin_ns=int(rows["begin_ns"][0]) - 40 * 10**9, end_ns=last + 1)
    assert summarize(idle, late).step_time.diagnosis.kind == "LONG_START"
    assert "LONG_START" not in {f.kind for f in summarize(idle, late, final=False).step_time.issues}
