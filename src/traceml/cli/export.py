"""`traceml export`: what was recorded, for other tools."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from traceml.cli.main import Parser, number, one_of
from traceml.errors import CommandError, say
from traceml.export.formats import write_csv, write_parquet, write_sqlite
from traceml.export.perfetto import write_trace
from traceml.export.tables import RunTables
from traceml.runs import summary_file

FORMATS: Final[dict[str, tuple[Callable[[RunTables, Path], int], str]]] = {
    "csv": (lambda run, path: write_csv(run.tables(), path), "csv"),
    "parquet": (lambda run, path: write_parquet(run.tables(), path), "parquet"),
    "sqlite": (lambda run, path: write_sqlite(run.tables(), path), "run.sqlite"),
    "perfetto": (write_trace, "trace.json.gz"),
}
"""Each value of --to: what writes it, and its name in the folder `export` of the run."""
DESCRIPTION: Final = """\
Write the steps, samples and events of a run to files that other tools read. The run may have
ended, have crashed, or be going on."""
EPILOG: Final = """\
examples:
  traceml export my_run --to csv                        logs/my_run/export/csv/steps.csv, ...
  traceml export my_run --to sqlite --output run.db     one database
  traceml export my_run --to perfetto --last 500        a trace for ui.perfetto.dev or chrome://tracing"""


def main(words: list[str]) -> int:
    """Write the files, and say where they are."""
    parser = Parser("traceml export", "traceml export RUN --to FORMAT [options]", DESCRIPTION, EPILOG)
    parser.option("run", "RUN", "a run folder, or a name under logs/")
    parser.option("--to", "FORMAT", f"one of: {', '.join(FORMATS)}", type=one_of(FORMATS), required=True)
    place = "a folder for csv and parquet, a file for sqlite and perfetto (default: in <run>/export/)"
    parser.option("--output", "OUT", place)
    parser.option("--last", "N", "only the newest N rows of each file", type=number(1, 10**9))
    parser.logs_dir()
    given = parser.parse_args(words)
    path = summary_file.find(given.run, Path(given.logs_dir))
    folder = path if path.is_dir() else path.parent
    write, name = FORMATS[given.to]
    target = Path(given.output) if given.output else folder / "export" / name
    run = RunTables(folder, given.last)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        count = write(run, target)
    except OSError as problem:
        raise CommandError(
            f"{summary_file.shown(target)}: cannot be written ({problem.strerror}); use --output"
        ) from None
    say(f"wrote {summary_file.shown(target)} ({count:,} {'entries' if given.to == 'perfetto' else 'rows'})")
    return 0
