"""Writes docs/cli.md from what `--help` says; a test fails when it is not current.

python tools/cli_reference.py
"""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path

from traceml.cli.main import COMMANDS, main, usage

DOCS = Path(__file__).resolve().parents[1] / "docs" / "cli.md"
HEAD = """# Command line

Made from `--help` by `python tools/cli_reference.py`; do not edit it by hand.
"""


def help_of(command: str) -> str:
    """What `traceml <command> --help` prints, at a fixed width."""
    printed = io.StringIO()
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100"
    try:
        with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
            main([command, "--help"])
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    return printed.getvalue()


def page() -> str:
    """The whole page."""
    parts = [HEAD, f"```text\n{usage().rstrip()}\n```\n"]
    for command in COMMANDS:
        if not command.hidden:
            said = help_of(command.name).rstrip()
            parts.append(f"## traceml {command.name}\n\n```text\n{said}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    DOCS.write_text(page())
