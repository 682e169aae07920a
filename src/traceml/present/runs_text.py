"""The table of `traceml runs`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from traceml.schema import fmt
from traceml.schema.listed_run import ListedRun

WIDTH: Final = 100
HEAD: Final = ("Run", "Date", "Status", "Exit", "Steps", "Step", "Verdict")
WIDEST: Final = (30, 16, 11, 4, 9, 9, 0)
RIGHT: Final = (3, 4, 5)


def render(runs: Sequence[ListedRun]) -> str:
    """One line a run, at most 100 columns."""
    table = [HEAD, *(_cells(run) for run in runs)]
    widths = [min(max(len(row[i]) for row in table), most) if most else 0 for i, most in enumerate(WIDEST)]
    return "".join(_line(row, widths) for row in table)


def _cells(run: ListedRun) -> tuple[str, ...]:
    return (
        run.name,
        (run.started_at or "").replace("T", " ")[:16],
        run.status or "",
        "" if run.exit_code is None else str(run.exit_code),
        "" if run.steps is None else fmt.count(run.steps),
        "" if run.step_ms is None else fmt.ms(run.step_ms),
        run.problem or run.verdict or "",
    )


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = []
    for i, (cell, width) in enumerate(zip(row, widths, strict=True)):
        short = cell if not width or len(cell) <= width else cell[: width - 1] + "…"
        cells.append(short.rjust(width) if i in RIGHT else short.ljust(width))
    line = "  ".join(cells).rstrip()
    return (line if len(line) <= WIDTH else line[: WIDTH - 1] + "…") + "\n"
