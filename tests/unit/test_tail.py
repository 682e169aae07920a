"""Reading a whole run folder: one damaged file never hides the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit import made
from traceml.recording.fold import latest_of_each_step
from traceml.recording.lines import EventsTail
from traceml.recording.tail import Tail
from traceml.recording.writer import RecordingWriter
from traceml.schema import catalog as c
from traceml.schema.recorded import RecordedEvent


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty run folder."""
    (tmp_path / "recording").mkdir()
    return tmp_path


def write_rank(folder: Path, number: int = 0, count: int = 5, **header: Any) -> RecordingWriter:
    """A rank's recording of `count` steps."""
    whole = {"identity": {"rank": number, "pid": 100 + number}, **header}
    writer = RecordingWriter(str(folder / "recording" / f"rank-{number}.1.steps"), c.STEP_COLUMNS, whole)
    for row in made.steps(count, forward=1):
        writer.append(*(row[name].item() for name, _ in c.STEP_COLUMNS))
    return writer


def test_everything_in_the_folder_is_read(folder: Path) -> None:
    """Ranks with their rows, names and events, the gauges, and how far the command got."""
    write_rank(folder, 0).set_name(0, "augment")
    write_rank(folder, 1, 7)
    (folder / "recording" / "rank-0.1.events.jsonl").write_text('{"kind": "gc"}\n')
    (folder / "recording" / "seen-torch").touch()
    gauges = RecordingWriter(str(folder / "recording" / "system.gauges"), c.SYSTEM_COLUMNS, {})
    gauges.append(1, *[2.0] * len(c.SYSTEM_METRICS))
    found = Tail(folder).read()
    assert [(r.rank, r.pid, len(r.rows)) for r in found.ranks] == [(0, 100, 5), (1, 101, 7)]
    assert found.ranks[0].user_names[:2] == ["augment", None]
    assert found.ranks[0].events == [RecordedEvent("gc")]
    assert found.seen == {"torch"}
    sampled = found.gauges(0)
    assert sampled.system_rows is not None
    assert sampled.system_rows["cpu_percent"].tolist() == [2.0]
    assert (sampled.process_rows, found.problems) == (None, [])


def test_new_rows_are_seen_at_the_next_look(folder: Path) -> None:
    """A tail that is kept sees what is appended."""
    writer, tail = write_rank(folder), Tail(folder)
    assert len(tail.read().ranks[0].rows) == 5
    writer.append(*[6] * len(c.STEP_COLUMNS))
    assert len(tail.read().ranks[0].rows) == 6


@pytest.mark.parametrize("data", [b"", b"junk", b"TRACEML\0" + bytes(9000)])
def test_a_damaged_file_does_not_hide_the_others(folder: Path, data: bytes) -> None:
    """It is named once, however often the folder is read, and the good ranks are read."""
    write_rank(folder, 0)
    (folder / "recording" / "rank-1.1.steps").write_bytes(data)
    tail = Tail(folder)
    tail.read()
    found = tail.read()
    assert [r.rank for r in found.ranks] == [0]
    assert len(found.problems) == 1
    assert "rank-1.1.steps" in found.problems[0]


@pytest.mark.parametrize(
    "identity", [None, [], "x", {}, {"rank": None, "pid": None}, {"rank": "one", "pid": "x"}], ids=str
)
def test_a_header_without_a_proper_identity_does_not_hide_the_others(folder: Path, identity: Any) -> None:
    """The good rank is read and its process is sampled."""
    write_rank(folder, 3)
    write_rank(folder, 9, identity=identity)
    tail = Tail(folder)
    assert tail.threads()[103] == 103
    assert 3 in [r.rank for r in tail.read().ranks]


def test_a_recording_with_other_columns_does_not_hide_the_others(folder: Path) -> None:
    """A rank file whose rows are not steps is reported as a problem."""
    write_rank(folder, 0)
    RecordingWriter(str(folder / "recording" / "rank-5.1.steps"), (("time_ns", "q"),), {}).append(1)
    found = Tail(folder).read()
    assert [r.rank for r in found.ranks] == [0]
    assert len(found.problems) == 1


def test_a_longer_row_of_the_same_step_supersedes_the_first() -> None:
    """With several optimizers the first step is written early and then again: the last row counts."""
    rows = made.steps(6, forward=1)
    rows["step"] = [1, 1, 1, 2, 3, 3]
    rows["forward"] = [10, 20, 30, 40, 50, 60]
    found = latest_of_each_step(rows)
    assert found["step"].tolist() == [1, 2, 3]
    assert found["forward"].tolist() == [30, 40, 60]


def test_incomplete_and_unknown_event_lines_are_left_out(tmp_path: Path) -> None:
    """A killed writer leaves half a line; only that line is lost."""
    good = json.dumps({"kind": "gc", "step": 3})
    text = f'{good}\n[1]\n{{"step": 1}}\n{{"kind": 5}}\nnull\n{good}\n{good[:9]}'
    (tmp_path / "events").write_bytes(text.encode() + b"\xff\xfe")
    assert EventsTail(str(tmp_path / "events")).read() == [RecordedEvent("gc", 3)] * 2
    assert EventsTail(str(tmp_path / "missing")).read() == []
