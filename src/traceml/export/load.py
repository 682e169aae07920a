"""`traceml.load(run)`: everything that was recorded, as NumPy arrays or, with pandas, as frames."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traceml.errors import TraceMLError
from traceml.export.tables import MAYBE_WHOLE, TEXT, WHOLE, RunTables, Table
from traceml.runs import summary_file


class Columns(dict[str, NDArray[Any]]):
    """A table: a NumPy array for each column, all of the same length. What was not measured is NaN."""

    def __init__(self, table: Table) -> None:
        pieces = list(table.pieces())
        empty = {WHOLE: np.int64, TEXT: np.object_}
        super().__init__(
            (name, np.concatenate([p[name] for p in pieces] or [np.empty(0, empty.get(kind, np.float64))]))
            for name, kind in table.columns.items()
        )
        self._maybe_whole = [name for name, kind in table.columns.items() if kind == MAYBE_WHOLE]

    def frame(self) -> Any:
        """The same as a pandas DataFrame."""
        try:
            import pandas as pd
        except ImportError:
            raise TraceMLError("frame() needs pandas: pip install pandas") from None
        return pd.DataFrame(self).astype(dict.fromkeys(self._maybe_whole, "Int64"))


class LoadedRun:
    """The tables of a run, as they were when it was loaded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        run = RunTables(folder)
        self.tables = {table.name: Columns(table) for table in run.tables()}

    def __getattr__(self, name: str) -> Columns:
        try:
            return self.__dict__["tables"][name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(f"no table {name!r} in this run") from None

    def __repr__(self) -> str:
        rows = ", ".join(f"{len(next(iter(t.values())))} {name}" for name, t in self.tables.items())
        return f"<run {self.folder.name}: {rows}>"


def load(run: str | os.PathLike[str], logs_dir: str = "logs") -> LoadedRun:
    """Everything that was recorded in a run: a folder, or a name under `logs_dir`.

    `load("my_run").steps["input_ms"]` is a NumPy array with a value for each step of each rank, and
    `load("my_run").steps.frame()` a pandas frame. The tables: steps, step_blocks, device_steps, system,
    process, events. The run may be going on, or have crashed.
    """
    path = summary_file.find(os.fspath(run), Path(logs_dir))
    return LoadedRun(path if path.is_dir() else path.parent)
