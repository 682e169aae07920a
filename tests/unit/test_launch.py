"""From what was typed to a command line and its environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import traceml
from traceml.errors import CommandError
from traceml.monitor.launch import injected_environment, native_environment, python_command

INJECT = str(Path(traceml.__file__).parent / "inject")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_script_runs_with_our_python(here: Path) -> None:
    """The script's words follow unchanged, spaces and all."""
    (here / "my train.py").write_text("")
    assert python_command("my train.py", ["--a", "b c"], False) == [
        sys.executable,
        "my train.py",
        "--a",
        "b c",
    ]


def test_a_module_runs_with_our_python(here: Path) -> None:
    """`-m pkg.train`, found or not: Python itself says what is wrong with it."""
    assert python_command("pkg.train", ["x"], True) == [sys.executable, "-m", "pkg.train", "x"]


def test_a_folder_with_a_main_is_a_script(here: Path) -> None:
    """As plain Python does it."""
    (here / "app").mkdir()
    (here / "app" / "__main__.py").write_text("")
    assert python_command("app", [], False) == [sys.executable, "app"]


def test_any_other_command_runs_unchanged(here: Path) -> None:
    """torchrun, accelerate, env: untouched."""
    assert python_command("env", ["-u", "X", "train.py"], False) == ["env", "-u", "X", "train.py"]


def test_target_that_cannot_be_started_gives_one_clear_line(here: Path) -> None:
    """Missing script, folder named like one, file that is no program, unknown command: exit code 2."""
    (here / "folder.py").mkdir()
    (here / "notes.txt").write_text("hello")
    for target, words in [
        ("missing.py", "no such file"),
        ("folder.py", "is a folder, not a script"),
        ("./notes.txt", "neither a Python script"),
        ("no-such-command", "no such script or command"),
    ]:
        with pytest.raises(CommandError, match=words) as problem:
            python_command(target, [], False)
        assert problem.value.exit_code == 2
        assert "\n" not in str(problem.value)


def test_injected_folder_comes_first_and_the_rest_is_kept() -> None:
    """Our folder leads PYTHONPATH, the user's entries and variables follow."""
    found = injected_environment({"PYTHONPATH": "/a:/b", "HOME": "/h"}, Path("/run"))
    assert found["PYTHONPATH"] == os.pathsep.join([INJECT, "/a:/b"])
    assert (found["HOME"], found["TRACEML_RUN_DIR"]) == ("/h", "/run")
    assert injected_environment({}, Path("/run"))["PYTHONPATH"] == INJECT
    assert (Path(INJECT) / "sitecustomize.py").exists()


@pytest.mark.parametrize("value", ["", "0", "no", "false", "off"])
def test_a_run_that_is_not_disabled_records(value: str) -> None:
    """TRACEML_DISABLED=no was read here; the children, which know fewer words for no, never see it."""
    assert "TRACEML_DISABLED" not in injected_environment({"TRACEML_DISABLED": value}, Path("/run"))


def test_native_launch_has_none_of_our_variables() -> None:
    """A disabled run inside another run does not record into it."""
    assert native_environment({"A": "1", "TRACEML_RUN_DIR": "/run"}) == {"A": "1", "TRACEML_DISABLED": "1"}
