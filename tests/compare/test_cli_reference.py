"""docs/cli.md is what `--help` says."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_reference_is_current() -> None:
    """A flag that is added or changed without `python tools/cli_reference.py` fails here."""
    made = runpy.run_path(str(ROOT / "tools" / "cli_reference.py"))
    assert (ROOT / "docs" / "cli.md").read_text() == made["page"]()


def test_every_command_is_in_it() -> None:
    """Every command that `traceml --help` lists has its part."""
    from traceml.cli.main import COMMANDS

    text = (ROOT / "docs" / "cli.md").read_text()
    assert all(f"## traceml {c.name}\n" in text for c in COMMANDS if not c.hidden)
