"""Documentation that is made from the code is current, and every diagnosis is documented."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_diagnoses_page_is_current() -> None:
    """docs/diagnoses.md says what the rules say; run tools/write_diagnoses.py after changing one."""
    done = subprocess.run([sys.executable, "tools/write_diagnoses.py", "--check"], cwd=ROOT, check=False)
    assert done.returncode == 0


def test_every_diagnosis_explains_itself() -> None:
    """No rule without a sentence of its own on the page."""
    page = (ROOT / "docs" / "diagnoses.md").read_text()
    for kind, text in re.findall(r"^`([A-Z0-9_]+)`\.(.*)", page, re.MULTILINE):
        assert len(text.strip()) > 20, f"{kind} has no docstring"


def test_documents_name_no_path_of_a_machine() -> None:
    """What is committed runs anywhere: no absolute path of a developer's machine in text or code."""
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("src/**/*.py"), ROOT / "Makefile"]:
        assert "/work/" not in path.read_text(), path
        assert "/root/" not in path.read_text(), path
