"""The table of `traceml runs`."""

from collections.abc import Sequence
from typing import Final

from traceml.present.columns import page, table
from traceml.schema import fmt
from traceml.schema.summary import ListedRun

HEAD: Final = ("Run", "Date", "Status", "Exit", "Steps", "Step", "Verdict")
ALIGN: Final = "<<<>>><"
WIDEST: Final = (30, 16, 11, 4, 9, 9)


def render(runs: Sequence[ListedRun]) -> str:
    """One line per run, at most 100 columns."""
    return page(table([HEAD, *(_cells(run) for run in runs)], ALIGN, indent=0, most=WIDEST))


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
