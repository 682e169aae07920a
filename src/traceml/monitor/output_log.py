"""Reads output.log: what the training prints while a view has the terminal."""

import os
from pathlib import Path
from typing import Final

from traceml.files import open_regular
from traceml.present.terminal.output import settled

MOST_BYTES: Final = 32 * 1024
"""Of the end of the file: a few screens."""


class OutputTail:
    """The newest lines of a file that may grow."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = -1
        self._lines: list[str] | None = None

    def read(self) -> list[str] | None:
        """None if there is no such file."""
        try:
            with os.fdopen(open_regular(self._path), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size != self._size:
                    file.seek(max(0, size - MOST_BYTES))
                    self._lines = _lines(file.read(MOST_BYTES), is_cut=size > MOST_BYTES)
                    self._size = size
        except FileNotFoundError:
            return None
        return self._lines


def _lines(data: bytes, is_cut: bool) -> list[str]:
    if is_cut and b"\n" in data:
        data = data.partition(b"\n")[2]  # the first line is not whole
    return settled(data.decode(errors="replace"))
