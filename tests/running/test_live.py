"""Looking at a run while it goes on: the source of every live view."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.running.processes import read_until, start
from tests.running.scripts import write
from traceml.errors import CommandError
from traceml.monitor.live import LiveRun, find_run
from traceml.schema.live import CRASHED, FINISHED, LIVE, WAITING

STEPS = """
import os
def each(step):
    if step in (1, 40):
        print("at", step, flush=True)
    while step == 40 and not os.path.exists("go"):
        time.sleep(0.01)
print("up", flush=True)
while not os.path.exists("begin"):
    time.sleep(0.01)
train(60, each)
"""


def test_a_look_at_a_run_from_its_wait_to_its_end(tmp_path: Path) -> None:
    """Before the first step a look waits and invents no verdict. While the run goes on, it shows the
    completed steps, a verdict and since when. The run is found by its name, its folder, its summary and the
    process id of its monitor or rank. Then the look is the final one."""
    running = start(tmp_path, str(write(tmp_path, STEPS)), "--run-name", "r")
    read_until(running, "up")
    logs = tmp_path / "logs"
    waiting = LiveRun(find_run("r", logs)).look()
    assert (waiting.state, waiting.since_step) == (WAITING, None)
    assert waiting.summary.primary_diagnosis.kind == "NO_DATA"
    (tmp_path / "begin").touch()
    read_until(running, "at 40")

    run = LiveRun(find_run("r", logs))
    live = run.look()
    assert live.state == LIVE
    assert not live.is_over
    assert not live.summary.final
    assert live.summary.run.steps.total == 40
    assert live.summary.primary_diagnosis.kind != "NO_DATA"
    assert live.since_step == 40
    assert live.since_start, "it may be older than the first look"

    rank = live.summary.step_time.ranks["0"].identity.pid
    for name in ("r", str(logs / "r"), str(running.pid), str(rank)):
        assert find_run(name, logs) == logs / "r"
    with pytest.raises(CommandError, match="not a TraceML run folder"):
        find_run(str(tmp_path), logs)

    (tmp_path / "go").touch()
    running.communicate(timeout=180)
    ended = run.look()
    assert ended.state == FINISHED
    assert ended.summary.final
    assert ended.summary.run.steps.total == 60
    assert run.look() is ended, "an ended run is not read again"
    assert find_run(str(logs / "r" / "final_summary.json"), logs) == logs / "r"


def test_a_dead_run_never_looks_alive(tmp_path: Path) -> None:
    """If monitor and training are killed, a look says so at once or soon, with all steps until then."""
    (tmp_path / "begin").touch()
    running = start(tmp_path, str(write(tmp_path, STEPS)), "--run-name", "r")
    read_until(running, "at 40")
    os.killpg(running.pid, signal.SIGKILL)
    running.wait(60)
    run = LiveRun(find_run("r", tmp_path / "logs"))
    until = time.monotonic() + 30  # a killed process takes a moment to go
    while not (live := run.look()).is_over and time.monotonic() < until:
        time.sleep(0.1)
    assert live.state == CRASHED
    assert live.is_over
    assert live.summary.run.steps.total == 40
