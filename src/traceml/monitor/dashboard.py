"""Servers beside `traceml run`, for browsers and monitoring systems: processes that can harm nothing here.

Unlike a view in the terminal they need no key and no screen, and they stay until the result is there.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from traceml.errors import failsafe
from traceml.monitor.launch import given_environment
from traceml.settings import Settings

MODE: Final = "dashboard"
END_S: Final = 3.0
"""The server has this long to show open pages the end of the run."""
KILLED_S: Final = 1.0


class Server:
    """The process of a server."""

    def __init__(self, command: list[str]) -> None:
        words = [sys.executable, "-m", "traceml", *command]
        # Keys and signals of the terminal are the training's, and so is standard output. Nothing is written
        # to the pipe: it is closed when the run ends, by `close` or because this process was killed.
        self._process = subprocess.Popen(
            words, env=given_environment(), stdin=subprocess.PIPE, stdout=2, start_new_session=True
        )

    def close(self) -> None:
        """Let it end. It may already have ended by itself."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # a file system may hold it even now
                self._process.wait(KILLED_S)


def open_servers(settings: Settings, folder: Path) -> list[Server]:
    """Those that were asked for and can be started."""
    commands = {"opening the dashboard": _dashboard(settings), "serving metrics": _metrics(settings)}
    started = (
        failsafe(what, None)(Server)([*command, os.fspath(folder)])
        for what, command in commands.items()
        if command
    )
    return [server for server in started if server is not None]


def _dashboard(settings: Settings) -> list[str]:
    words = _words({"--host": settings.ui_host, "--port": settings.ui_port})
    words += ["--no-browser"] if settings.no_browser else []
    return ["ui", "--companion", *words] if settings.mode == MODE else []


def _metrics(settings: Settings) -> list[str]:
    words = _words({"--prometheus": settings.prometheus, "--otlp": settings.otlp})
    return ["metrics", *words] if words else []


def _words(flags: dict[str, object]) -> list[str]:
    return [f"{flag}={value}" for flag, value in flags.items() if value is not None]
