"""What a run shows while it goes on: nothing, a view beside the monitor, or a status line now and then.

A view that needs the whole terminal gets it: meanwhile our own lines and the training's output go to
output.log, a plain file, so that nobody waits for a reader and nothing is lost if the view is.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from traceml.errors import failsafe, printable, say
from traceml.files import open_regular
from traceml.monitor.launch import given_environment
from traceml.monitor.signals import in_foreground
from traceml.runs.manifest import OUTPUT_LOG
from traceml.schema import WATCH_ONLY
from traceml.settings import Settings

STATUS_EVERY_S = 30.0
"""Between status lines where there is no terminal."""
LAST_LINES: Final = 20
"""Of the output of a run that failed, above its summary."""
RESET: Final = b"\x1b[?1000l\x1b[?1003l\x1b[?1006l\x1b[?1004l\x1b[?2004l\x1b[?7h\x1b[?1049l\x1b[?25h\x1b[m\r"
"""For a view that could not clean up: mouse and paste reports off, the usual screen and cursor back."""

MOST_BYTES: Final = 32 * 1024
"""Of the end of output.log: a few screens."""
END_S: Final = 3.0
"""A view has this long to leave the terminal in order, a server to show open pages the end of the run."""
KILLED_S: Final = 1.0
DASHBOARD: Final = "dashboard"
VIEW_MODES: Final = ("cli", WATCH_ONLY)
"""The modes that show the run in the terminal."""

Poll = Callable[[float], int | None]


class Display:
    """The view of one run. `close` gives the terminal back, whatever happened."""

    def __init__(self, mode: str, folder: Path, is_first: bool, quiet: bool) -> None:
        self._is_shown = is_first and mode in VIEW_MODES
        self._folder = folder
        self._quiet = quiet
        self._companion: Companion | None = None
        self._ours: list[int] = []  # standard input, output and error, while a view has them
        self._attributes: Any = None
        self._run: Any = None
        self._due = time.monotonic() + STATUS_EVERY_S
        self.log: Path | None = None
        """Where the training's output goes, if a view has the terminal."""
        if self._is_shown and has_terminal():
            failsafe("taking the terminal for the view", None)(self._take_terminal)()

    def environment(self, given: dict[str, str]) -> dict[str, str]:
        """For the command: what it prints is to reach the file, and so the screen, at once."""
        return {**given, "PYTHONUNBUFFERED": "1"} if self.log is not None else given

    def poll(self, poll: Poll) -> Poll:
        """Start the view; from then on it is looked after whenever the command is."""
        failsafe("starting the view", None)(self._start)()
        look_after = failsafe("showing the run", None)(self._look_after)

        def polled(seconds: float) -> int | None:
            look_after()
            return poll(seconds)

        return polled if self._is_shown else poll

    def close(self) -> None:
        """End the view; from now on the terminal is ours again."""
        companion, self._companion = self._companion, None
        code = companion.close() if companion is not None else 0
        self._give_terminal_back(in_order=code == 0)

    @failsafe("showing the last output", None)
    def show_last_output(self, code: int) -> None:
        """After a failure: what the command printed last, which the view has taken with it."""
        if self.log is None or code == 0:
            return
        for line in (OutputTail(self.log).read() or [])[-LAST_LINES:]:
            sys.stderr.write(f"{printable(line)}\n")

    @failsafe("saying where the output is", None)
    def say_where_output_is(self, home: Path) -> None:
        """The last line of all."""
        if self.log is not None and not self._quiet:
            from traceml.monitor.result import short

            sys.stderr.write(f"Output:  {short(home / OUTPUT_LOG)}\n")
            sys.stderr.flush()

    def _take_terminal(self) -> None:
        import termios

        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        log = os.open(self._folder / OUTPUT_LOG, flags, 0o666)
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._attributes = termios.tcgetattr(0)
        self._ours = [os.dup(number) for number in range(3)]
        for number, instead in enumerate((nothing, log, log)):
            os.dup2(instead, number)
        os.close(log)
        os.close(nothing)
        self.log = self._folder / OUTPUT_LOG

    def _give_terminal_back(self, in_order: bool) -> None:
        if not self._ours:
            return
        sys.stderr.flush()
        for number, descriptor in enumerate(self._ours):
            os.dup2(descriptor, number)
            os.close(descriptor)
        self._ours = []
        if not in_order and in_foreground():
            failsafe("putting the terminal in order", None)(self._reset_terminal)()

    def _reset_terminal(self) -> None:
        import termios

        termios.tcsetattr(0, termios.TCSADRAIN, self._attributes)
        os.write(2, RESET)

    def _start(self) -> None:
        if self.log is not None:
            files = dict(zip(("stdin", "stdout", "stderr"), self._ours, strict=True))
            self._companion = Companion(["watch", os.fspath(self._folder)], **files)

    def _look_after(self) -> None:
        if self._companion is not None:
            code = self._companion.ended()
            if code is not None:
                self._companion = None
                self._give_terminal_back(in_order=code == 0)
                from traceml.monitor.result import short

                kept = f"; the output goes to {short(self.log)}" if self.log is not None else ""
                back = f"back with: traceml watch {short(self._folder)}{kept}"
                say(f"the view has ended, training goes on; {back}")
        elif self._is_shown and self.log is None and not self._quiet and time.monotonic() >= self._due:
            # There is no terminal for the view, so status lines take its place.
            from traceml.monitor.live import LiveRun
            from traceml.present.text import status_line

            self._due = time.monotonic() + STATUS_EVERY_S
            self._run = self._run or LiveRun(self._folder)
            say(status_line(self._run.look()))


def has_terminal(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a view can take the screen: input, output and errors are a terminal, and it is ours now."""
    if environment.get("TERM", "dumb") in ("dumb", "unknown", "") or os.name != "posix":
        return False
    return all(map(os.isatty, range(3))) and in_foreground()


class OutputTail:
    """The newest lines of output.log: what the training prints while a view has the terminal."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = -1
        self._lines: list[str] | None = None

    def read(self) -> list[str] | None:
        """None if there is no such file."""
        from traceml.present.terminal.output import settled

        try:
            with os.fdopen(open_regular(self._path), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size != self._size:
                    file.seek(max(0, size - MOST_BYTES))
                    data = file.read(MOST_BYTES)
                    if size > MOST_BYTES and b"\n" in data:
                        data = data.partition(b"\n")[2]  # the first line is not whole
                    self._lines, self._size = settled(data.decode(errors="replace")), size
        except FileNotFoundError:
            return None
        return self._lines


class Companion:
    """The process of a command of `traceml` beside the monitor, which can harm nothing here."""

    def __init__(self, words: Sequence[str], **options: Any) -> None:
        command = [sys.executable, "-m", "traceml", *words]
        self._process = subprocess.Popen(command, env=given_environment(), **options)

    def ended(self) -> int | None:
        return self._process.poll()

    def close(self) -> int | None:
        """End it and return its exit code. It may already have ended."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        else:
            self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # a file system may hold it even now
                self._process.wait(KILLED_S)
        return self._process.returncode


def open_servers(settings: Settings, folder: Path) -> list[Companion]:
    """Those for browsers and monitoring systems that were asked for and can be started. A server needs no key
    and no screen, and stays until the result is there."""
    ui = _words({"--host": settings.ui_host, "--port": settings.ui_port})
    ui += ["--no-browser"] if settings.no_browser else []
    metrics = _words({"--prometheus": settings.prometheus, "--otlp": settings.otlp})
    commands = {
        "opening the dashboard": ["ui", "--companion", *ui] if settings.mode == DASHBOARD else [],
        "serving metrics": ["metrics", *metrics] if metrics else [],
    }
    # Keys and signals of the terminal are the training's, and so is standard output. Nothing is written
    # to the pipe: it is closed when the run ends, by `close` or because this process was killed.
    options = {"stdin": subprocess.PIPE, "stdout": 2, "start_new_session": True}
    started = (
        failsafe(what, None)(Companion)([*command, os.fspath(folder)], **options)
        for what, command in commands.items()
        if command
    )
    return [server for server in started if server is not None]


def _words(flags: dict[str, object]) -> list[str]:
    return [f"{flag}={value}" for flag, value in flags.items() if value is not None]
