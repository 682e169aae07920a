"""`traceml runs`: the runs in a folder with date, status, steps, step time and verdict."""

from operator import attrgetter
from pathlib import Path
from typing import Final

import msgspec

from traceml.cli.main import Parser, one_of, show
from traceml.errors import printable
from traceml.present.text import list_of_runs
from traceml.runs import summary_file

COLUMNS: Final = {
    "date": "started_at",
    "name": "name",
    "step-time": "step_ms",
    "steps": "steps",
    "verdict": "verdict",
    "exit": "exit_code",
}
"""What to sort by, and the field of a listed run that has it."""
DESCRIPTION: Final = "List the runs in a folder: date, status, exit code, steps, step time and verdict."
EPILOG: Final = """\
examples:
  traceml runs                                the runs in logs/, oldest first
  traceml runs --sort step-time --reverse     slowest first"""


def main(words: list[str]) -> int:
    """Print the list to standard output."""
    parser = Parser("traceml runs", "traceml runs [DIR] [options]", DESCRIPTION, EPILOG)
    parser.option("logs", "DIR", "folder with the runs (default: logs)", nargs="?", default="logs")
    order = f"sort by {', '.join(COLUMNS)} (default: date)"
    parser.option("--sort", "COLUMN", order, type=one_of(COLUMNS), default="date")
    parser.add_argument("--reverse", action="store_true", help="reverse the order, for example newest first")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    given = parser.parse_args(words)
    logs = Path(given.logs)
    with summary_file.or_one_line(logs):
        logs.absolute()  # fails in a folder that has been removed
    # Before the first run there is no folder, and that is no error.
    is_new = given.logs == parser.get_default("logs") and not summary_file.exists(logs)
    runs = [] if is_new else summary_file.list_runs(logs)
    key = attrgetter(COLUMNS[given.sort])
    known = sorted((run for run in runs if key(run) is not None), key=key, reverse=given.reverse)
    runs = known + [run for run in runs if key(run) is None]  # without the value: last in either order
    if given.json:
        show(msgspec.json.format(msgspec.json.encode(runs), indent=2).decode() + "\n", is_json=True)
    elif runs:
        show(list_of_runs(runs))
    else:
        show(f"No runs in {printable(given.logs)}. `traceml run train.py` creates one.\n")
    return 0
