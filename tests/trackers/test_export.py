"""`traceml export` and `traceml.load`: all that was recorded, in formats that other tools read."""

from __future__ import annotations

import csv
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyarrow import parquet

import traceml
from tests.running.processes import eventually, start
from tests.running.scripts import write
from tests.scale.rolled import LongRank
from tests.scenarios.preloaded import PreloadedTraceml
from tests.trackers.recorded_runs import STARTED_NS, two_machines
from tests.unit import made
from traceml.cli.main import main
from traceml.errors import TraceMLError
from traceml.export.formats import write_sqlite
from traceml.export.tables import Table
from traceml.recording import layout
from traceml.recording.rollup import Roller
from traceml.schema import catalog as c

PHASES = [f"{p.key}_ms" for p in c.PHASES]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, preloaded: PreloadedTraceml) -> Path:
    """The folder of a real run of 30 steps, with a user phase and a checkpoint."""
    folder = tmp_path_factory.mktemp("trained")
    body = """
        import traceml
        def each(step):
            with traceml.phase('say "hi"'):
                time.sleep(0.001)
            if step == 20:
                torch.save(model.state_dict(), "model.pt")
        train(30, each)
    """
    write(folder, body)
    done = preloaded("run", "train.py", "--run-name", "r", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "logs" / "r"


def test_load_gives_arrays_of_what_was_recorded(trained: Path) -> None:
    """Every step is there; its phases and wait add up to it; what was not measured is NaN, never 0."""
    steps = traceml.load(trained).steps
    assert steps["step"].tolist() == list(range(1, 31))
    parts = np.nansum([steps[key] for key in [*PHASES, 'user.say "hi"_ms', "wait_ms"]], axis=0)
    assert parts == pytest.approx(steps["step_ms"], rel=1e-6)
    assert np.isnan(steps["h2d_ms"]).all()  # no device here
    assert np.isnan(steps["sync_ms"]).all()  # one process
    assert (steps["rss_bytes"] > 1e6).any()
    assert (np.diff(steps["end_unix_ns"]) > 0).all()


def test_load_finds_runs_as_the_commands_do(trained: Path) -> None:
    """A name under the log folder, a run folder or its summary file: all give the same run."""
    by_name = traceml.load("r", logs_dir=str(trained.parent))
    assert (
        by_name.steps["step"].tolist() == traceml.load(trained / "final_summary.json").steps["step"].tolist()
    )
    assert repr(by_name).startswith("<run r: 30 steps, ")
    with pytest.raises(AttributeError, match="no table 'stepps'"):
        _ = by_name.stepps


def test_load_gives_pandas_frames(trained: Path) -> None:
    """`frame()` has the same columns; whole numbers that may be missing stay whole numbers."""
    run = traceml.load(trained)
    frame = run.steps.frame()
    assert isinstance(frame, pd.DataFrame)
    assert list(frame.columns) == list(run.steps)
    assert str(frame["rss_bytes"].dtype) == str(frame["samples"].dtype) == "Int64"
    assert set(run.events.frame()["kind"]) >= {"checkpoint", "epoch_start"}


def test_every_format_has_the_same_rows(trained: Path, tmp_path: Path) -> None:
    """CSV, Parquet and SQLite hold what `load` returns; missing values are empty, null and NULL."""
    for name in ("csv", "parquet", "sqlite"):
        assert main(["export", str(trained), "--to", name, "--output", str(tmp_path / name)]) == 0
    run = traceml.load(trained)
    base = sqlite3.connect(tmp_path / "sqlite")
    for name, table in run.tables.items():
        with (tmp_path / "csv" / f"{name}.csv").open(newline="") as file:
            lines = list(csv.DictReader(file))
        arrow = parquet.read_table(tmp_path / "parquet" / f"{name}.parquet")
        assert arrow.column_names == list(table)
        for column, values in table.items():
            expected = [None if v is None or v != v else v for v in values.tolist()]  # noqa: PLR0124
            assert arrow[column].to_pylist() == expected, column
            quoted = column.replace('"', '""')
            assert [row[0] for row in base.execute(f'SELECT "{quoted}" FROM {name}')] == expected, column
            told = [line[column] for line in lines]
            assert [None if text == "" else text for text in told] == [
                None if v is None else str(text) for v, text in zip(expected, told, strict=True)
            ], column
            numbers = [float(t) for t, v in zip(told, expected, strict=True) if isinstance(v, (int, float))]
            assert numbers == [float(v) for v in expected if isinstance(v, (int, float))], column


def test_files_go_to_the_run_folder_by_default(trained: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The default place is named on the screen; an export replaces an earlier one; nothing else is left."""
    for _ in range(2):
        assert main(["export", str(trained), "--to", "sqlite", "--last", "5"]) == 0
    assert f"wrote {trained}/export/run.sqlite (" in capfd.readouterr().err
    base = sqlite3.connect(trained / "export" / "run.sqlite")
    assert [row[0] for row in base.execute("SELECT step FROM steps")] == [26, 27, 28, 29, 30]
    assert os.listdir(trained / "export") == ["run.sqlite"]


def test_machines_are_on_one_time_axis(tmp_path: Path) -> None:
    """Each machine's clock is moved to the wall clock: ranks in step end their steps at the same time."""
    run = traceml.load(two_machines(tmp_path / "run"))
    ranks = [run.steps["end_unix_ns"][run.steps["rank"] == rank] for rank in (0, 1)]
    assert (ranks[0] == ranks[1]).all()
    assert run.steps["begin_unix_ns"].min() > STARTED_NS
    assert run.system["node"].tolist() == [0, 1]
    assert run.system["unix_ns"].tolist() == [STARTED_NS, STARTED_NS]
    assert run.events["unix_ns"].tolist() == [ranks[0][2] - run.steps["step_ms"][2] * 1e6] * 2


def test_device_times_have_a_table_of_their_own(tmp_path: Path) -> None:
    """The clocks are never mixed: `steps` has the host's times, `device_steps` the accelerator's."""
    folder = two_machines(tmp_path / "run")
    rows = made.device_times(20, forward=3.0, wait=1.0)
    rows["sequence"] = np.arange(1, 21)
    header = layout.header_bytes(c.DEVICE_COLUMNS, {"kind": "device"})
    (folder / "recording" / "rank-0.50.device").write_bytes(header + rows.tobytes())
    found = traceml.load(folder).device_steps
    assert found["step"].tolist() == list(range(1, 21))
    assert set(found["rank"]) == {0}
    assert set(found["forward_ms"]) == {3.0}
    assert set(found["wait_ms"]) == {1.0}


def test_user_phases_that_differ_in_case_only_fit_into_sqlite(tmp_path: Path) -> None:
    """SQLite does not tell `A` from `a`: one of the columns gets another name, and no value is lost."""
    piece = {"user.A_ms": np.array([1.0]), "user.a_ms": np.array([2.0])}
    table = Table("steps", piece, [piece])
    assert write_sqlite([table], tmp_path / "db") == 1
    assert sqlite3.connect(tmp_path / "db").execute("SELECT * FROM steps").fetchall() == [(1.0, 2.0)]


def test_old_steps_of_a_long_run_are_exported_as_a_block(tmp_path: Path) -> None:
    """Steps that were rolled up are in step_blocks as their sums: no step is missing or there twice."""
    rank = LongRank(tmp_path)
    rank.append(9_000)
    Roller(tmp_path, keep_rows=3_000).maybe_roll(0.0)
    run = traceml.load(tmp_path)
    blocks, steps = run.step_blocks, run.steps
    assert 3_000 <= len(steps["step"]) < 9_000
    assert int(blocks["steps"].sum()) + len(steps["step"]) == 9_000
    assert int(blocks["last_step"].max()) + 1 == int(steps["step"].min())
    assert blocks["step_ms"].sum() + steps["step_ms"].sum() == pytest.approx(rank.step_ns / 1e6)


def test_a_superseded_row_is_left_out(tmp_path: Path) -> None:
    """A step that was recorded twice is exported once, with its last row."""
    rank = LongRank(tmp_path)
    first = rank.append(10)
    rank.steps = 9
    again = rank.append(5)
    steps = traceml.load(tmp_path).steps
    assert steps["step"].tolist() == list(range(1, 15))
    assert steps["step_ms"][9] == (again["end_ns"][0] - again["begin_ns"][0]) / 1e6
    assert first["step"][-1] == again["step"][0] == 10


def test_a_running_and_a_crashed_run_can_be_exported(tmp_path: Path) -> None:
    """While it trains, and after a kill -9 of the whole job, every completed step is there."""
    write(
        tmp_path,
        """
        import os
        def each(step):
            if step == 12:
                open("ready", "w").close()
                time.sleep(600)
        train(20, each)
        """,
    )
    running = start(tmp_path, "train.py", "--run-name", "r", stdout=subprocess.DEVNULL)
    eventually((tmp_path / "ready").exists, "no step 12")
    folder = tmp_path / "logs" / "r"
    assert traceml.load(folder).steps["step"].tolist() == list(range(1, 13))
    os.killpg(running.pid, 9)
    running.communicate()
    assert main(["export", str(folder), "--to", "csv"]) == 0
    lines = (folder / "export" / "csv" / "steps.csv").read_text().splitlines()
    assert len(lines) == 1 + 12


def test_a_damaged_file_hides_no_other(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A file that cannot be read is named in one line and left out."""
    folder = two_machines(tmp_path / "run")
    (folder / "recording" / "rank-0.50.steps").write_bytes(b"no recording")
    assert set(traceml.load(folder).steps["rank"]) == {1}
    assert "rank-0.50.steps: too short to be a recording" in capfd.readouterr().err


BAD: dict[str, tuple[list[str], str]] = {
    "unknown format": (
        ["{run}", "--to", "xls"],
        "unknown value 'xls'; use one of: csv, parquet, sqlite, perfetto",
    ),
    "no format": (["{run}"], "required: --to"),
    "no such run": (["nonsense", "--to", "csv"], "nonsense: no such file, run folder, or run under logs/"),
    "nothing recorded": (["{empty}", "--to", "csv"], "nothing recorded there"),
    "no whole number": (["{run}", "--to", "csv", "--last", "0"], "use a whole number from 1"),
    "not writable": (["{run}", "--to", "sqlite", "--output", "/dev/null/x"], "cannot be written"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_call_gives_one_clear_line(
    case: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and one line."""
    (tmp_path / "empty").mkdir()
    words, message = BAD[case]
    places = {"run": two_machines(tmp_path / "run"), "empty": tmp_path / "empty"}
    assert main(["export", *(word.format(**places) for word in words)]) == 2
    said = capfd.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pyarrow or pandas there is one line that says what to install; the rest works."""
    folder = two_machines(tmp_path / "run")
    for name in ("pyarrow", "pandas"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(TraceMLError, match="frame\\(\\) needs pandas: pip install pandas"):
        traceml.load(folder).steps.frame()
    assert main(["export", str(folder), "--to", "parquet"]) == 2
    assert main(["export", str(folder), "--to", "csv"]) == 0


def test_the_trace_is_valid_json_with_exact_times(tmp_path: Path) -> None:
    """Phases lie inside their step, end with it, and have its recorded times."""
    folder = two_machines(tmp_path / "run")
    assert main(["export", str(folder), "--to", "perfetto", "--output", str(tmp_path / "t.json")]) == 0
    trace: dict[str, Any] = json.loads((tmp_path / "t.json").read_text())
    for pid in (1, 2):
        slices = [
            e for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == pid and e["cat"] != "event"
        ]
        steps = [e for e in slices if e["cat"] == "step"]
        assert [e["args"]["step"] for e in steps] == list(range(1, 21))
        recorded = traceml.load(folder).steps
        for step, input_ms in zip(steps, recorded["input_ms"], strict=False):
            began, took = ns(step)
            inside = [e for e in slices if e["cat"] == "phase" and began <= ns(e)[0] < began + took]
            assert [e["name"] for e in inside][:2] == ["Input", "Forward"]
            assert ns(inside[0])[1] == round(input_ms * 1e6)
            assert sum(ns(inside[-1])) == began + took
            assert sum(ns(e)[1] for e in inside) == took


def ns(entry: dict[str, Any]) -> tuple[int, int]:
    """When it begins, and how long it takes."""
    return round(entry["ts"] * 1000), round(entry["dur"] * 1000)
