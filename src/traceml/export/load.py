"""`traceml.load(run)`: everything that was recorded, as NumPy arrays or, with pandas, as frames."""

import os
from pathlib import Path

from traceml.export.tables import RunTables, Table
from traceml.runs import summary_file


class LoadedRun:
    """The tables of a run, as they were when it was loaded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tables = {table.name: table for table in RunTables(folder).tables()}

    def __getattr__(self, name: str) -> Table:
        try:
            return self.__dict__["tables"][name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(f"no table {name!r} in this run") from None

    def __repr__(self) -> str:
        rows = ", ".join(f"{table.rows} {name}" for name, table in self.tables.items())
        return f"<run {self.folder.name}: {rows}>"


def load(run: str | os.PathLike[str], logs_dir: str = "logs") -> LoadedRun:
    """Everything that was recorded in a run: a folder, or a name under `logs_dir`.

    `load("my_run").steps["input_ms"]` is a NumPy array with a value for each step of each rank, and
    `load("my_run").steps.frame()` a pandas frame. The tables: steps, step_blocks, device_steps, system,
    process, events. The run may be going on, or have crashed.
    """
    path = summary_file.find(os.fspath(run), Path(logs_dir))
    return LoadedRun(path if path.is_dir() else path.parent)
