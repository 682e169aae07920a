"""Noticing that no rank makes progress, from made-up recordings of live processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit import made
from tests.unit.test_exit_times import keeps_status
from traceml.capture import slots
from traceml.monitor.loop import Monitor
from traceml.monitor.watchdog import Watchdog, phase_name
from traceml.recording import layout
from traceml.recording.tail import Tail, live_tail
from traceml.recording.writer import RecordingWriter
from traceml.schema import catalog as c
from traceml.settings import Settings

STALL_AFTER_S = 30.0
S = 1_000_000_000


def _alive() -> Iterator[subprocess.Popen[bytes]]:
    """Something that is alive."""
    running = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
    yield running
    running.kill()
    running.wait()


process = pytest.fixture(_alive, name="process")
other = pytest.fixture(_alive, name="other")


def recording(folder: Path, rank: int, pid: int, silent_s: float, steps: int = 60) -> RecordingWriter:
    """A rank of this process whose last step ended, or which began to train, `silent_s` ago."""
    (folder / "recording").mkdir(exist_ok=True)
    path = folder / "recording" / f"rank-{rank}.{pid}.steps"
    begin_ns = time.perf_counter_ns() - int((silent_s + steps * 0.05) * S)
    header = {"identity": {"rank": rank, "pid": pid}, "process": {"clock_ns": begin_ns}}
    writer = RecordingWriter(str(path), c.STEP_COLUMNS, header)
    for row in made.steps(steps, forward=50.0, begin_ns=begin_ns):
        writer.append(*[row[name].item() for name, _ in c.STEP_COLUMNS])
    return writer


def test_a_stall_is_reported_once_with_the_place_of_each_rank(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    """No step for 40 s where 50 ms are usual: one line, and a note on disk for the summary."""
    recording(tmp_path, 0, process.pid, 40).live[layout.LIVE_PHASE] = c.FORWARD
    watchdog = Watchdog(Tail(tmp_path), STALL_AFTER_S)
    line = watchdog.look()
    assert line is not None
    assert "r0 in forward after step 60" in line
    assert watchdog.look() is None
    noted = (tmp_path / "recording" / "monitor.events.jsonl").read_text().splitlines()
    assert [json.loads(text)["kind"] for text in noted] == ["stall"]


def test_a_validation_is_no_stall_even_between_its_batches(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    """Between two batches no rank is in validation, but one was a moment ago."""
    live = recording(tmp_path, 0, process.pid, 40).live
    watchdog = Watchdog(Tail(tmp_path), STALL_AFTER_S)
    live[layout.LIVE_PHASE] = c.VALIDATION
    assert watchdog.look() is None
    live[layout.LIVE_PHASE] = c.WAIT_OTHER
    assert watchdog.look() is None


def test_a_checkpoint_that_never_ends_is_a_stall(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    """Ten hours in a checkpoint are reported, although checkpoints may take long."""
    recording(tmp_path, 0, process.pid, 36_000).live[layout.LIVE_PHASE] = c.CHECKPOINT
    line = Watchdog(Tail(tmp_path), STALL_AFTER_S).look()
    assert line is not None
    assert "r0 in checkpoint" in line


def test_a_hang_in_the_first_step_is_a_stall(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    """The first step may take longer (compilation); after that the place of each rank is reported."""
    live = recording(tmp_path, 0, process.pid, 100, steps=0).live
    live[layout.LIVE_PHASE] = c.BACKWARD
    assert Watchdog(Tail(tmp_path), STALL_AFTER_S).look() is None
    line = Watchdog(Tail(tmp_path), STALL_AFTER_S / 2).look()
    assert line is not None
    assert "r0 in backward of its first step" in line


def test_a_rank_that_hangs_alone_is_reported(
    tmp_path: Path, process: subprocess.Popen[bytes], other: subprocess.Popen[bytes]
) -> None:
    """If ranks do not wait for each other, the one that hangs is named once while the others train."""
    recording(tmp_path, 0, process.pid, 0)
    live = recording(tmp_path, 1, other.pid, 40).live
    watchdog = Watchdog(Tail(tmp_path), STALL_AFTER_S)
    live[layout.LIVE_PHASE] = c.SYNC
    assert watchdog.look() is None, "it has finished its work and waits for the others"
    live[layout.LIVE_PHASE] = c.FORWARD
    line = watchdog.look()
    assert line is not None
    assert "while other ranks keep training" in line
    assert "r1 in forward after step 60" in line
    assert "r0" not in line
    for phase in (c.SYNC, c.FORWARD, c.VALIDATION, c.WAIT_OTHER):
        live[layout.LIVE_PHASE] = phase
        assert watchdog.look() is None, "reported once while it lasts"


def test_one_rank_may_validate_alone(
    tmp_path: Path, process: subprocess.Popen[bytes], other: subprocess.Popen[bytes]
) -> None:
    """While another rank trains, it is reported neither during a validation batch nor between two of them."""
    recording(tmp_path, 0, process.pid, 0)
    live = recording(tmp_path, 1, other.pid, 40).live
    watchdog = Watchdog(Tail(tmp_path), STALL_AFTER_S)
    for phase in (c.VALIDATION, c.WAIT_OTHER, c.VALIDATION, c.WAIT_OTHER):
        live[layout.LIVE_PHASE] = phase
        assert watchdog.look() is None


def test_a_command_that_runs_on_without_ranks_is_reported(
    tmp_path: Path, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank was killed and its launcher hangs: this is reported once, after a while."""
    recording(tmp_path, 0, process.pid, 0)
    watchdog = Watchdog(Tail(tmp_path), STALL_AFTER_S)
    watchdog.look()
    process.kill()
    process.wait()
    assert watchdog.look() is None
    now = time.perf_counter_ns()
    monkeypatch.setattr("traceml.monitor.watchdog.time.perf_counter_ns", lambda: now + 400 * S)
    line = watchdog.look()
    assert line is not None
    assert "r0 was killed or crashed after step 60" in line
    assert watchdog.look() is None


def test_ended_processes_are_looked_at_no_more(tmp_path: Path) -> None:
    """A sweep of many short processes costs the monitor nothing once they are gone."""
    (tmp_path / "recording").mkdir()
    for number in range(50):
        identity = {"rank": 0, "pid": 2**22 + number}
        path = tmp_path / "recording" / f"rank-0.{2**22 + number}.steps"
        RecordingWriter(str(path), c.STEP_COLUMNS, {"identity": identity}).close()
    tail = live_tail(tmp_path)
    watchdog = Watchdog(tail, 30.0)
    assert len(tail.local_ranks()) == 50
    watchdog.look()
    assert tail.local_ranks() == []
    assert len(tail.read().ranks) == 50


def test_step_completed_just_before_the_end_is_counted(
    tmp_path: Path, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank completes a step and is killed between reading its rows and asking whether it lives."""
    writer = recording(tmp_path, 0, process.pid, silent_s=0, steps=24)

    def ends_meanwhile(_pid: int) -> bool:
        row = made.steps(1, forward=1, first_step=25)[0]
        if writer.count == 24:
            writer.append(*(row[name].item() for name, _ in c.STEP_COLUMNS))
        return False

    monkeypatch.setattr("traceml.monitor.watchdog.is_alive", ends_meanwhile)
    Watchdog(Tail(tmp_path), STALL_AFTER_S).look()
    (ended,) = map(json.loads, (tmp_path / "recording" / "monitor.events.jsonl").read_text().splitlines())
    assert ended["step"] == 25


def test_end_of_a_rank_that_closed_its_recording_is_noted_when_it_exits(
    tmp_path: Path, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only then does the kernel tell how it ended; the time is when it closed its recording. A process that
    never exits is noted after a while."""
    events = tmp_path / "recording" / "monitor.events.jsonl"
    writer = recording(tmp_path, 0, process.pid, 0)
    watchdog = Watchdog(live_tail(tmp_path), STALL_AFTER_S)
    watchdog.look()
    writer.close()
    before = time.perf_counter_ns()
    watchdog.look()
    assert not events.exists(), "it is about to exit"
    time.sleep(0.3)
    process.kill()
    process.wait()
    watchdog.look()
    (ended,) = map(json.loads, events.read_text().splitlines())
    assert ended["closed"] is True
    assert ended.get("signal") == ("SIGKILL" if keeps_status() else None)
    assert ended["time_ns"] - before < 0.2 * S
    recording(tmp_path, 1, os.getpid(), 0).close()
    watchdog.look()
    now = time.perf_counter_ns()
    monkeypatch.setattr("traceml.monitor.watchdog.time.perf_counter_ns", lambda: now + 60 * S)
    watchdog.look()
    assert len(events.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("slot", "says"),
    [
        (slots.AFTER_VALIDATION, "validation"),
        (slots.AFTER_PENDING, "validation or forward without gradients"),
        (slots.PENDING_NO_GRAD, "validation or forward without gradients"),
        (slots.PENDING_GAP, "validation or forward without gradients"),
        (slots.PENDING_EVAL, "forward or validation"),
        (slots.PENDING_FETCH, "input"),
        (slots.TRANSFORM, "forward"),
        (c.WAIT_START, "wait (right after the optimizer step)"),
    ],
)
def test_place_of_a_rank_is_told_while_its_phase_is_in_doubt(slot: int, says: str) -> None:
    """A rank killed or stuck inside a validation loop is in validation, also between two of its batches."""
    assert phase_name(slot % 256).startswith(says)


def test_end_of_a_rank_is_noted_if_the_command_is_over_at_the_first_look(
    tmp_path: Path, process: subprocess.Popen[bytes]
) -> None:
    """A training of a few milliseconds on a busy machine: it is over before the monitor gets a core."""
    recording(tmp_path, 0, process.pid, 0)
    process.kill()
    process.wait()
    assert Monitor(tmp_path, ["train.py"], Settings()).watch(lambda _seconds: -9) == -9
    noted = (tmp_path / "recording" / "monitor.events.jsonl").read_text().splitlines()
    assert [(json.loads(text)["kind"], json.loads(text)["rank"]) for text in noted] == [("rank_ended", 0)]
