"""The documentation site builds without a warning, asks no other host for anything and is complete."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from traceml.analyze.diagnose import all_rules
from traceml.cli.main import COMMANDS
from traceml.schema.catalog import PHASES
from traceml.settings import DISABLED_VARIABLE, KEY_VARIABLE, SETTINGS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GENERATED = {"api.md", "cli.md", "diagnoses.md", "settings.md"}
LOADED = re.compile(r"<(?:script|img|iframe|source|link)\b[^>]*?(?:src|href)=[\"']?(?:https?:)?//[^>]*>")
"""What a browser fetches by itself. A link that the reader clicks is no such thing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does."""
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("mkdocs is not installed; requirements-dev.txt has it")
    into = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(into)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return into


def test_site_builds_strictly(site: Path) -> None:
    """Every link and anchor leads somewhere, and every page is in the navigation and in the site."""
    for page in DOCS.glob("*.md"):
        assert (site / page.with_suffix(".html").name).is_file(), page


def test_site_loads_nothing_from_other_hosts(site: Path) -> None:
    """No font, script, style or picture from the network, on any page."""
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        assert LOADED.findall(page.read_text()) == [], page
    for style in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(?:https?:)?//", style.read_text()), style
        assert "@import" not in style.read_text(), style


def test_reference_pages_are_current() -> None:
    """docs/settings.md and docs/api.md say what the code says; tools/write_reference.py writes them."""
    done = subprocess.run(
        [sys.executable, "tools/write_reference.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def hand_written() -> str:
    """The text of all pages that people write."""
    return "\n".join(page.read_text() for page in DOCS.glob("*.md") if page.name not in GENERATED)


def test_every_command_is_shown_in_a_guide() -> None:
    """Every command is on another page than the reference, too, because users would not find it there."""
    text = hand_written()
    assert [c.name for c in COMMANDS if not c.hidden and f"traceml {c.name}" not in text] == []


def test_every_label_is_explained_to_readers() -> None:
    """The page about the output names every label that TraceML can print, and no other."""
    labels = {rule.label for rules in all_rules().values() for rule in rules}
    page = (DOCS / "reading.md").read_text()
    cells = re.findall(r"^\| ([A-Z0-9][A-Z0-9 ,-]{4,}) \|", page, re.MULTILINE)
    named = {label.strip() for cell in cells for label in cell.split(",")}
    assert labels - named == set()
    assert named - labels == {"NO DATA", "INCOMPLETE DATA", "NORMAL"}


def test_every_phase_is_explained_to_readers() -> None:
    """The table of phases on the page about the output has a row for each phase that TraceML can print."""
    page = (DOCS / "reading.md").read_text()
    assert [phase.label for phase in PHASES if f"\n| {phase.label} | " not in page] == []


def test_every_setting_is_in_the_reference() -> None:
    """Flag, variable and key of every setting, and no variable that does not exist."""
    page = (DOCS / "settings.md").read_text()
    variables = {s.variable for s in SETTINGS} | {DISABLED_VARIABLE, KEY_VARIABLE}
    for setting in SETTINGS:
        for name in (setting.flag, setting.variable, setting.key):
            assert re.search(rf"`{name}[ `]", page), name
    named = set(re.findall(r"`?(TRACEML_[A-Z_]+)\b", hand_written() + page))
    assert named - variables - {"TRACEML_RUN_DIR"} == set()
