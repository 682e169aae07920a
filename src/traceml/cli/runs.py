"""`traceml runs`: the runs of a folder with date, verdict, step time, steps and exit."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from traceml.cli.parsing import Parser
from traceml.collect.run_list import list_runs
from traceml.present.runs_text import render
from traceml.schema.listed_run import ListedRun

SORTS: Final[dict[str, Callable[[ListedRun], Any]]] = {
    "date": lambda run: run.started_at,
    "name": lambda run: run.name,
    "step-time": lambda run: run.step_ms,
    "steps": lambda run: run.steps,
    "verdict": lambda run: run.verdict,
    "exit": lambda run: run.exit_code,
}


def parser() -> Parser:
    """The flags."""
    made = Parser(
        prog="traceml runs",
        usage="traceml runs [logs] [--sort COLUMN] [--reverse] [--json]",
        description="List the runs of a folder.",
    )
    made.add_argument("logs", nargs="?", default="logs", help="folder of the runs (default: logs)")
    made.add_argument("--sort", choices=tuple(SORTS), default="date", help="order (default: date)")
    made.add_argument("--reverse", action="store_true", help="largest, last or newest first")
    made.add_argument("--json", action="store_true", help="print JSON instead of the table")
    return made


def main(words: list[str]) -> int:
    """Print the list to standard output."""
    given = parser().parse_args(words)
    runs = ordered(list_runs(Path(given.logs)), given.sort, given.reverse)
    if given.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(runs), indent=2).decode() + "\n")
    elif runs:
        sys.stdout.write(render(runs))
    else:
        sys.stdout.write(f"No runs in {given.logs}; `traceml run train.py` makes one.\n")
    return 0


def ordered(runs: list[ListedRun], by: str, reverse: bool) -> list[ListedRun]:
    """Sorted; a run without the value comes last either way."""
    key = SORTS[by]
    known = sorted((r for r in runs if key(r) is not None), key=key, reverse=reverse)
    return known + [r for r in runs if key(r) is None]
