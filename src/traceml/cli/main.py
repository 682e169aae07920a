"""`traceml`: the table of commands, and the one place where an error becomes a line and an exit code."""

import argparse
import codecs
import json
import os
import sys
from collections.abc import Callable, Collection, Sequence
from importlib import import_module
from typing import Any, NamedTuple, NoReturn

from traceml import __version__
from traceml.errors import CommandError, say


class Parser(argparse.ArgumentParser):
    """argparse that reports an error in one line, as every command does, with exit code 2."""

    def __init__(self, prog: str, usage: str, description: str, epilog: str = "") -> None:
        style = argparse.RawDescriptionHelpFormatter
        super().__init__(prog, usage, description, epilog, formatter_class=style)

    def option(self, name: str, value: str | None, help: str, **more: Any) -> None:
        """An option or argument: how `--help` calls its value, and what it is for."""
        self.add_argument(name, metavar=value, help=help, **more)

    def logs_dir(self) -> None:
        """The option of each command that takes the name of a run."""
        self.option("--logs-dir", "DIR", "folder to look up run names in (default: logs)", default="logs")

    def _print_message(self, message: str, file: object = None) -> None:  # noqa: ARG002 - argparse calls it
        show(message)

    def error(self, message: str) -> NoReturn:
        """Leave out the usage lines that argparse would print."""
        raise CommandError(f"{message.removeprefix('argument ')}; see `{self.prog} --help`")


def show(text: str, is_json: bool = False) -> None:
    """Print to standard output, in any encoding that it has; no error if its reader has gone."""
    out = sys.stdout
    if out is None:  # closed by whoever started us
        return
    encoding = out.encoding or "utf-8"
    if is_json and codecs.lookup(encoding).name != "utf-8":
        text = json.dumps(json.loads(text), indent=2) + "\n"  # with escapes for all but ASCII
    try:
        out.write(text.encode(encoding, "replace").decode(encoding))
        out.flush()
    except OSError as problem:
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())  # else Python tries and fails again at exit
        if not isinstance(problem, BrokenPipeError):
            raise CommandError(f"standard output cannot be written ({problem.strerror})") from None


def one_of(known: Collection[str]) -> Callable[[str], str]:
    """An argument type that accepts these words only."""

    def parse(text: str) -> str:
        if text not in known:
            raise argparse.ArgumentTypeError(f"unknown value {text[:60]!r}; use one of: {', '.join(known)}")
        return text

    return parse


def number(least: int, most: int) -> Callable[[str], int]:
    """An argument type that accepts whole numbers of this range only."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) <= 12 and least <= int(text) <= most):
            wanted = f"use a whole number from {least} to {most}"
            raise argparse.ArgumentTypeError(f"invalid value {text[:60]!r}; {wanted}")
        return int(text)

    return parse


class Command(NamedTuple):
    """A command is the function `main(words) -> exit code` in `traceml.cli.<name>`."""

    name: str
    help: str
    hidden: bool = False

    def load(self) -> Callable[[list[str]], int]:
        """Import the command. Commands that are not used are not imported."""
        return import_module(f"traceml.cli.{self.name}").main  # type: ignore[no-any-return]


COMMANDS = (
    Command("run", "run a training command and print a diagnosis when it ends"),
    Command("deep", "the same, and measure layers: their time and memory"),
    Command("watch", "show a running training live in the terminal"),
    Command("view", "print the summary of a run again"),
    Command("compare", "compare two runs: what changed, and is it real or noise"),
    Command("runs", "list the runs in a folder"),
    Command("export", "write steps, samples and events to CSV, Parquet, SQLite or a Perfetto trace"),
    Command("ui", "show runs in the browser, finished and running ones"),
    Command("metrics", "serve a run to monitoring systems, for --prometheus and --otlp", hidden=True),
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
    try:
        if not given or given[0] in ("-h", "--help", "help"):
            show(usage())
            return 0 if given else 2
        if given[0] in ("-V", "--version"):
            show(f"traceml {__version__}\n")
            return 0
        command = next((c for c in COMMANDS if c.name == given[0]), None)
        if command is None:
            say(f"unknown command {given[0][:60]!r}; try `traceml run train.py` or `traceml --help`")
            return 2
        return command.load()(given[1:])
    except CommandError as problem:
        say(str(problem))
        return problem.exit_code
    except MemoryError:
        say("not enough memory for this")
        return 2
    except KeyboardInterrupt:
        return 130
