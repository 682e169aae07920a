"""`traceml run --mode=dashboard`: the browser's view of a real training, which it can never harm."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
from pathlib import Path

import pytest

from tests.live.serving import Address, address_in, is_gone, within
from tests.running.processes import start, traced
from tests.running.scripts import LOOP
from tests.running.test_terminal import CTRL_C, Terminal

HELD = """
import os, sys
def each(step):
    if step in (5, 40):
        print("at", step, flush=True)
    while step == 40 and not os.path.exists("go"):
        time.sleep(0.01)
train(60, each)
print("trained", flush=True)
sys.exit(3)
"""
"""Waits at step 40 for a file `go`, and ends with code 3."""
PLAIN = """
import os, sys, time
print("up", flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
print("trained", flush=True)
sys.exit(3)
"""
"""The same without torch and without steps, for what depends on processes only."""
NEWS = "api/run/r/events"
WORDS = ("--run-name", "r", "--mode=dashboard")


class Dashboard(Address):
    """A training under `traceml run --mode=dashboard` that waits at step 40, and its server."""

    def __init__(self, folder: Path, script: str = PLAIN, *words: str) -> None:
        self.folder = folder
        (folder / "train.py").write_text(script)
        self.run = start(folder, "train.py", *WORDS, *words)
        assert self.run.stderr is not None
        super().__init__(address_in(self.run.stderr))
        [self.server] = companions_of(self.run.pid)

    def go_on(self) -> tuple[str, str]:
        """Let the training end; what it printed from here on."""
        (self.folder / "go").touch()
        return self.run.communicate(timeout=180)


def companions_of(pid: int) -> list[int]:
    """The processes that serve the pages of this `traceml run`."""
    children = [
        c for task in Path(f"/proc/{pid}/task").iterdir() for c in (task / "children").read_text().split()
    ]
    return [int(child) for child in children if b"\0ui\0" in Path(f"/proc/{child}/cmdline").read_bytes()]


def test_pages_follow_a_training_to_its_end(tmp_path: Path) -> None:
    """Fifty pages see the steps, then the final summary and the end, although another one never reads.
    Standard output and exit code are the training's, and the server ends with the run."""
    shown = Dashboard(tmp_path, LOOP + HELD)
    assert shown.fragment == "/run/r"
    sleeper = shown.open(NEWS, buffer=4096)
    pages = []
    for _ in range(50):  # one after the other: whoever does not read for seconds is dropped
        pages.append(page := shown.events(NEWS))
        live = page.until(lambda data: data["summary"]["run"]["steps"]["total"] in (39, 40))
        assert live["live"]["state"] == "live"
        assert live["summary"]["primary_diagnosis"]["kind"] != "NO_DATA"
    out, err = shown.go_on()
    assert out == "at 5\nat 40\ntrained\n"
    assert shown.run.returncode == 3
    assert "Verdict" in err
    final = json.loads((tmp_path / "logs" / "r" / "final_summary.json").read_bytes())
    for page in pages:
        *_, (name, last), end = page
        assert (name, end) == ("message", ("end", {}))
        assert last["summary"] == final
    assert final["run"]["steps"]["total"] == 60
    sleeper.close()
    assert is_gone(shown.server)


@pytest.mark.parametrize("words", [(), ("--no-browser",)])
def test_address_and_browser_can_be_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """--ui-host and --ui-port are those of the address; on a desktop --no-browser keeps the browser shut."""
    opener = tmp_path / "xdg-open"
    opener.write_text(f"#!/bin/sh\necho $1 > {tmp_path}/opened\n")
    opener.chmod(0o755)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("DISPLAY", ":1")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    shown = Dashboard(tmp_path, PLAIN, "--ui-host", "localhost", f"--ui-port={port}", *words)
    assert (shown.host, shown.port) == ("localhost", port)
    if not words:
        within(120, (tmp_path / "opened").exists, "a desktop opens the browser")
    shown.go_on()
    assert (tmp_path / "opened").exists() == (not words)


def test_a_killed_server_harms_neither_training_nor_monitor(tmp_path: Path) -> None:
    """kill -9 of the server: training, summary and exit code are those of any other run."""
    shown = Dashboard(tmp_path)
    os.kill(shown.server, signal.SIGKILL)
    out, err = shown.go_on()
    assert out == "up\ntrained\n"
    assert shown.run.returncode == 3
    assert "Verdict" in err
    assert "traceml:" not in err


def test_a_stopped_server_holds_the_end_up_for_a_moment_only(tmp_path: Path) -> None:
    """A server that does not react at all is killed, and the exit code is the training's."""
    shown = Dashboard(tmp_path)
    os.kill(shown.server, signal.SIGSTOP)
    shown.go_on()
    assert shown.run.returncode == 3
    assert is_gone(shown.server)


def test_a_killed_monitor_leaves_no_server_behind(tmp_path: Path) -> None:
    """kill -9 of `traceml run`: the server ends by itself, with and without open pages."""
    shown = Dashboard(tmp_path)
    page = shown.events(NEWS)
    page.until(lambda _: True)
    shown.run.kill()
    within(120, lambda: is_gone(shown.server), "the server ends")
    assert "end" not in [name for name, _ in page], "the training goes on"
    (tmp_path / "go").touch()
    assert shown.run.stdout is not None
    assert "trained" in shown.run.stdout.read()


def test_ctrl_c_reaches_the_training_and_the_page_sees_how_it_ended(tmp_path: Path) -> None:
    """The key is the training's alone. The server outlives it until the pages have the interrupted result."""
    (tmp_path / "train.py").write_text(LOOP + HELD)
    terminal = Terminal(tmp_path, traced("train.py", *WORDS))
    terminal.until(lambda shown: "dashboard: http" in shown and "at 40" in shown, "it trains")
    found = re.search(r"dashboard: (http\S+)", terminal.shown)
    assert found is not None
    page = Address(found[1]).events(NEWS)
    page.until(lambda data: data["live"]["state"] == "live")
    terminal.type(CTRL_C)
    rest = list(page)
    assert rest[-1] == ("end", {})
    assert rest[-2][1]["summary"]["run"]["status"] == "interrupted"
    terminal.until(lambda shown: "KeyboardInterrupt" in shown and "Verdict" in shown, "the result")
    terminal.process.wait(60)


@pytest.mark.parametrize("broken", ["uvicorn", "starlette"])
def test_without_a_server_the_training_runs(tmp_path: Path, broken: str) -> None:
    """If the server cannot start, one line says why, and nothing else changes."""
    (tmp_path / f"{broken}.py").write_text(f"raise ModuleNotFoundError('no', name='{broken}')")
    (tmp_path / "go").touch()
    (tmp_path / "train.py").write_text(PLAIN)
    run = start(tmp_path, "train.py", *WORDS)
    out, err = run.communicate(timeout=180)
    assert out.endswith("trained\n")
    assert run.returncode == 3
    lines = [line for line in err.splitlines() if line.startswith("traceml:")]
    missing = f"{broken} is missing here; pip install starlette uvicorn"
    assert lines == [f"traceml: no dashboard: {missing}; training goes on"]
    assert "Verdict" in err


def test_only_the_first_machine_serves(tmp_path: Path) -> None:
    """Node 1 opens nothing: the runs are on node 0."""
    (tmp_path / "go").touch()
    (tmp_path / "train.py").write_text(PLAIN)
    node = ("--nnodes", "2", "--node-rank", "1", "--master-addr", "127.0.0.1")
    run = start(tmp_path, *WORDS, *node, sys.executable, "train.py")
    manifest = tmp_path / "logs" / "r.node1" / "manifest.json"
    within(120, lambda: manifest.exists() and '"exit_code": 3' in manifest.read_text(), "the training ends")
    assert companions_of(run.pid) == []
    run.kill()  # it would wait for node 0, which is not there
    assert "dashboard" not in run.communicate()[1]


def test_the_server_hears_no_key_and_no_terminal(tmp_path: Path) -> None:
    """It leads a session of its own, and its standard input is a pipe."""
    shown = Dashboard(tmp_path)
    assert os.getsid(shown.server) == shown.server
    assert os.readlink(f"/proc/{shown.server}/fd/0").startswith("pipe:")
    shown.go_on()
