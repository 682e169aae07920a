"""One colour per phase, the same in the terminal, the page and the reports.

The colours can be told apart by colour-blind people; no view relies on them alone.
"""

from collections.abc import Sequence
from typing import Final

PHASE_COLOURS: Final = {
    "input": "#E69F00",
    "h2d": "#F0E442",
    "forward": "#56B4E9",
    "backward": "#0072B2",
    "sync": "#CC79A7",
    "optimizer": "#009E73",
    "validation": "#999999",
    "checkpoint": "#8C6D31",
    "no_grad": "#6A51A3",
    "wait": "#D55E00",
}
USER_COLOURS: Final = ("#44AA99", "#882255", "#DDCC77")
"""Phases that the user names take these in turn."""
WHITE_TEXT_ON: Final = frozenset({"#0072B2", "#8C6D31", "#6A51A3", "#882255"})
"""Black text is readable on the others."""


def colour_of(key: str, user_keys: Sequence[str] = ()) -> str:
    """The colour of a phase, by its key or the key of its metric; `user_keys` are the run's, in order."""
    phase = key.removesuffix("_ms")
    if phase in PHASE_COLOURS:
        return PHASE_COLOURS[phase]
    return USER_COLOURS[user_keys.index(key) % len(USER_COLOURS) if key in user_keys else 0]
