"""Documentation that is made from the code is current, and every diagnosis is documented."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

from tests.unit.test_imports import ALLOWED
from traceml.analyze.diagnose import all_rules
from traceml.capture.patches import DEVICE_PATCHES, FUNCTION_PATCH, PATCHES
from traceml.integrations import seams

ROOT = Path(__file__).parents[2]


def test_the_diagnoses_page_is_current() -> None:
    """docs/diagnoses.md says what the rules say; run tools/write_diagnoses.py after changing one."""
    done = subprocess.run([sys.executable, "tools/write_diagnoses.py", "--check"], cwd=ROOT, check=False)
    assert done.returncode == 0


def test_every_diagnosis_explains_itself() -> None:
    """No rule without a sentence of its own on the page."""
    page = (ROOT / "docs" / "diagnoses.md").read_text()
    found = dict(re.findall(r"^`([A-Z0-9_]+)`\.(.*)", page, re.MULTILINE))
    assert set(found) == {rule.kind for rules in all_rules().values() for rule in rules}
    for kind, text in found.items():
        assert len(text.strip()) > 20, f"{kind} has no docstring"


def test_documents_name_no_path_of_a_machine() -> None:
    """What is committed runs anywhere: no absolute path of a developer's machine in text or code."""
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("src/**/*.py"), ROOT / "Makefile"]:
        assert "/work/" not in path.read_text(), path
        assert "/root/" not in path.read_text(), path


# ---- docs/architecture.md ------------------------------------------------------------------------

PAGE = (ROOT / "docs" / "architecture.md").read_text()
NAMED = re.compile(r"`([\w./-]+\.(?:py|c|md))(?::([\w.]+)(?:\(\))?)?`")


def places(path: str) -> list[Path]:
    """Where a path of the page may lead to: paths start in the package or at the top."""
    return [p for p in (ROOT / "src" / "traceml" / path, ROOT / path) if p.is_file()]


def names_in(path: Path) -> set[str]:
    """Functions, classes, methods and constants that a file defines, methods as `Class.method`."""
    text = path.read_text()
    if path.suffix == ".c":
        return set(re.findall(r"^static [^;=(]*?\b(\w+)\([^;]*?\) \{", text, re.MULTILINE))
    found: set[str] = set()

    def collect(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found.add(prefix + node.name)
            if isinstance(node, ast.ClassDef):
                collect(node.body, f"{node.name}.")
            targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
            found.update(prefix + t.id for t in targets if isinstance(t, ast.Name))

    collect(ast.parse(text).body, "")
    return found


def test_architecture_names_only_files_and_functions_that_exist() -> None:
    """A stranger who follows a number through docs/architecture.md finds every file and function."""
    named = NAMED.findall(PAGE)
    assert len(named) > 50
    missing = []
    for path, name in named:
        found = places(path)
        if not found or (name and not any(name in names_in(p) for p in found)):
            missing.append(f"{path}:{name}")
    assert missing == []


def rows_of_table(title: str) -> list[list[str]]:
    """The cells of the table whose head begins with this title, without the head."""
    table = PAGE.partition(f"| {title} |")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[2:]]


def test_architecture_explains_every_patch() -> None:
    """Each patch has one row: what it replaces, who can notice, which public hook was weighed."""
    explained = [row[0].strip("`") for row in rows_of_table("replaced")]
    assert explained == [f"{p.module}.{p.attribute}" for p in (*PATCHES, *DEVICE_PATCHES, FUNCTION_PATCH)]
    assert all(len(row) == 4 and all(row) for row in rows_of_table("replaced"))


def test_architecture_explains_every_seam_of_a_framework() -> None:
    """Each patch of an integration has one row; Lightning's stand for both of its names."""
    names = [
        f"{p.module}.{p.attribute}" for p in seams.PATCHES if not p.module.startswith("pytorch_lightning.")
    ]
    assert [row[0].strip("`") for row in rows_of_table("of a framework")] == names


def test_architecture_says_what_each_package_may_import() -> None:
    """The table of packages says what tests/unit/test_imports.py enforces."""
    packages = {p.parent.name for p in (ROOT / "src" / "traceml").glob("*/__init__.py")}
    said = {row[0].strip("`"): set(re.findall(r"`([\w.]+)`", row[-1])) for row in rows_of_table("package")}
    assert set(said) == packages
    for package, modules in said.items():
        allowed = {m.removeprefix("traceml.") for m in ALLOWED[package]} - {package, "traceml"}
        assert modules == allowed, package
