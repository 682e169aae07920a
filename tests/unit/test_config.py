"""Settings from traceml.yaml or [tool.traceml]: read when there, one clear line when broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from traceml.cli.config import read_file_settings
from traceml.errors import CommandError


def test_no_file_is_no_setting(tmp_path: Path) -> None:
    """Without a file there is nothing, and no complaint."""
    assert read_file_settings(tmp_path) == ({}, "")


def test_yaml(tmp_path: Path) -> None:
    """`setting: value` lines; dashes and underscores are the same."""
    (tmp_path / "traceml.yaml").write_text("run-name: a\ninterval: 0.5\noverwrite: true\n")
    expected = {"run_name": "a", "interval": 0.5, "overwrite": True}
    assert read_file_settings(tmp_path) == (expected, "traceml.yaml")


def test_toml(tmp_path: Path) -> None:
    """[tool.traceml] in pyproject.toml."""
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\n[tool.traceml]\nlogs-dir = "out"\n')
    assert read_file_settings(tmp_path) == ({"logs_dir": "out"}, "pyproject.toml")


def test_our_own_file_wins(tmp_path: Path) -> None:
    """With both there, traceml.yaml is the one that is read."""
    (tmp_path / "pyproject.toml").write_text('[tool.traceml]\nlogs-dir = "out"\n')
    (tmp_path / "traceml.yaml").write_text("quiet: true\n")
    assert read_file_settings(tmp_path) == ({"quiet": True}, "traceml.yaml")


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n"])
def test_an_empty_file_is_no_setting(tmp_path: Path, text: str) -> None:
    """A file with nothing in it gives nothing."""
    (tmp_path / "traceml.yaml").write_text(text)
    assert read_file_settings(tmp_path)[0] == {}


@pytest.mark.parametrize("data", [b"run_name: [", b"- a\n- b\n", b"just words", b"\xff\xfe\x00", b"a: b: c"])
def test_a_broken_yaml_is_one_line(tmp_path: Path, data: bytes) -> None:
    """Not YAML, or not `setting: value` lines: one line that names the file."""
    (tmp_path / "traceml.yaml").write_bytes(data)
    with pytest.raises(CommandError, match=r"traceml\.yaml") as problem:
        read_file_settings(tmp_path)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize("data", [b"[tool.traceml]\nx = = 1", b"[tool.traceml]\nx = '\xff'"])
def test_a_broken_toml_with_our_table_is_one_line(tmp_path: Path, data: bytes) -> None:
    """If our settings are in it the user must know that they cannot be read."""
    (tmp_path / "pyproject.toml").write_bytes(data)
    with pytest.raises(CommandError, match=r"pyproject\.toml: cannot be read as TOML") as problem:
        read_file_settings(tmp_path)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize("data", [b"x = = 1", b"tool = 3", b"[tool]\nother = 1", b"\xff\xff"])
def test_somebody_elses_toml_is_not_our_business(tmp_path: Path, data: bytes) -> None:
    """A pyproject.toml without our table, broken or not, never stops a run."""
    (tmp_path / "pyproject.toml").write_bytes(data)
    assert read_file_settings(tmp_path)[0] == {}


def test_a_table_that_is_no_table_is_one_line(tmp_path: Path) -> None:
    """`traceml = 3` under [tool] is an error."""
    (tmp_path / "pyproject.toml").write_text("[tool]\ntraceml = 3\n")
    with pytest.raises(CommandError, match="use `setting: value` lines"):
        read_file_settings(tmp_path)


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    """A folder in place of traceml.yaml is one line; in place of pyproject.toml it is not our business."""
    (tmp_path / "pyproject.toml").mkdir()
    assert read_file_settings(tmp_path)[0] == {}
    (tmp_path / "traceml.yaml").mkdir()
    with pytest.raises(CommandError, match=r"traceml\.yaml: cannot be read"):
        read_file_settings(tmp_path)
