"""Writes the tables of a run as CSV, Parquet or SQLite; a file appears under its name when it is complete."""

import csv
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from math import isnan
from pathlib import Path
from typing import Any, Final

from traceml.errors import CommandError
from traceml.export.tables import NUMBER, TEXT, WHOLE, Table
from traceml.files import replacing

SQL_TYPES: Final = {WHOLE: "INTEGER", NUMBER: "REAL", TEXT: "TEXT"}


def write_csv(tables: Iterable[Table], folder: Path) -> int:
    """One file per table; returns how many rows were written. What was not measured is empty."""
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    for table in tables:
        with replacing(folder / f"{table.name}.csv") as path, path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(table)
            writer.writerows(_rows(table))
        count += table.rows
    return count


def write_sqlite(tables: Iterable[Table], target: Path) -> int:
    """One database with a table of each; what was not measured is NULL."""
    count = 0
    with replacing(target) as path, closing(sqlite3.connect(path)) as base:
        base.execute("PRAGMA journal_mode = OFF")  # the file has no name yet
        for table in tables:
            named = zip(_distinct(table), table.kinds.values(), strict=True)
            columns = ", ".join(f"{name} {SQL_TYPES[kind]}" for name, kind in named)
            base.execute(f"CREATE TABLE {table.name} ({columns})")
            places = ", ".join("?" * len(table))
            base.executemany(f"INSERT INTO {table.name} VALUES ({places})", _rows(table))  # noqa: S608 - our own names
            count += table.rows
        base.commit()
    return count


def write_parquet(tables: Iterable[Table], folder: Path) -> int:
    """One file per table; what was not measured is null."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise CommandError("--to parquet needs pyarrow: pip install pyarrow") from None
    types = {WHOLE: pa.int64(), NUMBER: pa.float64(), TEXT: pa.string()}
    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    for table in tables:
        arrays = {
            name: pa.array(values, from_pandas=True).cast(types[table.kinds[name]])
            for name, values in table.items()
        }
        with replacing(folder / f"{table.name}.parquet") as path:
            parquet.write_table(pa.table(arrays), path)
        count += table.rows
    return count


def _rows(table: Table) -> Iterator[tuple[Any, ...]]:
    """The rows as Python values; None is missing."""
    columns = []
    for name, kind in table.kinds.items():
        values = table[name].tolist()
        if table[name].dtype.kind == "f":
            made = int if kind == WHOLE else float
            values = [None if isnan(value) else made(value) for value in values]
        columns.append(values)
    return zip(*columns, strict=True)


def _distinct(names: Iterable[str]) -> list[str]:
    """Quoted, because a user phase may have any name; and different in more than upper and lower case."""
    seen: dict[str, str] = {}
    for name in names:
        free = name
        while free.lower() in seen:
            free += "_"
        seen[free.lower()] = '"' + free.replace('"', '""') + '"'
    return list(seen.values())
