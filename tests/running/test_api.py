"""What user code may call: trace_step, phase, init, final_summary, summary; harmless without a recording."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

from tests.running.scripts import write
from tests.scenarios.preloaded import PreloadedTraceml
from tests.scenarios.scenario import SRC, traceml


def test_every_call_is_a_harmless_no_op_without_a_recording(tmp_path: Path) -> None:
    """In plain Python each call does nothing, says so in one line once, and training goes on."""
    script = write(
        tmp_path,
        """
        import traceml
        from traceml.decorators import trace_step
        for _ in range(3):
            with trace_step(model), traceml.phase("x"):
                train(2)
        print(traceml.final_summary(), traceml.summary())
        """,
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "None {}"
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 3  # one a name: trace_step, phase, final_summary
    assert all("nothing is recording" in line for line in lines)
    assert not (tmp_path / "logs").exists()


def test_final_summary_returns_what_was_recorded_so_far(tmp_path: Path, preloaded: PreloadedTraceml) -> None:
    """final_summary() waits for the monitor and returns the dict; summary() is flat; training goes on."""
    write(
        tmp_path,
        """
        import json, traceml
        train(25)
        full = traceml.final_summary(print_text=True)
        flat = traceml.summary()
        train(5)
        print(json.dumps([full["run"]["steps"]["total"], full["final"], full["schema"], flat]))
        """,
    )
    done = preloaded("run", "train.py", "--run-name", "r", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    steps, final, schema, flat = json.loads(done.stdout)
    assert (steps, final, schema) == (25, False, "traceml.summary/1")
    assert flat["traceml/steps"] == 25
    assert flat["traceml/step_time/step_ms"] > 0
    assert done.stderr.count("Verdict") == 2  # once when asked, once at the end
    end = json.loads((tmp_path / "logs" / "r" / "final_summary.json").read_text())
    assert end["run"]["steps"]["total"] == 30
    assert end["final"] is True
    litter = [
        p.name for p in (tmp_path / "logs" / "r").rglob("*") if "request" in p.name or "answer" in p.name
    ]
    assert litter == []


def test_init_in_a_directly_launched_script_gives_the_same_result(tmp_path: Path) -> None:
    """`python train.py` with traceml.init(): a detached monitor writes the same summary, and goes away."""
    script = write(tmp_path, "import traceml\nassert traceml.init(run_name='direct')\ntrain(30)\n")
    done = run_directly(tmp_path, str(script))
    assert done.returncode == 0, done.stderr
    path = tmp_path / "logs" / "direct" / "final_summary.json"
    deadline = time.monotonic() + 180
    while not path.exists():
        assert time.monotonic() < deadline, "no summary came"
        time.sleep(0.05)
    found = json.loads(path.read_text())
    assert found["run"]["steps"]["total"] == 30
    assert found["run"]["status"] == "completed"
    manifest = json.loads((tmp_path / "logs" / "direct" / "manifest.json").read_text())
    while Path(f"/proc/{manifest['monitor_pid']}").exists():
        assert time.monotonic() < deadline, "the monitor stayed behind"
        time.sleep(0.05)


def run_directly(folder: Path, *words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Python of this checkout, without `traceml run`."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **more,
    )


def test_init_adds_no_child_that_a_script_would_wait_for(tmp_path: Path) -> None:
    """A script that waits until it has no more children comes to an end."""
    script = write(
        tmp_path,
        """
        import os, traceml
        assert traceml.init(run_name="direct")
        train(5)
        children = {os.posix_spawn("/bin/true", ["true"], os.environ) for _ in range(2)}
        try:
            while True:
                children.remove(os.wait()[0])
        except ChildProcessError:
            print("left", children)
        """,
    )
    done = run_directly(tmp_path, str(script))
    assert (done.returncode, done.stdout) == (0, "left set()\n"), done.stderr


def test_a_notebook_says_where_it_records_and_prints_its_report(tmp_path: Path) -> None:
    """Cells in an interactive Python: init() names the folder, and report() prints to standard output."""
    write(tmp_path, "", name="cells.py")
    cells = """
        from cells import *
        import traceml
        traceml.init(run_name="notebook")
        train(30)
        traceml.report()
        train(10)
        traceml.report()
    """
    done = run_directly(tmp_path, "-i", "-q", input=textwrap.dedent(cells))
    assert f"traceml: recording in {tmp_path / 'logs' / 'notebook'}\n" in done.stderr
    assert done.stdout.count("Verdict") == 2


def test_init_under_traceml_run_changes_nothing(tmp_path: Path, preloaded: PreloadedTraceml) -> None:
    """A script that calls init() itself is not recorded twice under `traceml run`."""
    write(tmp_path, "import traceml\nprint(traceml.init())\ntrain(8)\n")
    done = preloaded("run", "train.py", "--run-name", "r", cwd=tmp_path)
    assert done.stdout.strip() == "True"
    assert [p.name for p in (tmp_path / "logs").iterdir()] == ["r"]


def test_view_prints_the_same_text_again(tmp_path: Path, preloaded: PreloadedTraceml) -> None:
    """`traceml view` of the file, the folder and the run name print final_summary.txt."""
    write(tmp_path, "train(25)")
    preloaded("run", "train.py", "--run-name", "r", cwd=tmp_path)
    text = (tmp_path / "logs" / "r" / "final_summary.txt").read_text()
    for words in (["logs/r/final_summary.json"], ["logs/r"], ["r"]):
        viewed = traceml("view", *words, cwd=tmp_path)
        assert viewed.returncode == 0
        assert viewed.stdout == text
    data = json.loads(traceml("view", "r", "--json", cwd=tmp_path).stdout)
    assert data == json.loads((tmp_path / "logs" / "r" / "final_summary.json").read_text())
