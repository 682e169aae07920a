"""Settings: flag, then variable, then file, then default. A bad value is one line that says what to do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceml.errors import CommandError
from traceml.settings import SETTINGS, Settings, is_disabled, resolve

DEFAULTS = Settings(
    run_name=None,
    logs_dir="logs",
    mode="summary",
    interval=1.0,
    stall_after=30.0,
    nproc_per_node=None,
    nnodes=1,
    node_rank=None,
    master_addr=None,
    master_port=None,
    relay_port=None,
    overwrite=False,
    quiet=False,
)


def resolved(
    flags: dict[str, str] | None = None,
    environment: dict[str, str] | None = None,
    file: dict[str, Any] | None = None,
) -> Settings:
    return resolve(flags or {}, file or {}, "traceml.yaml", environment or {})


def test_defaults() -> None:
    """If nothing is given, every setting has its documented default."""
    assert resolved() == DEFAULTS


def test_each_source_wins_over_the_next() -> None:
    """Flag over variable over file over default."""
    flags, variables, file = {"interval": "2"}, {"TRACEML_INTERVAL": "3"}, {"interval": 4}
    assert resolved(flags, variables, file).interval == 2
    assert resolved({}, variables, file).interval == 3
    assert resolved({}, {}, file).interval == 4
    assert resolved().interval == 1


def test_bad_value_of_an_overridden_source_is_ignored() -> None:
    """A value that a flag overrides is not read."""
    assert resolved({"interval": "2"}, {"TRACEML_INTERVAL": "soon"}).interval == 2


def test_flag_and_variable_follow_from_the_key() -> None:
    """run_name gives `--run-name` and TRACEML_RUN_NAME, and every setting has a help text."""
    for setting in SETTINGS:
        assert setting.flag == "--" + setting.key.replace("_", "-")
        assert setting.variable == "TRACEML_" + setting.key.upper()
        assert setting.help


@pytest.mark.parametrize(
    ("source", "where"),
    [
        ({"flags": {"interval": "soon"}}, "--interval"),
        ({"environment": {"TRACEML_INTERVAL": "soon"}}, "TRACEML_INTERVAL"),
        ({"file": {"interval": "soon"}}, "interval in traceml.yaml"),
    ],
)
def test_bad_value_names_its_source(source: dict[str, Any], where: str) -> None:
    """One line: where the value came from, what it was, what to use instead. Exit code 2."""
    with pytest.raises(CommandError) as problem:
        resolved(**source)
    assert str(problem.value) == f"{where}: invalid value 'soon'; use a number"
    assert problem.value.exit_code == 2


@pytest.mark.parametrize("value", ["0", "0.01", "-1", "4000", "nan", "inf", "", "1s"])
def test_impossible_intervals_are_rejected(value: str) -> None:
    """An interval is a number of seconds from 0.05 to 3600."""
    with pytest.raises(CommandError, match="--interval"):
        resolved({"interval": value})


@pytest.mark.parametrize("name", ["a", "Run 7 ü", "x.y-z_1", "训练", "0"])
def test_plain_run_names_are_accepted(name: str) -> None:
    """Any name of a single folder is accepted, with Unicode and spaces."""
    assert resolved({"run_name": name}).run_name == name


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../up", "a/b", "/abs", "a\\b", "a\0b", "a\nb", "\x1b[31m", "-x", "x" * 201, "ü" * 101],
)
def test_run_names_that_are_paths_are_rejected(name: str) -> None:
    """A run name cannot leave the logs folder, break a line, or be too long for a file system."""
    with pytest.raises(CommandError, match="--run-name") as problem:
        resolved({"run_name": name})
    assert "\n" not in str(problem.value)


@given(name=st.text(max_size=60))
def test_accepted_run_name_is_one_path_segment(name: str) -> None:
    """Every accepted name is a folder directly in the logs folder."""
    from pathlib import Path

    try:
        accepted = resolved({"run_name": name}).run_name
    except CommandError:
        return
    assert accepted == name
    assert (Path("logs") / name).parent == Path("logs")
    assert (Path("logs") / name).name == name


@pytest.mark.parametrize(
    ("text", "expected"), [("1", True), ("TRUE", True), ("on", True), ("0", False), ("no", False)]
)
def test_switches_from_a_variable(text: str, expected: bool) -> None:
    """The usual words for yes and no are understood."""
    assert resolved(environment={"TRACEML_QUIET": text}).quiet is expected


def test_switches_from_a_file_are_booleans() -> None:
    """`overwrite: true` in YAML is true, `false` is false."""
    assert resolved(file={"overwrite": True}).overwrite is True
    assert resolved({}, {}, {"overwrite": False}).overwrite is False


def test_unknown_key_in_a_file_is_an_error() -> None:
    """A typo in traceml.yaml is reported with the known keys, not ignored."""
    with pytest.raises(
        CommandError, match=r"traceml\.yaml: unknown setting 'intervall'; use one of: run_name, "
    ):
        resolved(file={"intervall": 1})


def test_null_in_a_file_leaves_the_default() -> None:
    """`run_name:` without a value leaves the default."""
    assert resolved(file={"run_name": None, "interval": None}) == DEFAULTS


@pytest.mark.parametrize(
    ("value", "expected"), [("1", True), ("true", True), ("0", False), ("", False), ("off", False)]
)
def test_disabled_variable(value: str, expected: bool) -> None:
    """TRACEML_DISABLED takes the usual words for yes and no."""
    assert is_disabled({"TRACEML_DISABLED": value}) is expected


def test_bad_disabled_variable_is_an_error() -> None:
    """TRACEML_DISABLED=maybe is reported, not guessed at."""
    with pytest.raises(CommandError, match="TRACEML_DISABLED: invalid value 'maybe'; use 1 or 0"):
        is_disabled({"TRACEML_DISABLED": "maybe"})
