"""Summary files of every origin: ours, older, newer, of the released package, damaged, hostile."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.compare.making import DATA, RELEASED
from traceml.cli.main import main
from traceml.errors import CommandError
from traceml.runs import summary_file

OURS = DATA / "slow.json"


def loaded(path: Path) -> dict[str, Any]:
    """A sample to change."""
    data: dict[str, Any] = json.loads(path.read_text())
    return data


def saved(folder: Path, data: object, name: str = "changed.json") -> Path:
    """A file with this content."""
    path = folder / name
    content = data if isinstance(data, (str, bytes)) else json.dumps(data)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_our_own_summary_is_read_completely() -> None:
    """Reading loses nothing that compare or view shows."""
    summary = summary_file.read(OURS).summary
    given = loaded(OURS)
    assert summary.primary_diagnosis.status == given["primary_diagnosis"]["status"]
    assert summary.step_time.metrics["step_ms"].average == given["step_time"]["metrics"]["step_ms"]["average"]
    assert summary.blocks.metrics["step_ms"] == given["blocks"]["metrics"]["step_ms"]
    assert summary.environment.batch_size == 64
    assert summary.step_time.window.num_steps == 199


def test_a_missing_section_is_no_data(tmp_path: Path) -> None:
    r"""The rest is compared; the missing section is unclear, never \"the same\"."""
    data = loaded(OURS)
    for key in ("step_memory", "system", "process", "series", "blocks", "environment", "catalog"):
        del data[key]
    summary = summary_file.read(saved(tmp_path, data)).summary
    assert summary.step_memory.diagnosis.kind == "NO_DATA"
    assert summary.step_time.metrics["step_ms"].average is not None


def test_a_file_with_only_a_schema_is_a_summary(tmp_path: Path) -> None:
    """The smallest possible summary can be read: it has no data."""
    path = saved(tmp_path, {"schema": "traceml.summary/1"})
    assert summary_file.read(path).summary.primary_diagnosis.kind == "NO_DATA"


def test_a_newer_version_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    """A newer schema with other types gives a note, not an error."""
    data = loaded(OURS)
    data["schema"] = "traceml.summary/7"
    data["run"]["world_size"] = {"gpus": 4}
    data["brand_new"] = [1, 2]
    reading = summary_file.read(saved(tmp_path, data))
    assert "newer version" in reading.notes[0]
    assert any("$.run.world_size was ignored" in note for note in reading.notes)
    assert reading.summary.step_time.metrics["step_ms"].average is not None


@pytest.mark.parametrize("path", sorted(RELEASED.glob("*.json")), ids=lambda p: p.stem)
def test_summaries_of_the_released_package_are_read(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every sample can be viewed."""
    assert main(["view", str(path)]) == 0
    assert "Verdict" in capsys.readouterr().out


def test_released_metrics_have_our_names() -> None:
    """Their input wait, residual and resident memory are our input, wait and rss."""
    summary = summary_file.read(RELEASED / "v0.4.2_slow.json").summary
    step = summary.step_time.metrics
    assert step["input_ms"].average == pytest.approx(48.256, abs=0.001)
    assert step["wait_ms"].average == pytest.approx(0.7596, abs=0.001)
    assert step["wait_ms"].share == pytest.approx(0.0112, abs=0.001)
    assert summary.process.metrics["rss_bytes"].average == pytest.approx(359484074.67, abs=1)
    assert summary.step_time.window.clock == "host"


def test_old_names_and_a_step_time_without_input(tmp_path: Path) -> None:
    """`dataloader_ms` is input. It is added to a step time that leaves it out, as the sum of phases shows."""
    data = loaded(RELEASED / "v0.4.2_slow.json")
    for group in ("average", "median", "worst"):
        part = data["step_time"]["global"][group]
        part["dataloader_ms"] = part.pop("input_wait_ms")
        part["step_time_ms"] = part.pop("traced_step_time_ms")
    summary = summary_file.read(saved(tmp_path, data)).summary
    assert summary.step_time.metrics["step_ms"].average == pytest.approx(67.8256, abs=0.001)
    assert summary.step_time.metrics["input_ms"].average == pytest.approx(48.256, abs=0.001)


@pytest.mark.parametrize(
    ("kind", "status", "expected"),
    [
        ("RESIDUAL_HEAVY", "RESIDUAL-HEAVY", ("WAIT_HEAVY", "WAIT-HEAVY")),
        ("CREEP_EARLY", "MEMORY CREEP (EARLY)", ("CREEP_EARLY", "MEMORY RISING")),
        ("SOMETHING_NEW", "SOMETHING NEW", ("SOMETHING_NEW", "SOMETHING NEW")),
    ],
)
def test_labels_of_the_released_package_become_ours(
    tmp_path: Path, kind: str, status: str, expected: tuple[str, str]
) -> None:
    """RESIDUAL-HEAVY becomes WAIT-HEAVY, MEMORY CREEP (EARLY) MEMORY RISING; unknown kinds stay."""
    data = loaded(RELEASED / "v0.4.2_slow.json")
    data["primary_diagnosis"] |= {"kind": kind, "status": status}
    found = summary_file.read(saved(tmp_path, data)).summary.primary_diagnosis
    assert (found.kind, found.status) == expected


def with_average(value: object) -> dict[str, Any]:
    """A summary of ours with another mean step time."""
    data = loaded(OURS)
    data["step_time"]["metrics"]["step_ms"]["average"] = value
    return data


WHOLE = OURS.read_text()
BAD: dict[str, object] = {
    "empty": "",
    "blank": " \n ",
    "truncated": WHOLE[: len(WHOLE) // 2],
    "text": "TraceML  slow\nVerdict  INPUT-BOUND\n",
    "prose": "hello",
    "binary": bytes(range(256)) * 8,
    "list": [1, 2],
    "other": {"name": "a package"},
    "comparison": {"schema": "traceml.compare/1"},
    "manifest": {"monitor_pid": 1},
    "nan": with_average(float("nan")),
    "infinity": WHOLE.replace('"score": ', '"score": Infinity', 1),
    "too large": WHOLE.replace('"score": ', '"score": 1e999', 1),
    "wrong type": with_average("fast"),
    "negative": with_average(-1),
    "deep": '{"schema": "traceml.summary/1", "run": ' + '{"a":' * 100_000,
}
"""Contents of files that are no summary."""


def bad_file(folder: Path, kind: str) -> Path:
    """A file, or something else, that is no summary."""
    path = folder / f"{kind}.json"
    if kind == "2 GB":
        with path.open("wb") as file:
            file.write(b'{"schema": "traceml.summary/1", "x": "')
            file.truncate(2 * 1024**3)  # sparse: takes no disk
    elif kind == "database":
        with sqlite3.connect(path) as connection:
            connection.execute("create table steps (n)")
    elif kind in BAD:
        saved(folder, BAD[kind], path.name)
    return {"folder": folder, "device": Path("/dev/zero")}.get(kind, path)


@pytest.mark.parametrize("kind", [*BAD, "2 GB", "database", "missing", "folder", "device"])
def test_bad_input_gives_one_line_and_exit_2(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the file is, and on either side: one clear line, exit 2, nothing written."""
    bad = bad_file(tmp_path, kind)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    for words in ([str(bad), str(OURS)], [str(OURS), str(bad)]):
        assert main(["compare", *words]) == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.count("\n") == 1
        assert shown.err.startswith(f"traceml: {bad}")
    assert list(work.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """A named pipe is refused at once: opening it would wait forever for a writer."""
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(CommandError, match="not a regular file"):
        summary_file.read(tmp_path / "pipe.json")


def test_the_place_of_a_fault_is_named(tmp_path: Path) -> None:
    """The message about a wrong type says where it is."""
    with pytest.raises(CommandError, match=r"float.* at \$\.step_time\.metrics\[\.\.\.\]\.average"):
        summary_file.read(bad_file(tmp_path, "wrong type"))


def test_control_characters_do_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Escape sequences in a summary are not printed."""
    monkeypatch.chdir(tmp_path)
    data = loaded(OURS)
    data["primary_diagnosis"]["status"] = "\x1b[31mRED\x07"
    data["environment"]["torch"] = "2\x1b]0;title\x07"
    path = saved(tmp_path, data, "hostile.json")
    for command in (["view", str(path)], ["compare", str(path), str(OURS)]):
        assert main(command) == 0
        assert not set(capsys.readouterr().out) & {"\x1b", "\x07"}
