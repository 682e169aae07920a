"""The live view that `traceml run --mode=cli` opens: a process of its own, which can harm nothing here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from traceml.monitor.launch import given_environment
from traceml.schema.modes import WATCH_ONLY

END_S: Final = 3.0
"""A view has this long to leave the terminal in order once the run has ended."""


VIEWS: Final[dict[str, str]] = {"cli": "watch", WATCH_ONLY: "watch"}
"""Each mode that shows the run in the terminal, and the command of `traceml` that draws it."""


class Companion:
    """The process of a view, next to the monitor."""

    def __init__(self, command: str, folder: Path, files: Sequence[int]) -> None:
        """`files` are its standard input, output and error."""
        words = [sys.executable, "-m", "traceml", command, os.fspath(folder)]
        self._process = subprocess.Popen(
            words, env=given_environment(), stdin=files[0], stdout=files[1], stderr=files[2]
        )

    def ended(self) -> int | None:
        """Its exit code, None while it is there."""
        return self._process.poll()

    def close(self) -> int:
        """End it, and its exit code. It may already have ended by itself."""
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        return self._process.wait()
