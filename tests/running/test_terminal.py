"""On a real terminal: keys, job control and a closed window do what they do without us."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import shutil
import signal
import subprocess
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.running.processes import COUNTER, environment, eventually, state, traced

CTRL_C, CTRL_Z, CTRL_BACKSLASH = b"\x03", b"\x1a", b"\x1c"
INT, TERM, HUP, CONT = (int(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCONT))


class Terminal:
    """A command that leads a session on a terminal of its own."""

    def __init__(self, folder: Path, command: list[str]) -> None:
        self.folder = folder
        self.master, slave = pty.openpty()

        def lead() -> None:
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)

        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment(PS1="$ ", TERM="dumb"),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            preexec_fn=lead,
        )
        os.close(slave)
        self.shown = ""

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def until(self, holds: Callable[[str], bool], what: str) -> None:
        """Read the screen until it shows this."""
        deadline = time.monotonic() + 180
        while not holds(self.shown):
            assert time.monotonic() < deadline, f"{what}: {self.shown}"
            if select.select([self.master], [], [], 0.1)[0]:
                try:
                    self.shown += os.read(self.master, 65536).decode(errors="replace")
                except OSError:
                    time.sleep(0.01)  # everybody has closed the terminal

    def until_got(self, number: int, count: int) -> None:
        self.until(lambda shown: shown.count(f"got {number}\r") >= count, f"no {count} times {number}")

    def end(self) -> int:
        """Let the counter end, read everything; the exit code."""
        (self.folder / "stop").touch()
        self.until(lambda _: self.process.poll() is not None, "it does not end")
        if select.select([self.master], [], [], 0)[0]:
            try:
                self.shown += os.read(self.master, 65536).decode(errors="replace")
            except OSError:
                pass
        os.close(self.master)
        return self.process.returncode


def counting(folder: Path, *numbers: int) -> Terminal:
    """`traceml run` of the counter, leading the session, ready."""
    (folder / "count.py").write_text(COUNTER)
    terminal = Terminal(folder, traced("count.py", ",".join(map(str, numbers))))
    terminal.until(lambda _: (folder / "up").exists(), "the command has not started")
    return terminal


def test_each_ctrl_c_is_one_interrupt_however_many(tmp_path: Path) -> None:
    """Keys that are not a burst: the script sees each one once, and nothing is added."""
    terminal = counting(tmp_path, INT, TERM)
    for count in range(1, 5):
        terminal.type(CTRL_C)
        terminal.until_got(INT, count)
        time.sleep(1.1)  # two keys within any two seconds, never three
    assert terminal.end() == 5
    assert terminal.shown.count(f"got {INT}") == 4
    assert f"got {TERM}" not in terminal.shown
    assert "sending" not in terminal.shown


def test_a_burst_of_ctrl_c_escalates_and_says_so(tmp_path: Path) -> None:
    """The third key within two seconds adds SIGTERM, the fourth SIGKILL, each announced by one line."""
    terminal = counting(tmp_path, INT, TERM)
    for count in range(1, 60):  # as an impatient user does it
        terminal.type(CTRL_C)
        time.sleep(0.2)
        if "SIGKILL" in terminal.shown:
            break
        terminal.until(lambda shown, n=count: shown.count("^C") >= n, "no echo")  # type: ignore[misc]
        if "sending SIGTERM" in terminal.shown:
            # On a busy machine the next key would come before it is handled, or has come already.
            terminal.until(lambda shown: f"got {TERM}\r" in shown or "SIGKILL" in shown, "no SIGTERM")
    assert terminal.end() == -signal.SIGKILL
    assert "Ctrl-C 3 times within 2 s: sending SIGTERM to the command" in terminal.shown
    assert terminal.shown.count("Ctrl-C 4 times within 2 s: sending SIGKILL to the command") == 1


def test_a_closed_terminal_reaches_a_command_whose_monitor_leads_the_session(tmp_path: Path) -> None:
    """ssh, docker and xterm end this way: the leader alone gets SIGHUP, and the script must have it, once."""
    (tmp_path / "count.py").write_text(COUNTER.replace("os.write(1,", "os.write(log,"))
    script = tmp_path / "count.py"
    script.write_text(f"import os\nlog = os.open('log', os.O_CREAT | os.O_WRONLY)\n{script.read_text()}")
    terminal = Terminal(tmp_path, traced("count.py", f"{HUP},{CONT}"))
    terminal.until(lambda _: (tmp_path / "up").exists(), "the command has not started")
    os.close(terminal.master)
    eventually(lambda: f"got {HUP}" in (tmp_path / "log").read_text(), "the script knows nothing")
    (tmp_path / "stop").touch()
    assert terminal.process.wait(timeout=180) == 5
    assert (tmp_path / "log").read_text().splitlines().count(f"got {HUP}") == 1
    assert len(list(tmp_path.glob("logs/*/final_summary.json"))) == 1


def test_a_closed_terminal_ends_a_command_that_does_not_care(tmp_path: Path) -> None:
    """Without a handler the command dies of SIGHUP, and so do we, after the summary."""
    terminal = Terminal(tmp_path, traced("sh", "-c", "touch up; exec sleep 60"))
    terminal.until(lambda _: (tmp_path / "up").exists(), "the command has not started")
    os.close(terminal.master)
    assert terminal.process.wait(timeout=180) == -signal.SIGHUP
    assert len(list(tmp_path.glob("logs/*/final_summary.json"))) == 1


def test_ctrl_backslash_quits_with_a_summary(tmp_path: Path) -> None:
    """SIGQUIT from the terminal ends the command, and the exit says so."""
    terminal = counting(tmp_path, TERM)
    terminal.type(CTRL_BACKSLASH)
    # The key is on its way: only once the command is gone may it be told to stop.
    terminal.until(lambda _: terminal.process.poll() is not None, "it does not quit")
    assert terminal.end() == -signal.SIGQUIT
    assert "killed by SIGQUIT" in terminal.shown


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs a shell with job control")
def test_ctrl_z_and_fg_in_a_shell(tmp_path: Path) -> None:
    """Stopped with Ctrl-Z the shell prompts again; `fg` continues; then Ctrl-C arrives once."""
    (tmp_path / "count.py").write_text(COUNTER)
    terminal = Terminal(tmp_path, ["bash", "--norc", "--noprofile", "-i"])
    terminal.type(f"{' '.join(traced('count.py', str(INT)))}; echo code $?\n".encode())
    terminal.until(lambda _: (tmp_path / "up").exists(), "the command has not started")
    command = int((tmp_path / "up").read_text())
    for count in range(1, 4):
        terminal.type(CTRL_Z)
        terminal.until(lambda shown, n=count: shown.count("Stopped") == n, "the shell sees no stop")  # type: ignore[misc]
        eventually(lambda: state(command) == "T", "the shell sees a stop, but the command runs on")
        terminal.type(b"fg\n")
        eventually(lambda: state(command) != "T", "not continued")
        terminal.type(CTRL_C)
        terminal.until_got(INT, count)
    (tmp_path / "stop").touch()
    terminal.until(lambda shown: "Verdict" in shown, "no summary")
    terminal.type(b"exit 7\n")
    assert terminal.end() == 7
    assert terminal.shown.count(f"got {INT}") == 3
    assert "Traceback" not in terminal.shown


def test_a_background_job_ends_although_its_terminal_refuses_output(tmp_path: Path) -> None:
    """`stty tostop`: a silent training in the background ends without us too, so it must end with us."""
    script = f"stty tostop; set -m; {' '.join(traced('sleep', '1'))} & wait $!; echo code $?\n"
    terminal = Terminal(tmp_path, ["bash", "--norc", "--noprofile", "-c", script])
    terminal.until(lambda shown: "code 0" in shown, "the job was stopped")
    assert "Verdict" in terminal.shown
    assert terminal.end() == 0
