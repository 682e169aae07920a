"""Writes docs/images/terminal.svg, the picture of the terminal view, from a run that tests made.

python -m tools.terminal_picture
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.live.lives import eight_gpus
from tests.live.screens import screen_of

from traceml.present.terminal.app import LiveApp

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "images" / "terminal.svg"


def save(app: LiveApp) -> None:
    """What the app shows now, as SVG."""
    PICTURE.parent.mkdir(exist_ok=True)
    drawn = app.export_screenshot(title="traceml run train.py --mode=cli")
    drawn = re.sub(
        r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL
    )  # from the network; any monospace will do
    drawn = "\n".join(line.rstrip() for line in drawn.splitlines() if line.strip())
    PICTURE.write_text(drawn.replace("Fira Code", "DejaVu Sans Mono") + "\n")


if __name__ == "__main__":
    screen_of(eight_gpus(), (120, 40), then=save)
