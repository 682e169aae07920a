"""docs/cli.md matches `--help`."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_cli_page_matches_help() -> None:
    """Adding or changing a flag without running `python tools/cli_reference.py` fails here."""
    made = runpy.run_path(str(ROOT / "tools" / "cli_reference.py"))
    assert (ROOT / "docs" / "cli.md").read_text() == made["page"]()


def test_every_command_has_a_section() -> None:
    """Every command that `traceml --help` lists has a section."""
    from traceml.cli.main import COMMANDS

    text = (ROOT / "docs" / "cli.md").read_text()
    assert all(f"## traceml {c.name}\n" in text for c in COMMANDS if not c.hidden)
