"""The view of a real training on a real terminal: keys, signals, ends, and what stays on the screen."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.tmux import Tmux
from tests.running.processes import eventually, state, traced
from tests.running.scripts import write

pytestmark = pytest.mark.skipif(
    shutil.which("tmux") is None or shutil.which("bash") is None, reason="needs tmux and bash"
)
BODY = r"""
import os, signal
asked = []
signal.signal(signal.SIGINT, lambda number, frame: (asked.append(number), print("got", number)))
print("[red]not markup\x1b[31m, and no colour\x1b[0m")
def each(step):
    print(f"\repoch 1: {step:5d} of many |####", end="", file=sys.stderr)
    time.sleep(0.02)
    if os.path.exists("stop") or asked:
        print("\nended by", len(asked), "signals")
        sys.exit(5)
train(100_000, each)
"""
WITHOUT_TORCH = r"""
import os, sys, time
from pathlib import Path
from traceml.recording.writer import RecordingWriter
from traceml.schema import catalog
who = {"rank": 0, "local_rank": 0, "node_rank": 0, "world_size": 1, "host": "here", "pid": os.getpid()}
path = Path(os.environ["TRACEML_RUN_DIR"], "recording", f"rank-0.{os.getpid()}.steps")
recording = RecordingWriter(str(path), catalog.STEP_COLUMNS, {"identity": who, "process": {}})
def train(steps, each):
    for step in range(1, steps + 1):
        begin = time.perf_counter_ns()
        each(step)
        end = time.perf_counter_ns()
        row = {"step": step, "begin_ns": begin, "end_ns": end, "forward": end - begin, "flags": 0b101010101}
        recording.append(*(row.get(name, 0) for name, _ in catalog.STEP_COLUMNS))
"""
"""Writes the rows that a training would, so that it starts at once."""
SUMMARY_END = "Output:  logs/r/output.log"
PROMPT = "code 5"


@pytest.fixture
def terminal(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Tmux]:
    """A shell in which the view of a training has just appeared, with a verdict."""
    write(tmp_path, BODY)
    if "real_training" not in request.keywords:
        (tmp_path / "train.py").write_text(WITHOUT_TORCH + BODY)
    made = Tmux(tmp_path)
    traceml = " ".join(traced("--mode=cli", "--run-name", "r", "train.py"))
    (tmp_path / "job.sh").write_text(f"{traceml}\necho code $?\nsleep 1000\n")
    made.line("bash job.sh")  # at the end it sleeps: a shell that prompts sets up the terminal anew
    made.until_has("TraceML  r", "live, last step", "since step", "Dataloader Fetch")
    yield made
    if made.is_open:
        made.close()


def monitor_of(folder: Path) -> int:
    return int(json.loads((folder / "logs" / "r" / "manifest.json").read_text())["monitor_pid"])


def view_of(folder: Path) -> int:
    """The monitor's child that shows the view."""
    monitor = monitor_of(folder)
    for child in Path(f"/proc/{monitor}/task/{monitor}/children").read_text().split():
        if b"\0watch\0" in Path(f"/proc/{child}/cmdline").read_bytes():
            return int(child)
    raise AssertionError("no view")


@pytest.mark.real_training
def test_q_leaves_the_view_and_the_training_goes_on(tmp_path: Path, terminal: Tmux) -> None:
    """Bars show their latest state; after q one line says how to get back; at the end the usual summary."""
    shown = terminal.until_has("[red]not markup, and no colour", "of many |####")
    assert shown.count("epoch 1:") == 1, "a progress bar is one line"
    terminal.resize(80, 24)
    terminal.until(lambda text: "Head/Tail Delta" not in text and "quit view" in text, "no small layout")
    terminal.resize(120, 40)
    terminal.until_has("Head/Tail Delta (worst)")
    terminal.key("C-z")
    terminal.until(lambda text: "Stopped" in text and "quit view" not in text, "not stopped")
    terminal.line("fg")
    terminal.until_has("live, last step", "quit view")
    terminal.key("q")
    terminal.until_has("the view has ended, training goes on", "traceml watch logs/r")
    assert terminal.in_order()
    before = (tmp_path / "logs/r/output.log").stat().st_size
    eventually(lambda: (tmp_path / "logs/r/output.log").stat().st_size > before, "the training has stopped")
    (tmp_path / "stop").touch()
    shown = terminal.until_has(PROMPT, SUMMARY_END, history=True)
    assert shown.index("ended by 0 signals") < shown.index("Verdict  ") < shown.index(SUMMARY_END)
    assert terminal.in_order()


def test_ctrl_c_in_the_view_reaches_the_training_once(tmp_path: Path, terminal: Tmux) -> None:
    """As on a plain terminal: one key, one SIGINT; the exit code and the summary are the training's."""
    terminal.key("C-c")
    shown = terminal.until_has(PROMPT, SUMMARY_END, history=True)
    assert (tmp_path / "logs/r/output.log").read_text().count(f"got {int(signal.SIGINT)}") == 1
    assert shown.index("ended by 1 signals") < shown.index("interrupted: Ctrl-C")
    assert terminal.in_order()


def test_a_killed_view_harms_nothing_and_watch_shows_the_run_again(tmp_path: Path, terminal: Tmux) -> None:
    """kill -9 of the view: the terminal is put in order, training goes on, another shell can look at it."""
    assert not terminal.in_order()
    os.kill(view_of(tmp_path), signal.SIGKILL)
    terminal.until_has("the view has ended, training goes on")
    eventually(terminal.in_order, "the terminal is left as the view had it")
    other = Tmux(tmp_path, (80, 24))
    try:
        other.traceml("watch", "r", "; echo left $?")
        other.until_has("TraceML  r", "live, last step", "of many |####")
        other.key("C-c")  # in this shell, that ends the view only
        other.until_has("left 0")
        assert state(monitor_of(tmp_path)) != "X"
        other.traceml("watch", str(monitor_of(tmp_path)), "; echo gone $?")
        other.until_has("TraceML  r", "live, last step")
        (tmp_path / "stop").touch()
        other.until_has("ended early")  # exit code 5
        other.key("q")
        other.until_has("gone 0", "Verdict  ", history=True)
    finally:
        other.close()
    terminal.until_has(PROMPT, SUMMARY_END, history=True)
    assert terminal.in_order()


def test_a_closed_terminal_ends_the_training_with_a_summary(tmp_path: Path, terminal: Tmux) -> None:
    """As without the view: the training gets SIGHUP, and what was recorded has its summary."""
    monitor, view = monitor_of(tmp_path), view_of(tmp_path)
    terminal.close()
    summary = tmp_path / "logs/r/final_summary.txt"
    eventually(lambda: summary.exists() and "SIGHUP" in summary.read_text(), "no summary")
    eventually(lambda: state(monitor) + state(view) == "XX", "a process was left behind")
