"""What a terminal can show: colours or none, Unicode or ASCII; and text that cannot break the screen."""

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.text import Text

from traceml.errors import printable
from traceml.present.columns import columns
from traceml.schema.catalog import WHITE_TEXT_ON, colour_of

BARS: Final = ("▁▂▃▄▅▆▇█", " .:-=+*#")
"""The levels of a sparkline, in Unicode and in ASCII."""
ASCII_NAMES: Final = {"µ": "u", "…": "~", "·": "-", "×": "x", "°": " ", "→": ">", "▲": "^", "▼": "v"}
SEVERITY: Final = {"info": ("", "green"), "warn": ("warning", "yellow"), "crit": ("critical", "red")}
"""How a severity is called, and its colour; the name is always there too."""
PLAIN_TERMINALS: Final = ("dumb", "linux", "unknown", "")


@dataclass(frozen=True, slots=True)
class Ink:
    """How text becomes cells on this terminal."""

    colour: bool = True
    unicode: bool = True

    @property
    def bars(self) -> str:
        return BARS[0 if self.unicode else 1]

    def clean(self, text: str) -> str:
        """Printable, and in ASCII where the terminal has nothing else."""
        text = printable(text)
        if self.unicode or text.isascii():
            return text
        return "".join(
            ch if ch.isascii() else ASCII_NAMES.get(ch, "?" * columns(unicodedata.normalize("NFC", ch)))
            for ch in text
        )

    def text(self, text: str, style: str = "") -> Text:
        """One piece of a line. Nothing in it is markup."""
        return Text(self.clean(text), style=style, no_wrap=True, end="")

    def phase(self, key: str, user_keys: Sequence[str], background: bool = False) -> str:
        """The style of a phase: its colour as text, or as background with readable text on it."""
        if not self.colour:
            return ""
        colour = colour_of(key, user_keys)
        on_it = "#FFFFFF" if colour in WHITE_TEXT_ON else "#000000"
        return f"{on_it} on {colour}" if background else colour


def find_ink(environment: Mapping[str, str], encoding: str | None) -> Ink:
    """What this terminal can show, from the environment and the encoding of its stream."""
    term = environment.get("TERM", "")
    plain = term in PLAIN_TERMINALS
    return Ink(
        colour=not environment.get("NO_COLOR") and term not in ("dumb", "unknown", "") and "mono" not in term,
        unicode=not plain and (encoding or "").lower().replace("-", "") in ("utf8", "utf8sig"),
    )


def line(*parts: Text) -> Text:
    """Pieces side by side."""
    return Text("", no_wrap=True, end="").append_text(Text("", end="").join(parts))


def between(left: Text, right: Text, width: int) -> Text:
    """Text on both sides of one line; the left one is shortened if there is no room."""
    room = width - right.cell_len - 2
    if left.cell_len > room:
        left = left.copy()
        left.truncate(max(room, 1), overflow="crop")
    gap = " " * max(width - left.cell_len - right.cell_len, 1)
    return line(left, Text(gap), right)
