"""A shell in a real terminal (tmux): type keys, read the screen."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.running.processes import environment

DEADLINE_S = 120


class Tmux:
    """One terminal with an interactive shell in `folder`, on a server of its own."""

    def __init__(self, folder: Path, size: tuple[int, int] = (120, 40)) -> None:
        self._place = tempfile.mkdtemp()  # short: the path of a socket has a limit
        self.is_open = True
        width, height = map(str, size)
        shell = "bash --norc --noprofile -i"
        self._do("-f", os.devnull, "new-session", "-d", "-x", width, "-y", height, "-c", str(folder), shell)

    def _do(self, *words: str) -> str:
        more = environment(LC_ALL="C.UTF-8", PS1="$ ")
        more.pop("TMUX", None)
        done = subprocess.run(
            ["tmux", "-u", "-S", f"{self._place}/tmux", *words],
            env=more,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    def traceml(self, *words: str) -> None:
        """Type a command."""
        self.line(" ".join([sys.executable, "-m", "traceml", *words]))

    def line(self, text: str) -> None:
        self._do("send-keys", "-l", text)
        self.key("Enter")

    def key(self, *names: str) -> None:
        self._do("send-keys", *names)

    def resize(self, width: int, height: int) -> None:
        self._do("resize-window", "-x", str(width), "-y", str(height))

    def screen(self, history: bool = False) -> str:
        return self._do("capture-pane", "-p", "-J", *(("-S", "-") if history else ()))

    def in_order(self) -> bool:
        """Whether the terminal is as a shell left it: echo, lines, signals, the usual screen, a cursor."""
        tty, alternate, cursor = self._do(
            "display-message", "-p", "#{pane_tty} #{alternate_on} #{cursor_flag}"
        ).split()
        asked = subprocess.run(["stty", "-F", tty, "-a"], capture_output=True, text=True, check=True)
        words = asked.stdout.replace(";", " ").split()
        return {"echo", "icanon", "isig", "^Z"} <= set(words) and (alternate, cursor) == ("0", "1")

    def until(self, holds: Callable[[str], bool], what: str, history: bool = False) -> str:
        """Read the screen until it shows this."""
        deadline = time.monotonic() + DEADLINE_S
        while not holds(shown := self.screen(history)):
            assert time.monotonic() < deadline, f"{what}:\n{shown}"
            time.sleep(0.05)
        return shown

    def until_has(self, *texts: str, history: bool = False) -> str:
        return self.until(lambda shown: all(text in shown for text in texts), f"no {texts}", history)

    def close(self) -> None:
        self.is_open = False
        self._do("kill-server")
        shutil.rmtree(self._place)
