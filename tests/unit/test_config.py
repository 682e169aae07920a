"""Settings from traceml.yaml or [tool.traceml]. A broken file is one clear line."""

from __future__ import annotations

from pathlib import Path

import pytest

from traceml.errors import CommandError
from traceml.settings import read_file_settings


def test_without_a_file_there_are_no_settings(tmp_path: Path) -> None:
    """A missing file is not an error."""
    assert read_file_settings(tmp_path) == ({}, "")


def test_settings_from_yaml(tmp_path: Path) -> None:
    """`setting: value` lines are read; dashes and underscores mean the same."""
    (tmp_path / "traceml.yaml").write_text("run-name: a\ninterval: 0.5\noverwrite: true\n")
    expected = {"run_name": "a", "interval": 0.5, "overwrite": True}
    assert read_file_settings(tmp_path) == (expected, "traceml.yaml")


def test_settings_from_toml(tmp_path: Path) -> None:
    """[tool.traceml] in pyproject.toml is read."""
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\n[tool.traceml]\nlogs-dir = "out"\n')
    assert read_file_settings(tmp_path) == ({"logs_dir": "out"}, "pyproject.toml")


def test_traceml_yaml_wins_over_pyproject(tmp_path: Path) -> None:
    """If both files exist, only traceml.yaml is read."""
    (tmp_path / "pyproject.toml").write_text('[tool.traceml]\nlogs-dir = "out"\n')
    (tmp_path / "traceml.yaml").write_text("quiet: true\n")
    assert read_file_settings(tmp_path) == ({"quiet": True}, "traceml.yaml")


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n"])
def test_empty_file_has_no_settings(tmp_path: Path, text: str) -> None:
    """An empty file is not an error."""
    (tmp_path / "traceml.yaml").write_text(text)
    assert read_file_settings(tmp_path)[0] == {}


@pytest.mark.parametrize("data", [b"run_name: [", b"- a\n- b\n", b"just words", b"\xff\xfe\x00", b"a: b: c"])
def test_broken_yaml_is_one_line(tmp_path: Path, data: bytes) -> None:
    """A file that is not YAML, or has no `setting: value` lines, is one line that names the file."""
    (tmp_path / "traceml.yaml").write_bytes(data)
    with pytest.raises(CommandError, match=r"traceml\.yaml") as problem:
        read_file_settings(tmp_path)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize("data", [b"[tool.traceml]\nx = = 1", b"[tool.traceml]\nx = '\xff'"])
def test_broken_toml_with_our_table_is_one_line(tmp_path: Path, data: bytes) -> None:
    """If the file has our table, the user must learn that it cannot be read."""
    (tmp_path / "pyproject.toml").write_bytes(data)
    with pytest.raises(CommandError, match=r"pyproject\.toml: cannot be read as TOML") as problem:
        read_file_settings(tmp_path)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize("data", [b"x = = 1", b"tool = 3", b"[tool]\nother = 1", b"\xff\xff"])
def test_toml_without_our_table_is_ignored(tmp_path: Path, data: bytes) -> None:
    """A pyproject.toml without our table never stops a run, even if it is broken."""
    (tmp_path / "pyproject.toml").write_bytes(data)
    assert read_file_settings(tmp_path)[0] == {}


def test_tool_traceml_must_be_a_table(tmp_path: Path) -> None:
    """`traceml = 3` under [tool] is an error in one line."""
    (tmp_path / "pyproject.toml").write_text("[tool]\ntraceml = 3\n")
    with pytest.raises(CommandError, match="use `setting: value` lines"):
        read_file_settings(tmp_path)


def test_folders_in_place_of_files(tmp_path: Path) -> None:
    """A folder named traceml.yaml is an error in one line; one named pyproject.toml is ignored."""
    (tmp_path / "pyproject.toml").mkdir()
    assert read_file_settings(tmp_path)[0] == {}
    (tmp_path / "traceml.yaml").mkdir()
    with pytest.raises(CommandError, match=r"traceml\.yaml: cannot be read"):
        read_file_settings(tmp_path)
