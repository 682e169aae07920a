"""`traceml run ...`: our flags are separated from those of the script without guessing."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceml.cli.run import Parsed, parse
from traceml.errors import CommandError


def parsed(line: str) -> Parsed:
    return parse(shlex.split(line))


@pytest.mark.parametrize(
    ("line", "flags", "target", "arguments"),
    [
        ("train.py", {}, "train.py", []),
        ("train.py --lr 0.1", {}, "train.py", ["--lr", "0.1"]),
        ("--run-name a train.py", {"run_name": "a"}, "train.py", []),
        ("train.py --run-name a --lr 1", {"run_name": "a"}, "train.py", ["--lr", "1"]),
        ("train.py --run-name=a -- --run-name b", {"run_name": "a"}, "train.py", ["--run-name", "b"]),
        ("train.py --args --mode fast", {}, "train.py", ["--mode", "fast"]),
        ("train.py --lr 1 --mode fast", {}, "train.py", ["--lr", "1", "--mode", "fast"]),
        ("train.py -- -- x", {}, "train.py", ["--", "x"]),
        ("train.py --lr 1 -- x", {}, "train.py", ["--lr", "1", "--", "x"]),
        ("train.py --overwrite data", {"overwrite": "1"}, "train.py", ["data"]),
        ("--quiet=0 train.py", {"quiet": "0"}, "train.py", []),
        ("'my script.py' 'a b'", {}, "my script.py", ["a b"]),
        ("train.py --help", {}, "train.py", ["--help"]),
        ("train.py -h", {}, "train.py", ["-h"]),
        (
            "torchrun --nproc-per-node=4 train.py --mode x",
            {},
            "torchrun",
            ["--nproc-per-node=4", "train.py", "--mode", "x"],
        ),
        ("--quiet python -m pkg -- x", {"quiet": "1"}, "python", ["-m", "pkg", "--", "x"]),
    ],
)
def test_our_flags_and_the_scripts_arguments_are_separated(
    line: str, flags: dict[str, str], target: str, arguments: list[str]
) -> None:
    """Our flags end at the first word that is not one of them; the rest reaches the script unchanged."""
    found = parsed(line)
    assert (found.flags, found.target, found.arguments) == (flags, target, arguments)
    assert not found.is_module


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        ("-m pkg.train", []),
        ("-m pkg.train --lr 1", ["--lr", "1"]),
        ("--quiet -m pkg.train --quiet -- -m", ["-m"]),
    ],
)
def test_module_target(line: str, arguments: list[str]) -> None:
    """`-m pkg.train` takes flags and arguments like a script."""
    found = parsed(line)
    assert (found.is_module, found.target, found.arguments) == (True, "pkg.train", arguments)


def test_module_that_is_a_launcher_keeps_its_flags() -> None:
    """`-m torch.distributed.run` is torchrun: its flags are its own, and no torchrun goes around it."""
    found = parsed("--quiet -m torch.distributed.run --nproc-per-node=2 --nnodes 1 train.py --quiet")
    assert found.flags == {"quiet": "1"}
    assert found.arguments == ["--nproc-per-node=2", "--nnodes", "1", "train.py", "--quiet"]
    assert found.is_module
    assert not found.is_python


def test_disable_flag_works_before_and_after_the_script() -> None:
    """`--disable-traceml` works before and after the script, but not among its arguments."""
    assert parsed("--disable-traceml train.py").disabled
    assert parsed("train.py --disable-traceml").disabled
    assert not parsed("train.py -- --disable-traceml").disabled
    assert not parsed("torchrun --disable-traceml").disabled


def test_help_after_the_script_belongs_to_the_script() -> None:
    """`traceml run --help` is ours; `traceml run train.py --help` belongs to the script."""
    assert parsed("--help").help
    assert not parsed("train.py --help").help


def test_without_words_there_is_no_target() -> None:
    """Without words there is no target; the command reports that."""
    assert parsed("").target == ""
    assert parsed("--quiet").target == ""


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--runname a train.py", "unknown flag --runname"),
        ("-m", "-m needs a module name"),
        ("--run-name", "--run-name needs a value"),
        ("-- train.py", "before the script's arguments"),
        ("--args", "before the script's arguments"),
    ],
)
def test_usage_errors_are_clear(line: str, words: str) -> None:
    """A usage error says what is wrong and has exit code 2."""
    with pytest.raises(CommandError, match=words) as problem:
        parsed(line)
    assert problem.value.exit_code == 2


@given(arguments=st.lists(st.text(max_size=12), max_size=6))
def test_words_after_the_separator_are_unchanged(arguments: list[str]) -> None:
    """Everything after `--` reaches the script unchanged."""
    assert parse(["train.py", "--", *arguments]).arguments == arguments
    assert parse(["some-launcher", *arguments]).arguments == arguments
