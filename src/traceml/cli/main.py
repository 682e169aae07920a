"""`traceml`: the table of commands and the one place where an error becomes a line and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

from traceml import __version__
from traceml.errors import CommandError, say


@dataclass(frozen=True, slots=True)
class Command:
    """A command lives in `traceml.cli.<module>` as `main(arguments) -> exit code`."""

    name: str
    help: str
    hidden: bool = False

    def load(self) -> Callable[[list[str]], int]:
        function: Callable[[list[str]], int] = import_module(f"traceml.cli.{self.name}").main
        return function


COMMANDS = (
    Command("run", "run a training command and diagnose it"),
    Command("view", "print the summary of a run again, or rebuild it from its recording"),
    Command("compare", "compare two runs (or several a side): what changed, and is it real"),
    Command("runs", "list the runs of a folder"),
    Command("attach", "watch a process that called traceml.init() (started by it)", hidden=True),
)


def usage() -> str:
    """`traceml --help`."""
    rows = "\n".join(f"  {c.name:<10}{c.help}" for c in COMMANDS if not c.hidden)
    return (
        "usage: traceml <command> ...\n\n"
        "Why is this PyTorch training slow or unstable, on which rank, in which phase, what to do next.\n\n"
        f"commands:\n{rows}\n\n`traceml <command> --help` tells more. Version {__version__}.\n"
    )


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
