"""Runs in containers, which hand out the same process ids again and again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.running.processes import environment, eventually, traced
from tests.scenarios.scenario import traceml

CONTAINER = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


def can_make_containers() -> bool:
    return shutil.which("unshare") is not None and not subprocess.call(
        [*CONTAINER, "true"], stderr=subprocess.DEVNULL
    )


pytestmark = pytest.mark.skipif(not can_make_containers(), reason="process namespaces are not allowed here")
RUN = [*CONTAINER, *traced("--run-name", "r", "--overwrite")]


def started(folder: Path) -> subprocess.Popen[bytes]:
    """A container that trains until it is killed; its run is on record when this returns."""
    before = manifest_in(folder)
    running = subprocess.Popen(
        [*RUN, "sleep", "600"], cwd=folder, env=environment(), stderr=subprocess.DEVNULL
    )
    eventually(lambda: "started_at" in manifest_in(folder) and manifest_in(folder) != before, "no manifest")
    return running


def manifest_in(folder: Path) -> str:
    try:
        return (folder / "logs" / "r" / "manifest.json").read_text()
    except FileNotFoundError:  # not yet, or just replaced
        return ""


@pytest.mark.parametrize("times", [3])
def test_a_killed_container_starts_again_under_the_same_name(tmp_path: Path, times: int) -> None:
    """The new monitor has the old one's process id, and is not taken for it."""
    for _ in range(times):
        running = started(tmp_path)
        manifest = json.loads((tmp_path / "logs" / "r" / "manifest.json").read_text())
        assert (manifest["status"], manifest["monitor_pid"]) == ("running", 1)
        running.send_signal(signal.SIGKILL)
        running.wait(timeout=120)
    done = subprocess.run(
        [*RUN, "sh", "-c", "exit 5"], cwd=tmp_path, env=environment(), capture_output=True, check=False
    )
    assert done.returncode == 5, done.stderr
    assert b"still running" not in done.stderr


def test_a_live_container_keeps_its_run(tmp_path: Path) -> None:
    """Another one cannot take the name, and from outside the run is seen to go on, until it is killed."""
    running = started(tmp_path)
    try:
        done = subprocess.run(
            [*RUN, "true"], cwd=tmp_path, env=environment(), capture_output=True, check=False
        )
        assert done.returncode == 2
        assert b"still running" in done.stderr
        assert '"running"' in traceml("runs", "--json", cwd=tmp_path).stdout
        assert "running" in traceml("view", "r", cwd=tmp_path).stdout
        assert not (tmp_path / "logs" / "r" / "final_summary.json").exists()
    finally:
        running.kill()
        running.wait()
    folder = tmp_path / "logs" / "r"
    eventually(lambda: "killed" in traceml("view", str(folder), cwd=tmp_path).stdout, "still running")


def test_process_1_of_a_container_passes_signals_on(tmp_path: Path) -> None:
    """`docker stop` signals only process 1, and the kernel withholds signals from it that it does not
    handle."""
    running = started(tmp_path)
    (monitor,) = (
        int(p) for p in Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    )
    os.kill(monitor, signal.SIGTERM)
    running.wait(timeout=180)
    summary = json.loads((tmp_path / "logs" / "r" / "final_summary.json").read_text())
    assert summary["run"]["reason"] == "stopped by SIGTERM"
    assert summary["run"]["exit_code"] == -signal.SIGTERM
