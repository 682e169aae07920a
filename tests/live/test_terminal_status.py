"""Without a terminal: status lines instead of the view; and `traceml watch` of runs and commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.lives import LIVES, eight_gpus, nothing_yet, silent
from tests.live.serving import within
from tests.running.processes import counter, environment, read_until, stop
from tests.running.scripts import write
from traceml.monitor.display import DASHBOARD, VIEW_MODES, Display, has_terminal
from traceml.present.text import status_line
from traceml.recording.reader import RecordingReader
from traceml.settings import MODES

OFTEN = """
import sys
import traceml.monitor.display as display
display.STATUS_EVERY_S = 0.2
from traceml.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
"""`traceml` with a status line every 0.2 s."""
STEPS = """
import os
def each(step):
    if step == 40:
        print("at 40", flush=True)
        while not os.path.exists("go"):
            time.sleep(0.01)
train(60, each)
sys.exit(3)
"""


def often(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", OFTEN, *words],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_run_without_terminal_prints_status_lines(tmp_path: Path) -> None:
    """Progress, step time and verdict to standard error, the output untouched; watch follows it too."""
    running = often(tmp_path, "run", "--mode=cli", "--run-name", "r", str(write(tmp_path, STEPS)))
    read_until(running, "at 40")
    pid = json.loads((tmp_path / "logs/r/manifest.json").read_text())["monitor_pid"]
    following = [often(tmp_path, "watch", name) for name in ("r", str(pid))]
    for watcher in following:
        assert watcher.stderr is not None
        assert any("; step time " in line for line in watcher.stderr), "no status line"
    (tmp_path / "go").touch()
    out, err = running.communicate(timeout=180)
    assert running.returncode == 3
    assert out == ""
    lines = [line for line in err.splitlines() if line.startswith("traceml: ")]
    assert any(": step " in line and "; step time " in line for line in lines), err
    assert err.index(lines[-1]) < err.index("Verdict  ")
    assert not (tmp_path / "logs/r/output.log").exists()
    for watcher in following:
        ended, _ = watcher.communicate(timeout=180)
        assert "Verdict  " in ended
        assert watcher.returncode == 0


@pytest.mark.parametrize("name", LIVES)
def test_status_line_says_progress_step_time_and_verdict(name: str) -> None:
    """One printable line for every state."""
    said = status_line(LIVES[name]())
    assert said.isprintable()
    assert said.startswith("30 s: ")
    assert "None" not in said


def test_status_line_is_honest() -> None:
    """Silence and waiting are said, the verdict has its severity and its reason."""
    assert status_line(nothing_yet()) == "30 s: waiting for the first step"
    assert "step 120, no news for 1 min 35 s" in status_line(silent())
    full = status_line(eight_gpus())
    assert full.startswith("30 s: step 200 (8.3 steps/s); step time 120.")
    assert "; INPUT STRAGGLER (warning): r5 spends " in full


def test_watch_of_a_command_samples_without_touching_it(tmp_path: Path) -> None:
    """No injection, its own exit code and output; the summary has the machine and the process, and says why
    it has no steps."""
    script = tmp_path / "busy.py"
    script.write_text(
        "import os, sys\n"
        "while not os.path.exists('go'): pass\n"
        "print('inject' in os.environ['PYTHONPATH'], os.environ.get('TRACEML_RUN_DIR'), *sys.argv[1:])\n"
        "sys.exit(4)\n"
    )
    done = often(tmp_path, "watch", "--run-name", "w", "busy.py", "--args", "--mode", "its own")
    sampled = tmp_path / "logs/w/recording/process.gauges"
    within(180, lambda: sampled.exists() and RecordingReader(sampled).look() > 2, "three samples")
    (tmp_path / "go").touch()
    out, err = done.communicate(timeout=180)
    assert done.returncode == 4
    assert out == "False None --mode its own\n"
    assert "command CPU" in err
    summary = json.loads((tmp_path / "logs/w/final_summary.json").read_text())
    assert summary["primary_diagnosis"]["kind"] == "NO_DATA"
    assert "records no steps" in summary["primary_diagnosis"]["summary"]
    assert summary["process"]["metrics"]["cpu_percent"]["average"] > 1
    assert summary["system"]["window"]["samples"] > 2
    assert summary["run"]["notes"] == [n for n in summary["run"]["notes"] if "r0" not in n]
    assert "Process      " in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing-like-that"], "no such file, run folder, or run under"),
        ([], "give a run or a script"),
        (["--mode=cli", "x.py"], "--mode belongs to `traceml run`"),
    ],
)
def test_wrong_arguments_are_one_line(tmp_path: Path, words: list[str], said: str) -> None:
    """What is wrong and what to do, and exit code 2."""
    done = often(tmp_path, "watch", *words)
    _, err = done.communicate(timeout=180)
    assert (done.returncode, len(err.splitlines())) == (2, 1)
    assert said in err


def test_a_run_in_the_usual_mode_has_no_view(tmp_path: Path) -> None:
    """`--mode=summary` starts no view and prints nothing until the end."""
    running = counter(tmp_path, signal.SIGUSR1)
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    assert children
    assert not any(b"\0watch\0" in Path(f"/proc/{child}/cmdline").read_bytes() for child in children)
    _, err = stop(tmp_path, running)
    assert err.startswith("\n-----")


def test_only_the_first_node_shows_a_view(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another node's monitor neither takes a terminal nor prints status lines."""
    other = Display("cli", tmp_path, is_first=False, quiet=False)
    other._due = 0.0

    def poll(seconds: float) -> int | None:
        return None

    assert other.poll(poll) is poll
    assert other.environment({"A": "1"}) == {"A": "1"}
    other.close()
    assert capsys.readouterr().err == ""


def test_a_dumb_terminal_gets_status_lines() -> None:
    """TERM=dumb (an editor's shell) cannot show a view."""
    assert not has_terminal({"TERM": "dumb"})
    assert not has_terminal({})


def test_every_mode_but_summary_has_a_view() -> None:
    """A new mode is one of VIEW_MODES; the dashboard has no terminal and a process of another kind."""
    assert set(MODES) - {"summary", DASHBOARD} <= set(VIEW_MODES)


def test_the_monitor_never_loads_textual() -> None:
    """Only the process of the view pays for it."""
    code = (
        "import sys, traceml.cli.run, traceml.monitor.display, traceml.monitor.result, traceml.cli.watch;"
        "sys.exit('textual' in sys.modules or 'rich' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ}, check=False).returncode == 0
