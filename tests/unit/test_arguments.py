"""`traceml run ...`: our flags and the script's are told apart without guessing."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceml.cli.arguments import Parsed, parse
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
def test_words_go_to_whom_they_belong(
    line: str, flags: dict[str, str], target: str, arguments: list[str]
) -> None:
    """Ours up to the first word that is none of ours; everything else reaches the script untouched."""
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
def test_a_module(line: str, arguments: list[str]) -> None:
    """`-m pkg.train` takes flags and arguments like a script."""
    found = parsed(line)
    assert (found.is_module, found.target, found.arguments) == (True, "pkg.train", arguments)


def test_a_native_launch_can_be_asked_for_on_either_side() -> None:
    """`--disable-traceml` before or after the script, but not after its arguments began."""
    assert parsed("--disable-traceml train.py").disabled
    assert parsed("train.py --disable-traceml").disabled
    assert not parsed("train.py -- --disable-traceml").disabled
    assert not parsed("torchrun --disable-traceml").disabled


def test_help_is_ours_only_before_the_script() -> None:
    """`traceml run --help` is ours, `traceml run train.py --help` is the script's."""
    assert parsed("--help").help
    assert not parsed("train.py --help").help


def test_nothing_given_is_no_target() -> None:
    """Without words there is no target, which the command turns into its one line."""
    assert parsed("").target is None
    assert parsed("--quiet").target is None


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
def test_mistakes_are_one_clear_line(line: str, words: str) -> None:
    """What is wrong, in one line, with exit code 2."""
    with pytest.raises(CommandError, match=words) as problem:
        parsed(line)
    assert problem.value.exit_code == 2


@given(arguments=st.lists(st.text(max_size=12), max_size=6))
def test_after_the_separator_nothing_is_touched(arguments: list[str]) -> None:
    """Whatever follows `--` reaches the script word for word."""
    assert parse(["train.py", "--", *arguments]).arguments == arguments
    assert parse(["some-launcher", *arguments]).arguments == arguments
