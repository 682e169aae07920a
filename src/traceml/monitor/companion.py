"""Processes beside `traceml run`, which can harm nothing here: the live view, and servers of the run.

A server, for browsers or monitoring systems, needs no key and no screen. It stays until the result is there.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from traceml.errors import failsafe
from traceml.monitor.launch import given_environment
from traceml.schema import WATCH_ONLY
from traceml.settings import Settings

END_S: Final = 3.0
"""A view has this long to leave the terminal in order, a server to show open pages the end of the run."""
KILLED_S: Final = 1.0
DASHBOARD: Final = "dashboard"
VIEW_MODES: Final = ("cli", WATCH_ONLY)
"""The modes that show the run in the terminal."""


class Companion:
    """The process of a command of `traceml`, next to the monitor."""

    def __init__(self, words: Sequence[str], **options: Any) -> None:
        command = [sys.executable, "-m", "traceml", *words]
        self._process = subprocess.Popen(command, env=given_environment(), **options)

    def ended(self) -> int | None:
        return self._process.poll()

    def close(self) -> int | None:
        """End it, and its exit code. It may already have ended by itself."""
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


def open_view(folder: Path, files: Sequence[int]) -> Companion:
    """The live view; `files` are its standard input, output and error."""
    return Companion(["watch", os.fspath(folder)], stdin=files[0], stdout=files[1], stderr=files[2])


def open_servers(settings: Settings, folder: Path) -> list[Companion]:
    """Those that were asked for and can be started."""
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
