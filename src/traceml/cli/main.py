"""`traceml`: the table of commands, and the one place where an error becomes a line and an exit code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import NoReturn

from traceml import __version__
from traceml.errors import CommandError, say


class Parser(argparse.ArgumentParser):
    """argparse that reports an error in one line, as every command does, with exit code 2."""

    def __init__(self, prog: str, usage: str, description: str, epilog: str = "") -> None:
        style = argparse.RawDescriptionHelpFormatter
        super().__init__(prog, usage, description, epilog, formatter_class=style)

    def error(self, message: str) -> NoReturn:
        """Leave out the usage lines that argparse would print."""
        raise CommandError(f"{message.removeprefix('argument ')}; see `{self.prog} --help`")


def one_of(known: Collection[str]) -> Callable[[str], str]:
    """An argument type that accepts these words only."""

    def parse(text: str) -> str:
        if text not in known:
            raise argparse.ArgumentTypeError(f"unknown value {text!r}; use one of: {', '.join(known)}")
        return text

    return parse


@dataclass(frozen=True, slots=True)
class Command:
    """A command is the function `main(words) -> exit code` in `traceml.cli.<name>`."""

    name: str
    help: str
    hidden: bool = False

    def load(self) -> Callable[[list[str]], int]:
        """Import the command. Commands that are not used are not imported."""
        function: Callable[[list[str]], int] = import_module(f"traceml.cli.{self.name}").main
        return function


COMMANDS = (
    Command("run", "run a training command and print a diagnosis when it ends"),
    Command("view", "print the summary of a run again"),
    Command("compare", "compare two runs: what changed, and is it real or noise"),
    Command("runs", "list the runs in a folder"),
    Command("attach", "watch a process that called traceml.init(), which starts this", hidden=True),
)

USAGE = """\
usage: traceml <command> [options]

Find out why a PyTorch training run is slow or unstable: in which phase, on which rank, and what to do next.

commands:
{commands}

examples:
  traceml run train.py --lr 0.1                       run your script as usual, with TraceML watching
  traceml run torchrun --nproc-per-node=4 train.py    the same with a launcher
  traceml view my_run                                 print the summary of the run in logs/my_run
  traceml compare my_run other_run                    see what changed between two runs

`traceml <command> --help` describes each command. This is version {version}.
"""


def usage() -> str:
    """`traceml --help`."""
    rows = "\n".join(f"  {c.name:<10}{c.help}" for c in COMMANDS if not c.hidden)
    return USAGE.format(commands=rows, version=__version__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help", "help"):
        sys.stdout.write(usage())
        return 0 if given else 2
    if given[0] in ("-V", "--version"):
        sys.stdout.write(f"traceml {__version__}\n")
        return 0
    command = next((c for c in COMMANDS if c.name == given[0]), None)
    if command is None:
        say(f"unknown command {given[0]!r}; try `traceml run train.py` or `traceml --help`")
        return 2
    try:
        return command.load()(given[1:])
    except CommandError as problem:
        say(str(problem))
        return problem.exit_code
