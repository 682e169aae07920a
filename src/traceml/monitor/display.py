"""What a run shows while it goes on: nothing, a view beside the monitor, or a status line now and then.

A view that needs the whole terminal gets it: meanwhile our own lines and the training's output go to
output.log, a plain file, so that nobody waits for a reader and nothing is lost if the view is.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from traceml.errors import failsafe, printable, say
from traceml.monitor.companion import VIEW_MODES, Companion, open_view
from traceml.monitor.signals import in_foreground
from traceml.runs.manifest import OUTPUT_LOG

STATUS_EVERY_S = 30.0
"""Between status lines where there is no terminal."""
LAST_LINES: Final = 20
"""Of the output of a run that failed, above its summary."""
RESET: Final = b"\x1b[?1000l\x1b[?1003l\x1b[?1006l\x1b[?1004l\x1b[?2004l\x1b[?7h\x1b[?1049l\x1b[?25h\x1b[m\r"
"""For a view that could not clean up: mouse and paste reports off, the usual screen and cursor back."""

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

    @property
    def _is_replaced(self) -> bool:
        """Whether there is no terminal for the view, so that status lines take its place."""
        return self._is_shown and self.log is None

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
        from traceml.monitor.output_log import OutputTail

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
            self._companion = open_view(self._folder, self._ours)

    def _look_after(self) -> None:
        if self._companion is not None:
            code = self._companion.ended()
            if code is not None:
                self._companion = None
                self._give_terminal_back(in_order=code == 0)
                self._say_how_to_get_back()
        elif self._is_replaced and not self._quiet and time.monotonic() >= self._due:
            self._due = time.monotonic() + STATUS_EVERY_S
            say(self._status())

    def _say_how_to_get_back(self) -> None:
        from traceml.monitor.result import short

        kept = f"; the output goes to {short(self.log)}" if self.log is not None else ""
        say(f"the view has ended, training goes on; back with: traceml watch {short(self._folder)}{kept}")

    def _status(self) -> str:
        from traceml.monitor.live import LiveRun
        from traceml.present.text import status_line

        self._run = self._run or LiveRun(self._folder)
        return status_line(self._run.look())


def has_terminal(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a view can take the screen: input, output and errors are a terminal, and it is ours now."""
    if environment.get("TERM", "dumb") in ("dumb", "unknown", "") or os.name != "posix":
        return False
    return all(map(os.isatty, range(3))) and in_foreground()
