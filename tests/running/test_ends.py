"""However a run ends: its own exit code, no completed step lost, a summary that says how it ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.running.processes import eventually
from tests.running.scripts import write
from tests.scenarios.preloaded import PreloadedTraceml
from tests.scenarios.scenario import SRC, traceml

MARK = "print(step, flush=True)"


def summary_of(folder: Path) -> dict[str, Any]:
    """The summary of the only run in this folder."""
    (path,) = (folder / "logs").glob("*/final_summary.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def start(folder: Path, script: Path, *words: str) -> subprocess.Popen[str]:
    """`traceml run` in a process group of its own, its output piped."""
    return subprocess.Popen(
        [sys.executable, "-m", "traceml", "run", *words, str(script)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SRC)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_step(running: subprocess.Popen[str], step: int) -> None:
    """Read the script's output until it has completed this step."""
    assert running.stdout is not None
    for line in running.stdout:
        if line.strip() == str(step):
            return
    pytest.fail(f"ended before step {step}: {running.stderr.read() if running.stderr else ''}")


@pytest.mark.timed
@pytest.mark.parametrize(
    ("ending", "code", "status", "reason", "by_python"),
    [
        ("", 0, "completed", None, True),
        ("sys.exit(3)", 3, "failed", "the script exited after step 30", True),
        ("raise ValueError('no such thing')", 1, "failed", "ValueError: no such thing", True),
        ("import os; os.kill(os.getpid(), 9)", -9, "killed", "killed by SIGKILL", False),
        ("import os; os.abort()", -6, "killed", "killed by SIGABRT", False),
        ("import os; os._exit(5)", 5, "failed", "the script exited after step 30, in wait", False),
        (
            "import signal, os; os.kill(os.getpid(), signal.SIGSEGV)",
            -11,
            "killed",
            "killed by SIGSEGV",
            False,
        ),
    ],
)
def test_each_end_keeps_the_exit_code_and_every_step(
    tmp_path: Path,
    preloaded: PreloadedTraceml,
    ending: str,
    code: int,
    status: str,
    reason: str | None,
    by_python: bool,
) -> None:
    """The exit code is the plain command's, all 30 steps are there, the status says how it ended."""
    # The monitor looks ten times per second, and must have seen the process to know how it ended.
    script = write(tmp_path, f"train(30)\nimport time\ntime.sleep(0.5)\n{ending}\n")
    command = traceml if by_python else preloaded  # the kernel ends a fork as it ends a new Python
    done = command("run", str(script), cwd=tmp_path)
    assert done.returncode == code
    summary = summary_of(tmp_path)
    assert summary["run"]["steps"]["total"] == 30
    assert summary["run"]["status"] == status
    assert summary["run"]["exit_code"] == code
    told = summary["run"]["reason"]
    assert told is None if reason is None else told.startswith(reason), told


def test_a_crash_keeps_its_own_traceback(tmp_path: Path) -> None:
    """The traceback is the plain one, without a frame of ours, and comes before the verdict."""
    script = write(
        tmp_path,
        """
        class Broken(nn.Module):
            def forward(self, x):
                raise RuntimeError("inside forward")
        train(5)
        model.add_module("2", Broken())
        train(1)
        """,
    )
    plain = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    traced = traceml("run", str(script), cwd=tmp_path)
    assert plain.returncode == traced.returncode == 1
    assert traced.stderr.startswith(plain.stderr)
    assert "traceml" not in plain.stderr
    assert traced.stderr.index("inside forward") < traced.stderr.index("Verdict")


@pytest.mark.parametrize("how", ["monitor alone", "whole group"])
def test_ctrl_c_reaches_the_script_and_the_summary_still_comes(tmp_path: Path, how: str) -> None:
    """SIGINT is a KeyboardInterrupt in the script: `finally` and `atexit` run, then the verdict comes."""
    script = write(
        tmp_path,
        f"""
        import atexit
        atexit.register(lambda: print("atexit ran", flush=True))
        try:
            train(100000, lambda step: ({MARK}, time.sleep(0.002)))
        finally:
            print("finally ran", flush=True)
        """,
    )
    running = start(tmp_path, script)
    wait_for_step(running, 25)
    if how == "whole group":
        os.killpg(running.pid, signal.SIGINT)
    else:
        os.kill(running.pid, signal.SIGINT)
    out, err = running.communicate(timeout=180)
    assert "finally ran" in out
    assert "atexit ran" in out
    assert "KeyboardInterrupt" in err
    assert running.returncode == -signal.SIGINT
    summary = summary_of(tmp_path)
    assert summary["run"]["status"] == "interrupted"
    assert summary["run"]["steps"]["total"] >= 25
    assert "Verdict" in err


def test_sigterm_is_passed_on_and_the_summary_still_comes(tmp_path: Path) -> None:
    """SIGTERM to the monitor alone (Slurm, docker stop) ends the training, and the verdict comes."""
    script = write(tmp_path, f"train(100000, lambda step: ({MARK}, time.sleep(0.002)))")
    running = start(tmp_path, script)
    wait_for_step(running, 25)
    os.kill(running.pid, signal.SIGTERM)
    _, err = running.communicate(timeout=180)
    assert running.returncode == -signal.SIGTERM
    summary = summary_of(tmp_path)
    assert summary["run"]["status"] == "interrupted"
    assert "SIGTERM" in summary["run"]["reason"]
    assert "Verdict" in err


def trainer_pid(folder: Path) -> int:
    """The process that trains, from the name of its recording."""
    (path,) = folder.glob("logs/*/recording/rank-0.*.steps")
    return int(path.name.split(".")[1])


@pytest.mark.parametrize("at", [1, 2, 7, 40])
def test_sigkill_of_the_trainer_loses_no_completed_step(
    tmp_path: Path, preloaded: PreloadedTraceml, at: int
) -> None:
    """Every step that the script saw completed before `kill -9` is in the summary."""
    script = write(tmp_path, f"train(100000, lambda step: ({MARK}, time.sleep(0.003)))")
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(preloaded, "run", str(script), cwd=tmp_path)
        output = tmp_path / "stdout.txt"
        eventually(lambda: run.done() or (output.exists() and str(at) in output.read_text().split()), "step")
        os.kill(trainer_pid(tmp_path), signal.SIGKILL)
        done = run.result()
    assert done.returncode == -signal.SIGKILL
    seen = max(int(line) for line in done.stdout.split())
    assert seen >= at
    summary = summary_of(tmp_path)
    assert summary["run"]["steps"]["total"] in (seen, seen + 1)  # the kill may come before the print
    assert summary["run"]["status"] == "killed"


def test_the_monitor_killed_leaves_training_unharmed_and_view_rebuilds(tmp_path: Path) -> None:
    """kill -9 of the monitor: training runs to its end, and `traceml view` makes the summary afterwards.

    A look in between shows what is there, and does not freeze it as the result."""
    script = write(
        tmp_path,
        f"""
        import os
        def each(step):
            {MARK}
            while step == 30 and not os.path.exists('go'):
                time.sleep(0.01)
        train(60, each)
        open('finished', 'w').write('yes')
        """,
    )
    running = start(tmp_path, script)
    wait_for_step(running, 30)
    os.kill(running.pid, signal.SIGKILL)
    running.wait(timeout=120)
    (folder,) = (tmp_path / "logs").iterdir()
    early = traceml("view", str(folder), cwd=tmp_path)
    assert early.returncode == 0, early.stderr
    assert "running, 30 steps" in early.stdout
    assert "training goes on" in early.stdout
    assert not (folder / "final_summary.json").exists()
    assert '"running"' in traceml("runs", "--json", cwd=tmp_path).stdout
    (tmp_path / "go").touch()
    deadline = time.monotonic() + 180
    while not (folder / "final_summary.json").exists():
        assert time.monotonic() < deadline, "training did not finish"
        viewed = traceml("view", str(folder), cwd=tmp_path)
        assert viewed.returncode == 0, viewed.stderr
    assert (tmp_path / "finished").exists()
    assert "60 steps" in viewed.stdout
    assert summary_of(tmp_path)["run"]["steps"]["total"] == 60


@pytest.mark.parametrize("steps", [0, 1])
def test_too_few_steps_are_said_so(tmp_path: Path, preloaded: PreloadedTraceml, steps: int) -> None:
    """Zero or one step: NO DATA, honestly, and the script's exit code."""
    script = write(tmp_path, "train(1)" if steps else "print('no training here')")
    done = preloaded("run", str(script), cwd=tmp_path)
    assert done.returncode == 0
    summary = summary_of(tmp_path)
    assert summary["primary_diagnosis"]["status"] == "NO DATA"
    assert summary["run"]["steps"]["total"] == steps
    assert (summary["step_time"]["metrics"]["step_ms"]["average"] is None) == (steps == 0)


def test_standard_output_carries_the_training_s_bytes_only(tmp_path: Path) -> None:
    """Standard output is byte for byte that of the plain command; ours goes to standard error."""
    script = write(tmp_path, "train(30)\nsys.stdout.buffer.write(bytes(range(256)))\n")
    plain = subprocess.run([sys.executable, str(script)], capture_output=True, check=True)
    traced = subprocess.run(
        [sys.executable, "-m", "traceml", "run", str(script)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        check=True,
    )
    assert traced.stdout == plain.stdout
    assert b"Verdict" in traced.stderr
    assert b"ERROR" not in traced.stderr


def test_a_process_that_replaces_itself_has_not_crashed(tmp_path: Path) -> None:
    """`os.execv` after some steps: an one training, in two attempts that ended well."""
    write(
        tmp_path,
        """
        import os
        train(16)
        if "again" not in sys.argv:
            os.execv(sys.executable, [sys.executable, sys.argv[0], "again"])
        """,
    )
    done = traceml("run", "train.py", "--run-name", "r", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = json.loads((tmp_path / "logs" / "r" / "final_summary.json").read_text())["run"]
    assert (run["steps"]["total"], run["recorded_steps"]) == (32, 32)
    assert [attempt["reason"] for attempt in run["ranks"]["earlier_attempts"]] == [None]
    assert "crashed" not in done.stderr


def test_view_rebuilds_a_summary_that_was_made_too_early(tmp_path: Path, preloaded: PreloadedTraceml) -> None:
    """A summary with fewer steps than the recording is never shown: the recording has the truth."""
    preloaded("run", str(write(tmp_path, "train(8)")), "--run-name", "early", cwd=tmp_path)
    folder = tmp_path / "logs" / "early"
    whole = json.loads((folder / "final_summary.json").read_text())
    early = {**whole, "run": {**whole["run"], "recorded_steps": 3}}
    early["run"]["steps"] = {**whole["run"]["steps"], "total": 3}
    (folder / "final_summary.json").write_text(json.dumps(early))
    done = traceml("view", "early", "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["run"]["steps"]["total"] == whole["run"]["steps"]["total"]
    assert json.loads((folder / "final_summary.json").read_text())["run"]["recorded_steps"] > 3
