"""The package builds everywhere: with and without a compiler, and on Pythons without the stable ABI."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HAS_STABLE_ABI = not sysconfig.get_config_var("Py_GIL_DISABLED")
FREE_THREADED = """
import runpy, sys, sysconfig
real = sysconfig.get_config_var
sysconfig.get_config_var = lambda name: 1 if name == "Py_GIL_DISABLED" else real(name)
sys.argv[0] = "setup.py"
runpy.run_path("setup.py", run_name="__main__")
"""


def versions() -> list[tuple[int, int]]:
    """The Python versions that the classifiers name."""
    found = [re.fullmatch(r"Programming Language :: Python :: 3\.(\d+)", c) for c in PROJECT["classifiers"]]
    return [(3, int(m.group(1))) for m in found if m]


def test_classifiers_name_every_supported_python() -> None:
    """The classifiers start at requires-python and leave no version out."""
    oldest = tuple(map(int, PROJECT["requires-python"].removeprefix(">=").split(".")))
    assert versions()[0] == oldest
    assert versions() == [(3, minor) for minor in range(oldest[1], versions()[-1][1] + 1)]


def test_every_supported_python_is_tested() -> None:
    """`make test-pythons` and the CI workflow run on each Python that the classifiers name."""
    names = [f"{major}.{minor}" for major, minor in versions()]
    listed = re.search(r"^PYTHONS \?= (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert listed is not None
    assert listed.group(1).split() == names
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    matrix = re.search(r"python: \[(.*)\]", workflow)
    assert matrix is not None
    assert re.findall(r"[\d.]+", matrix.group(1)) == names


def test_the_binary_serves_the_oldest_supported_python() -> None:
    """setup.py, the wheels' tag and _switch.c's limited API start at the same Python as the package."""
    major, minor = versions()[0]
    source = (ROOT / "src" / "traceml" / "capture" / "_switch.c").read_text()
    assert f"#define Py_LIMITED_API 0x{major:02X}{minor:02X}0000" in source
    assert f'"cp{major}{minor}"' in (ROOT / "setup.py").read_text()
    assert f'"cp{major}{minor}-abi3"' in (ROOT / "tools" / "build_wheels.py").read_text()


def test_the_license_is_in_the_package() -> None:
    """The license that the metadata names is the one in the file."""
    text = (ROOT / "LICENSE").read_text()
    assert (PROJECT["license"], PROJECT["license-files"]) == ("Apache-2.0", ["LICENSE"])
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


BUILDS = pytest.mark.thorough


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what is needed to build, because a build leaves files behind."""
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    built = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=built)
    return tmp_path


def build(tree: Path, *start: str, **environment: str) -> tuple[str, bool]:
    """Build a wheel; its tag, and whether it holds the C switch."""
    clean = {k: v for k, v in os.environ.items() if k not in ("TRACEML_PURE_PYTHON", "CC")}
    command = [sys.executable, *start, "-q", "bdist_wheel", "--dist-dir", "made"]
    done = subprocess.run(
        command, cwd=tree, env={**clean, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = (tree / "made").iterdir()
    names = ZipFile(wheel).namelist()
    assert "traceml/capture/switch.py" in names
    tag = wheel.stem.split("-", 2)[2]
    return tag, any("_switch" in name and name.endswith(".so") for name in names)


@BUILDS
def test_a_build_without_a_compiler_succeeds(tree: Path) -> None:
    """The C switch is optional: without a compiler there is a wheel without it."""
    _, has_switch = build(tree, "setup.py", CC="/no/such/compiler", LDSHARED="/no/such/compiler")
    assert not has_switch


@BUILDS
@pytest.mark.skipif(
    not shutil.which("cc") or not HAS_STABLE_ABI, reason="needs a C compiler and the stable ABI"
)
def test_a_build_with_a_compiler_has_the_c_switch(tree: Path) -> None:
    """One wheel serves the oldest supported Python and all newer ones."""
    tag, has_switch = build(tree, "setup.py")
    assert has_switch
    assert tag.startswith("cp310-abi3-")


@BUILDS
def test_a_free_threaded_python_gets_a_pure_package(tree: Path) -> None:
    """Free-threaded Pythons have no stable ABI, and setuptools raises if one is asked for: it must not be."""
    assert build(tree, "-c", FREE_THREADED) == ("py3-none-any", False)


@BUILDS
def test_a_pure_package_can_be_asked_for(tree: Path) -> None:
    """TRACEML_PURE_PYTHON=1 builds the wheel for all other platforms."""
    assert build(tree, "setup.py", TRACEML_PURE_PYTHON="1") == ("py3-none-any", False)


PAGE = Path("src", "traceml", "present", "page.html")


def names_in_wheel(tree: Path) -> list[str]:
    (wheel,) = (tree / "made").iterdir()
    return ZipFile(wheel).namelist()


@BUILDS
def test_the_page_is_in_the_wheel(tree: Path) -> None:
    """Who installs a wheel needs no Node.js."""
    (tree / PAGE).write_text("<html></html>")
    build(tree, "setup.py", TRACEML_PURE_PYTHON="1")
    assert "traceml/present/page.html" in names_in_wheel(tree)


@BUILDS
@pytest.mark.stack
def test_a_build_without_node_and_registry_succeeds(tree: Path) -> None:
    """The page is optional: where it cannot be built there is one warning and a wheel without it."""
    shutil.copytree(ROOT / "web", tree / "web", ignore=shutil.ignore_patterns("node_modules"))
    (tree / PAGE).unlink(missing_ok=True)
    environment = {**os.environ, "PATH": str(tree / "none"), "PIP_NO_INDEX": "1", "TRACEML_PURE_PYTHON": "1"}
    command = [sys.executable, "setup.py", "-q", "bdist_wheel", "--dist-dir", "made"]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=True)
    warnings = [line for line in done.stderr.splitlines() if "page.html" in line]
    assert len(warnings) == 1
    assert "page.html could not be built and is missing" in warnings[0]
    assert "traceml/present/page.html" not in names_in_wheel(tree)
