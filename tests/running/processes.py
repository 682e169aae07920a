"""A command under `traceml run` that tests can signal: who belongs to it, what it printed, how it ended."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.scenario import SRC

COUNTER = """
import os, signal, sys, time
def note(number, frame):
    os.write(1, b"got %d\\n" % number)
for name in sys.argv[1].split(","):
    signal.signal(int(name), note)
print("ready", flush=True)
with open("up.new", "w") as file:
    file.write(str(os.getpid()))
os.rename("up.new", "up")
while not os.path.exists("stop"):
    time.sleep(0.01)
sys.exit(5)
"""
"""Counts the signals that it is given to handle, until there is a file `stop`. Ready: its id is in `up`."""


def environment(**more: str) -> dict[str, str]:
    """Ours, with TraceML of this checkout."""
    return {**os.environ, "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1", **more}


def traced(*words: str) -> list[str]:
    """The argv of `traceml run`."""
    return [sys.executable, "-m", "traceml", "run", *words]


def start(folder: Path, *words: str, **more: Any) -> subprocess.Popen[str]:
    """`traceml run` in a process group of its own within this session, as a shell starts a job."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "preexec_fn": os.setpgrp, **more}
    return subprocess.Popen(traced(*words), cwd=folder, env=environment(), text=True, **options)


def counter(folder: Path, *numbers: int, first: str = "") -> subprocess.Popen[str]:
    """A started script that prints the signals it handles; ready when this returns."""
    (folder / "count.py").write_text(f"{first}\n{COUNTER}")
    running = start(folder, "count.py", ",".join(str(int(n)) for n in numbers))
    read_until(running, "ready")
    return running


def read_until(running: subprocess.Popen[str], text: str) -> str:
    """Read the output up to the line that begins so, and return that."""
    assert running.stdout is not None
    for line in running.stdout:
        if line.startswith(text):
            return line
    pytest.fail(f"ended before {text!r}: {running.stderr.read() if running.stderr else ''}")


def stop(folder: Path, running: subprocess.Popen[str]) -> tuple[list[int], str]:
    """Let the counter end; the signals that it got, and standard error."""
    (folder / "stop").touch()
    out, err = running.communicate(timeout=180)
    return [int(line.split()[1]) for line in out.splitlines() if line.startswith("got")], err


def members(group: int) -> list[int]:
    """The processes of a group."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.getpgid(int(entry.name)) == group:
                    found.append(int(entry.name))
            except ProcessLookupError:
                continue
    return sorted(found)


def state(pid: int) -> str:
    """R, S, T, Z as in /proc, X if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def eventually(holds: Callable[[], bool], what: str, seconds: float = 180) -> None:
    """Wait until it holds; fail with `what` after a long time."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)
