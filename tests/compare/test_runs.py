"""`traceml runs`: the list of a folder's runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.compare.making import DATA, RELEASED
from traceml.cli.main import main


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs of every kind, and things that are not runs."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "logs"
    sources = {
        "slow": DATA / "slow.json",
        "fast": DATA / "fast.json",
        "old": RELEASED / "v0.4.2_slow.json",
    }
    for name, source in sources.items():
        (folder / name).mkdir(parents=True)
        shutil.copy(source, folder / name / "final_summary.json")
    (folder / "broken").mkdir()
    (folder / "broken" / "final_summary.json").write_text("{")
    (folder / "killed").mkdir()
    (folder / "killed" / "manifest.json").write_text('{"status": "running", "monitor_pid": null}')
    (folder / "notes").mkdir()
    (folder / "a_file").write_text("")
    return folder


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, object]]:
    """The list as JSON."""
    assert main(["runs", *words, "--json"]) == 0
    found: list[dict[str, object]] = json.loads(capsys.readouterr().out)
    return found


def test_every_run_is_listed_and_nothing_else(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A broken or killed run is listed with its problem; other folders are not runs."""
    found = {r["name"]: r for r in listed(capsys)}
    assert set(found) == {"slow", "fast", "old", "broken", "killed"}
    assert found["slow"]["verdict"] == "INPUT-BOUND"
    assert found["slow"]["exit_code"] == 0
    assert found["slow"]["steps"] == 200
    assert "truncated" in str(found["broken"]["problem"])
    assert "traceml view" in str(found["killed"]["problem"])


def test_the_table_fits_and_has_the_columns(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Date, status, exit, steps, step time and verdict in at most 100 columns."""
    assert main(["runs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["Run", "Date", "Status", "Exit", "Steps", "Step", "Verdict"]
    assert max(map(len, lines)) <= 100
    slow = next(line for line in lines if line.startswith("slow"))
    assert "27.4 ms" in slow
    assert "INPUT-BOUND" in slow


def test_sorting(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By any column, in both directions; runs without the value come last."""
    names = [r["name"] for r in listed(capsys, "--sort", "step-time")]
    assert names[:3] == ["fast", "slow", "old"]
    names = [r["name"] for r in listed(capsys, "--sort", "step-time", "--reverse")]
    assert names[:3] == ["old", "slow", "fast"]
    assert listed(capsys, "--sort", "name")[0]["name"] == "broken"


def test_no_runs_and_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty folder is reported; a missing one, or an unknown column, gives one line and exit 2."""
    assert main(["runs", str(tmp_path)]) == 0
    assert "No runs" in capsys.readouterr().out
    for words in ([str(tmp_path / "nowhere")], ["--sort", "colour"]):
        assert main(["runs", *words]) == 2
        assert capsys.readouterr().err.count("\n") == 1
