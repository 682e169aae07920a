"""Signals reach the command exactly as they would without us: once, or not at all."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.running import processes
from tests.running.processes import counter, eventually, members, read_until, start, state, stop, traced
from tests.running.scripts import write

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGRTMIN + 2)
LAST = signal.SIGRTMAX


@pytest.fixture(autouse=True)
def _nothing_is_ignored() -> Iterator[None]:
    """Tests that were started in the background ignore SIGINT and SIGQUIT, and children inherit that."""
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def summary_of(folder: Path) -> dict[str, Any]:
    """The summary of the only run in this folder."""
    (path,) = (folder / "logs").glob("*/final_summary.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


TRAINS_UNTIL_STOP = """
import os
try:
    train(100000, lambda step: (print(step, flush=True), time.sleep(0.001), 1 / (not os.path.exists("stop"))))
except ZeroDivisionError:
    sys.exit(5)
"""


@pytest.mark.stack
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGTSTP], ids=["SIGSTOP", "SIGTSTP"])
def test_fifty_stops_at_random_moments_cost_nothing(tmp_path: Path, number: int) -> None:
    """A job that is stopped and continued (Ctrl-Z, `fg`) stops as a whole, goes on, and loses no step."""
    script = write(tmp_path, TRAINS_UNTIL_STOP)
    with (tmp_path / "out").open("w") as out:
        running = start(tmp_path, str(script), stdout=out)
    moments = random.Random(int(number))
    eventually(lambda: (tmp_path / "out").read_text() != "", "the training has not begun")
    training = members(running.pid)[2]
    for _ in range(50):
        time.sleep(moments.uniform(0, 0.15))
        os.killpg(running.pid, number)
        eventually(lambda: {state(running.pid), state(training)} == {"T"}, "monitor or training runs on")
        time.sleep(moments.choice([0, 0.01, 0.12]))  # shorter and longer than the monitor's naps
        os.killpg(running.pid, signal.SIGCONT)
        eventually(lambda: "T" not in state(running.pid) + state(training), "not continued")
    (tmp_path / "stop").touch()
    _, err = running.communicate(timeout=180)
    assert running.returncode == 5, err
    assert "Traceback" not in err
    assert "Verdict" in err
    seen = int((tmp_path / "out").read_text().split()[-1])
    assert summary_of(tmp_path)["run"]["steps"]["total"] == seen
    assert summary_of(tmp_path)["run"]["status"] == "failed"


def test_sigcont_to_the_monitor_continues_a_stopped_command(tmp_path: Path) -> None:
    """`kill -CONT <pid>` of a stopped job: the pid that the user sees is ours."""
    running = counter(tmp_path, signal.SIGUSR1)
    command = members(running.pid)[2]
    os.killpg(running.pid, signal.SIGTSTP)
    eventually(lambda: {state(running.pid), state(command)} == {"T"}, "not stopped")
    os.kill(running.pid, signal.SIGCONT)
    eventually(lambda: state(command) != "T", "still stopped")
    stop(tmp_path, running)
    assert running.returncode == 5


def got(running: subprocess.Popen[str]) -> list[int]:
    """What the script got since the last call, when the monitor has dealt with everything sent so far.

    It passes signals on in their order: one sent to it alone comes out after all that it had before.
    LAST has the highest number, and is therefore also the last that a Python script handles.
    """
    os.kill(running.pid, LAST)
    found = []
    while (line := read_until(running, "got")) != f"got {int(LAST)}\n":
        found.append(int(line.split()[1]))
    return found


def to_the_group(monitor: int, number: int) -> None:
    os.killpg(monitor, number)


def to_every_process(monitor: int, number: int) -> None:
    for pid in members(monitor):
        os.kill(pid, number)


@pytest.mark.parametrize("send", [os.kill, to_the_group, to_every_process])
def test_each_signal_arrives_once(tmp_path: Path, send: Callable[[int, int], None]) -> None:
    """Sent to the monitor alone (`docker stop`), its group (`timeout`, `kill -TERM -pgid`), or each
    process in turn (systemd, Slurm, `pkill -f`): a script that handles it sees it once."""
    running = counter(tmp_path, *HANDLED, LAST)
    for number in HANDLED * 3:
        send(running.pid, number)
        assert got(running) == [number]
    assert got(running) == []
    assert stop(tmp_path, running)[0] == []
    assert running.returncode == 5


def test_a_command_in_a_group_of_its_own_still_gets_signals(tmp_path: Path) -> None:
    """`os.setpgrp()` changes nothing for the leader of a job. Under us it does: we pass signals on then."""
    running = counter(tmp_path, *HANDLED, LAST, first="import os; os.setpgrp()")
    # The monitor and its witness; git, which the monitor asks for the commit, ends soon.
    eventually(lambda: len(members(running.pid)) == 2, "more than the monitor and its witness")
    for number in HANDLED:
        os.killpg(running.pid, number)
        assert got(running) == [number]
    assert stop(tmp_path, running)[0] == []


def test_a_late_witness_does_not_matter(tmp_path: Path) -> None:
    """Whether the group got a signal is known even if the machine is too busy to run the witness."""
    running = counter(tmp_path, signal.SIGTERM, LAST)
    witness = members(running.pid)[1]
    os.setpriority(os.PRIO_PROCESS, witness, 19)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(6)]
    try:
        for _ in range(5):
            os.killpg(running.pid, signal.SIGTERM)
            assert got(running) == [signal.SIGTERM]
        assert got(running) == []
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert stop(tmp_path, running)[0] == []


def test_without_the_witness_signals_are_still_passed_on(tmp_path: Path) -> None:
    """Killed or stopped by somebody: the monitor does without it, and the run ends as always."""
    running = counter(tmp_path, signal.SIGTERM, signal.SIGUSR1)
    witness = members(running.pid)[1]
    os.kill(witness, signal.SIGSTOP)
    os.kill(running.pid, signal.SIGTERM)
    read_until(running, f"got {int(signal.SIGTERM)}")
    eventually(lambda: state(witness) == "X", "the useless witness is still there")
    os.kill(running.pid, signal.SIGUSR1)
    read_until(running, f"got {int(signal.SIGUSR1)}")
    stop(tmp_path, running)
    assert running.returncode == 5


def test_the_witness_ends_with_a_killed_monitor(tmp_path: Path) -> None:
    """kill -9 of the monitor leaves the training, and nothing else of ours."""
    running = counter(tmp_path, signal.SIGTERM)
    # The monitor, its witness and the training; git, which the monitor asks for the commit, ends soon.
    eventually(lambda: len(members(running.pid)) == 3, "more than three processes")
    monitor, witness, command = members(running.pid)
    assert monitor == running.pid
    os.kill(monitor, signal.SIGKILL)
    running.wait(timeout=120)
    eventually(lambda: state(witness) in "XZ", "the witness stayed")
    assert state(command) in "RS"
    (tmp_path / "stop").touch()
    eventually(lambda: state(command) in "XZ", "the training stayed")


def test_interrupts_from_programs_never_escalate(tmp_path: Path) -> None:
    """Only keys do: a supervisor that sends SIGINT again and again gets what the script makes of it."""
    running = counter(tmp_path, signal.SIGINT, signal.SIGTERM, LAST)
    for _ in range(6):
        os.killpg(running.pid, signal.SIGINT)
        assert got(running) == [signal.SIGINT]
    rest, err = stop(tmp_path, running)
    assert rest == []
    assert "sending" not in err


@pytest.mark.parametrize("number", [signal.SIGRTMIN, signal.SIGRTMIN + 1, signal.SIGRTMAX, signal.SIGHUP])
def test_death_by_any_signal_is_ours_too(tmp_path: Path, number: int) -> None:
    """Realtime signals included: the summary names it, no traceback."""
    done = subprocess.run(
        traced("sh", "-c", f"kill -{int(number)} $$; sleep 5"),
        cwd=tmp_path,
        env=processes.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -number
    assert "Traceback" not in done.stderr
    assert summary_of(tmp_path)["run"]["status"] == "killed"
    assert str(summary_of(tmp_path)["run"]["reason"]).startswith("killed by ")


STATUS = "grep -E 'Sig(Blk|Ign)|Shd' /proc/self/status; umask; ulimit -c; exit 5"


@pytest.mark.parametrize("how", ["plain", "all ignored", "all blocked"])
@pytest.mark.parametrize("words", [(), ("--disable-traceml",)], ids=["traced", "disabled"])
def test_the_command_starts_with_the_signals_of_a_plain_one(
    tmp_path: Path, how: str, words: tuple[str, ...]
) -> None:
    """What was ignored (`nohup`, SIGCHLD) or blocked stays so, nothing else is, and the exit code is kept."""
    numbers = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}

    def prepare() -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN if how == "all ignored" else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, numbers if how == "all blocked" else ())

    plain, run = (
        subprocess.run(
            command,
            cwd=tmp_path,
            env=processes.environment(),
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=prepare,
        )
        for command in (["bash", "-c", STATUS], traced(*words, "bash", "-c", STATUS))
    )
    assert run.stdout == plain.stdout
    assert (plain.returncode, run.returncode) == (5, 5)


def test_no_thread_to_be_had_costs_no_run(tmp_path: Path) -> None:
    """`can't start new thread` in the monitor: the command runs to its end and the summary comes."""

    def no_threads() -> None:
        resource.setrlimit(resource.RLIMIT_STACK, (1 << 47, resource.getrlimit(resource.RLIMIT_STACK)[1]))

    if resource.getrlimit(resource.RLIMIT_STACK)[1] != resource.RLIM_INFINITY:
        pytest.skip("the stack limit cannot be raised")
    script = write(tmp_path, "import threading\ntrain(30)\nthreading.Thread(target=print).start()")
    done = subprocess.run(
        traced(str(script)),
        cwd=tmp_path,
        env=processes.environment(),
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=no_threads,
    )
    assert "can't start new thread" in done.stderr, "threads can be started: the test is no test"
    assert done.returncode == 1
    assert summary_of(tmp_path)["run"]["steps"]["total"] == 30


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs a user of its own")
@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_at_the_process_limit_the_command_comes_first(tmp_path: Path, limit: int) -> None:
    """With room for one process the command runs without us; with more, watched as far as possible."""
    user = f"--reuid={64_000 + limit} --clear-groups"
    reads_all = "--inh-caps=-all,+dac_override --ambient-caps=-all,+dac_override"  # of root's Python
    (tmp_path / "stop").touch()
    (tmp_path / "count.py").write_text(processes.COUNTER)
    done = subprocess.run(
        ["setpriv", *user.split(), *reads_all.split(), *traced("count.py", "10")],
        cwd=tmp_path,
        env=processes.environment(),
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit)),
    )
    assert done.returncode == 5, done.stderr
    assert done.stdout.startswith("ready")
    assert "Traceback" not in done.stderr
    if limit == 1:
        assert "running the command without TraceML" in done.stderr
        assert not list((tmp_path / "logs").iterdir())
    else:
        assert list((tmp_path / "logs").glob("*/final_summary.json")), done.stderr
        assert summary_of(tmp_path)["run"]["exit_code"] == 5


def test_a_command_gets_the_files_that_it_was_started_with(tmp_path: Path) -> None:
    """`traceml run train.py <(zcat data)`: an open descriptor is the command's too."""
    if shutil.which("bash") is None:
        pytest.skip("no bash")
    line = f"{' '.join(traced('cat'))} <(echo from a pipe) 2>/dev/null"
    done = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, env=processes.environment(), capture_output=True, check=True
    )
    assert done.stdout == b"from a pipe\n"
