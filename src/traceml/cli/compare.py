"""`traceml compare`: is B slower or faster than A, in which phase, and is that real or noise."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from traceml.cli.main import Parser, one_of, show
from traceml.cli.view import current, write_page
from traceml.compare.compare import compare
from traceml.errors import CommandError, printable, say
from traceml.files import write_atomic
from traceml.monitor.result import encode
from traceml.present import compare as views
from traceml.present import page
from traceml.present.columns import fitting
from traceml.runs import summary_file
from traceml.runs.summary_file import Reading
from traceml.schema import fmt
from traceml.schema.comparison import INCONCLUSIVE, MIXED, REGRESSION, WORSE, Comparison, RunRef


def page_data(found: Comparison) -> bytes:
    """The comparison for the browser: as data, and as rows."""
    tables = [("Overview", views.lead_rows(found)), *views.more_rows(found)]
    data = {"comparison": found, "shift": views.shifted(found), "tables": tables}
    return msgspec.json.encode({"kind": "comparison", **data})


FORMATS: Final[dict[str, Callable[[Comparison], str]]] = {
    "text": views.text,
    "json": lambda found: encode(found).decode(),
    "markdown": views.markdown,
}
"""Every way to show a comparison: the value of --format and its renderer."""
FILES: Final = {".json": "json", ".txt": "text"}
"""The files that are written, and their format."""
LONGEST_NAME: Final = 80
FAIL_ON: Final = {"regression": REGRESSION, "mixed": MIXED, "inconclusive": INCONCLUSIVE}

USAGE: Final = """traceml compare A B [options]
       traceml compare --a RUN [RUN ...] --b RUN [RUN ...] [options]"""
DESCRIPTION: Final = """\
Compare two runs. A is the run before a change, B the run after it; every delta is B - A.
Name a run by its folder, its final_summary.json, its name under logs/, or as mlflow:<run id>
(with MLFLOW_TRACKING_URI) if its summary is kept there, as by `traceml run --report-to mlflow`."""
EPILOG: Final = """\
examples:
  traceml compare before after
  traceml compare --a a1 a2 a3 --b b1 b2 b3     several runs per side show smaller changes
  traceml compare main candidate --fail-on regression     fail a CI job if candidate is slower

exit codes:
  0  the runs were compared
  1  --fail-on or --max-step-time-regression applies
  2  wrong arguments, or a file that cannot be used"""


def _verdicts(text: str) -> list[str]:
    known = one_of(FAIL_ON)
    return [FAIL_ON[known(word.strip().lower())] for word in text.split(",") if word.strip()]


def _share(text: str) -> float:
    number = re.fullmatch(r"([0-9]{1,4}(?:\.[0-9]{1,6})?)\s*%", text.strip())
    if not number:
        raise argparse.ArgumentTypeError(f"invalid value {text[:60]!r}; use a percentage such as 5%")
    return float(number[1]) / 100


def main(words: list[str]) -> int:
    """Read both sides, compare them, write the two files, print, and choose the exit code."""
    parser = Parser("traceml compare", USAGE, DESCRIPTION, EPILOG)
    parser.option("runs", "RUN", "the two runs, A and B", nargs="*")
    parser.option("--a", "RUN", "one or more runs as A", nargs="+")
    parser.option("--b", "RUN", "one or more runs as B", nargs="+")
    parser.option("--output", "NAME", "write NAME.json and NAME.txt (default: compare/<A>_vs_<B>)")
    formats = f"what to print: {', '.join(FORMATS)} (default: text)"
    parser.option("--format", "FORMAT", formats, type=one_of(FORMATS), default="text")
    html = "also write a page for the browser (default: compare-<A>-<B>.html)"
    parser.option("--html", "OUT", html, nargs="?", const="")
    fail_on = f"exit with 1 on these verdicts, separated by commas: {', '.join(FAIL_ON)}"
    parser.option("--fail-on", "VERDICT", fail_on, type=_verdicts, action="extend", default=[])
    limit = "exit with 1 if the step is slower by more than this, for example 5%%, and it is not noise"
    parser.option("--max-step-time-regression", "PERCENT", limit, type=_share)
    parser.logs_dir()
    given = parser.parse_args(words)
    logs = Path(given.logs_dir)
    a, b = ([_reading(name, logs) for name in side] for side in _sides(given))
    found = compared(a, b)
    with fitting(sys.stdout):
        printed = FORMATS[given.format](found)
    base = _base_path(given.output, a, b)
    with summary_file.or_one_line(base, "written"):
        base.parent.mkdir(parents=True, exist_ok=True)
        for ending, name in FILES.items():
            write_atomic(base.with_name(base.name + ending), FORMATS[name](found).encode())
    show(printed, is_json=given.format == "json")
    say(f"wrote {base}.json and .txt")
    if given.html is not None:
        name = given.html or f"compare-{_side_name(a)}-{_side_name(b)}.html"
        write_page(name, page.page(page_data(found)))
    return _exit_code(found, given.fail_on, given.max_step_time_regression)


def _reading(name: str, logs: Path) -> Reading:
    """The summary that is meant: of a file, a run folder, a run's name, or a run of MLflow."""
    if name.startswith(summary_file.MLFLOW):
        return summary_file.read_mlflow(name)
    return current(summary_file.locate(name, logs))


def _sides(given: argparse.Namespace) -> tuple[list[str], list[str]]:
    """The runs of A and of B."""
    if given.a or given.b:
        if given.runs or not given.a or not given.b:
            raise CommandError("give either two runs, or both --a RUN ... and --b RUN ...")
        return given.a, given.b
    if len(given.runs) != 2:
        several = "for several runs per side use --a a1 a2 --b b1 b2"
        raise CommandError(f"give two runs, A and B ({len(given.runs)} given); {several}")
    return [given.runs[0]], [given.runs[1]]


def compared(a: Sequence[Reading], b: Sequence[Reading]) -> Comparison:
    """The comparison of two sides, with what was odd about their files."""
    refs = [
        [
            RunRef(
                name=printable(r.name),
                path=printable(r.path),
                schema=r.summary.schema,
                status=r.summary.run.status,
                steps=r.summary.step_time.window.num_steps,
                started_at=r.summary.run.started_at,
            )
            for r in side
        ]
        for side in (a, b)
    ]
    found = compare([r.summary for r in a], [r.summary for r in b], *refs)
    notes = [note for reading in (*a, *b) for note in reading.notes]
    return replace(found, warnings=[*found.warnings, *notes])


def _base_path(output: str | None, a: Sequence[Reading], b: Sequence[Reading]) -> Path:
    """The path of the two files, without their endings."""
    named = f"{_side_name(a)}_vs_{_side_name(b)}"
    if output is None:
        return Path("compare") / named
    if output.endswith("/") or os.path.isdir(output):
        return Path(output) / named
    return Path(output.removesuffix(".json").removesuffix(".txt"))


def _side_name(side: Sequence[Reading]) -> str:
    first = re.sub(r"[^\w.+=@-]+", "_", side[0].name)[:LONGEST_NAME] or "run"
    return first if len(side) == 1 else f"{first}_and_{len(side) - 1}_more"


def _exit_code(found: Comparison, fail_on: Sequence[str], limit: float | None) -> int:
    """1 if a condition to fail applies. Without step times there is nothing to check, which must not pass."""
    if not fail_on and limit is None:
        return 0
    interval = found.interval
    if interval.delta_share is None:
        raise CommandError("cannot check --fail-on or --max-step-time-regression: there are no step times")
    if limit is not None and limit < (floor := interval.noise_floor_share or 0.0):
        low = f"the limit of {fmt.share(limit)} is below the noise floor of {fmt.share(floor)}"
        say(f"{low}; compare more runs per side")
    is_slower = interval.change == WORSE and limit is not None and interval.delta_share > limit
    if found.verdict in fail_on or is_slower:
        say(f"failed: {found.verdict}, step time {fmt.share_change(interval.delta_share)}")
        return 1
    return 0
