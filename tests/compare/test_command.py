"""`traceml compare` as typed: names, files, formats, the gate."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest

from tests.compare.making import DATA, RELEASED, summary
from traceml.cli.main import main
from traceml.schema.comparison import SCHEMA
from traceml.schema.summary import Summary


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder with the runs `slow` and `fast` under logs/."""
    monkeypatch.chdir(tmp_path)
    for name in ("slow", "fast"):
        folder = tmp_path / "logs" / name
        folder.mkdir(parents=True)
        shutil.copy(DATA / f"{name}.json", folder / "final_summary.json")
    return tmp_path


def write(path: Path, made: Summary) -> str:
    """A summary as a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(made))
    return str(path)


def test_generic_names_fall_back_to_the_folder(work: Path) -> None:
    """final_summary.json is named after its folder: compare/slow_vs_fast.json and .txt."""
    assert main(["compare", "logs/slow/final_summary.json", "logs/fast/final_summary.json"]) == 0
    assert sorted(p.name for p in (work / "compare").iterdir()) == [
        "slow_vs_fast.json",
        "slow_vs_fast.txt",
    ]


def test_own_names_are_kept(work: Path) -> None:
    """run_a.json against run_b.json is compare/run_a_vs_run_b."""
    for name, run in (("run_a", "slow"), ("run_b", "fast")):
        shutil.copy(DATA / f"{run}.json", work / f"{name}.json")
    assert main(["compare", "run_a.json", "run_b.json"]) == 0
    assert (work / "compare" / "run_a_vs_run_b.json").exists()
    assert (work / "compare" / "run_a_vs_run_b.txt").exists()


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("my_compare", "my_compare"),
        ("artifacts/baseline_vs_candidate", "artifacts/baseline_vs_candidate"),
        ("deep/er/v1.2", "deep/er/v1.2"),
        ("named.json", "named"),
        ("folder/", "folder/slow_vs_fast"),
    ],
)
def test_output_is_the_base_of_both_files(work: Path, output: str, expected: str) -> None:
    """--output=x writes x.json and x.txt; folders are made; nothing else is left behind."""
    assert main(["compare", "slow", "fast", f"--output={output}"]) == 0
    assert (work / f"{expected}.json").exists()
    assert (work / f"{expected}.txt").exists()
    assert not (work / "compare").exists()
    assert len(list((work / expected).parent.glob("*.*"))) == 2


@pytest.mark.parametrize("words", [("slow", "fast"), ("logs/slow", "logs/fast"), ("logs/slow/", "fast")])
def test_run_names_and_folders_are_accepted(work: Path, words: tuple[str, str]) -> None:
    """A run is a file, a folder, or a name under logs/."""
    assert main(["compare", *words]) == 0
    assert (work / "compare" / "slow_vs_fast.json").exists()


def test_the_text_has_legend_verdict_and_rows(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The legend, the verdict first, then the guide's rows in its order, within 100 columns."""
    assert main(["compare", "slow", "fast"]) == 0
    text = capsys.readouterr().out
    assert text == (work / "compare" / "slow_vs_fast.txt").read_text()
    for line in (
        "- A: slow",
        "- B: fast",
        "- Format: A -> B | delta = B - A",
        "Verdict  IMPROVEMENT",
    ):
        assert line in text
    labels = [
        "Primary diagnosis",
        "Total step",
        "Input",
        "Compute",
        "Wait",
        "Wait share",
        "Step memory",
        "Phases",
    ]
    at = [text.index(f"\n  {label} ") if label != "Phases" else text.index("\nPhases\n") for label in labels]
    assert at == sorted(at)
    assert text.index("Verdict") < at[0]
    assert max(map(len, text.splitlines())) <= 100
    assert "None" not in text


def test_long_names_do_not_break_the_page(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names and paths of any length leave the text within 100 columns."""
    long = work / ("very_" * 20) / ("long_name_" * 15 + ".json")
    write(long, summary(primary=("X" * 60, "warn"), environment={"torch": "9" * 90}))
    assert main(["compare", str(long), "fast"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 100


def test_the_json_file_is_the_documented_shape(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--format json prints the bytes of the file, with the names that SUMMARY.md fixes."""
    assert main(["compare", "slow", "fast", "--format", "json"]) == 0
    printed = capsys.readouterr().out
    assert printed == (work / "compare" / "slow_vs_fast.json").read_text()
    data = json.loads(printed)
    assert data["schema"] == SCHEMA
    assert {
        "a",
        "b",
        "verdict",
        "why",
        "interval",
        "diagnosis",
        "metrics",
        "explained_by",
        "differences",
        "warnings",
    } <= set(data)
    assert {"a", "b", "delta", "delta_share", "unit"} <= set(data["metrics"]["step_ms"])
    step = data["metrics"]["step_ms"]
    assert step["delta"] == pytest.approx(step["b"] - step["a"])


def test_markdown_cannot_be_broken_by_names(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A hostile name stays text: no mention, no link, no markup, no extra cell."""
    hostile = summary(primary=("A|B <img src=x> @team [x](http://evil)", "warn"))
    path = write(work / "x" / "final_summary.json", hostile)
    assert main(["compare", path, path, "--format", "markdown"]) == 0
    row = next(r for r in capsys.readouterr().out.splitlines() if r.startswith("| Primary"))
    assert row.replace("\\|", "").count("|") == 5
    assert "<img" not in row
    assert "@team" not in row
    assert "[x](http://evil)" not in row
    assert "http:" not in row


def test_released_files_compare_across_versions(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Their slow and fast run: IMPROVEMENT by input; their file against ours goes as far as both
    go.
    """
    assert main(["compare", str(RELEASED / "v0.4.2_slow.json"), str(RELEASED / "v0.4.2_fast.json")]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Verdict IMPROVEMENT" in text
    assert "Input -42.2 ms explains 94 % of the change" in text
    assert main(["compare", str(RELEASED / "v0.2.15_slow.json"), "fast"]) == 0
    assert "Verdict  INCONCLUSIVE" in capsys.readouterr().out
    assert main(["compare", str(RELEASED / "v0.4.2_slow.json"), "fast"]) == 0


def test_the_released_straggler_is_named(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A rank that got slow is named from the released package's files too, though waiting grew."""
    pair = [str(RELEASED / f"v0.5.0_ddp2_{n}.json") for n in ("healthy", "compute_straggler")]
    assert main(["compare", *pair]) == 0
    assert "r1 moved by itself: Forward 12.8 ms -> 34.8 ms" in " ".join(capsys.readouterr().out.split())


def test_several_runs_a_side(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--a and --b take several runs, and small changes show that one pair cannot tell."""
    a = [write(work / f"a{i}.json", summary(100 + i / 5, seed=i)) for i in range(3)]
    b = [write(work / f"b{i}.json", summary(104 + i / 5, seed=9 + i)) for i in range(3)]
    assert main(["compare", "--a", *a, "--b", *b, "--fail-on", "regression"]) == 1
    assert "Verdict  REGRESSION" in capsys.readouterr().out
    assert (work / "compare" / "a0_and_2_more_vs_b0_and_2_more.json").exists()


def gate(work: Path, step_ms: float, *flags: str, **more: object) -> int:
    """The exit code of 100 ms against `step_ms`."""
    a = write(work / "a.json", summary(100))
    b = write(work / "b.json", summary(step_ms, seed=1, **more))  # type: ignore[arg-type]
    return main(["compare", a, b, *flags])


@pytest.mark.parametrize(
    ("step_ms", "flags", "code"),
    [
        (110, (), 0),
        (110, ("--fail-on", "regression"), 1),
        (110, ("--fail-on=regression",), 1),
        (110, ("--max-step-time-regression", "5%"), 1),
        (110, ("--max-step-time-regression=5 %",), 1),
        (110, ("--max-step-time-regression", "20%"), 0),
        (110, ("--max-step-time-regression", "20%", "--fail-on", "regression"), 1),
        (100, ("--fail-on", "regression", "--max-step-time-regression", "5%"), 0),
        (90, ("--fail-on", "regression", "--max-step-time-regression", "5%"), 0),
        (100, ("--max-step-time-regression", "0.1%"), 0),
    ],
)
def test_the_gate(work: Path, step_ms: float, flags: tuple[str, ...], code: int) -> None:
    """1 on a real regression beyond what is allowed, else 0; noise never fails a build."""
    assert gate(work, step_ms, *flags) == code


def test_the_gate_on_noise_and_on_mixed(work: Path) -> None:
    """An inconclusive or mixed comparison fails only when asked to."""
    noisy = {"means": [100.0, 200.0, 90.0, 120.0, 180.0, 80.0, 300.0, 95.0, 130.0, 160.0]}
    assert gate(work, 130, "--fail-on", "regression", "--max-step-time-regression", "5%", **noisy) == 0
    assert gate(work, 130, "--fail-on", "regression,inconclusive", **noisy) == 1
    assert gate(work, 80, "--fail-on", "regression", peak_bytes=9e9) == 0
    assert gate(work, 80, "--fail-on", "mixed", peak_bytes=9e9) == 1


def test_a_gate_without_data_does_not_pass(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No step times and a gate: exit 2, for a gate that saw nothing must not be green."""
    empty = str(RELEASED / "v0.2.15_slow.json")
    assert main(["compare", empty, "fast", "--fail-on", "regression"]) == 2
    assert "nothing to judge" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["slow"],
        ["slow", "fast", "slow"],
        ["--a", "slow"],
        ["slow", "--a", "slow", "--b", "fast"],
        ["slow", "fast", "--fail-on", "everything"],
        ["slow", "fast", "--max-step-time-regression", "5"],
        ["slow", "fast", "--max-step-time-regression", "-5%"],
        ["slow", "fast", "--format", "pdf"],
        ["slow", "fast", "--no-such-flag"],
        ["slow", "nowhere"],
        ["slow", "\0"],
        ["slow", "x" * 5000],
    ],
)
def test_wrong_words_are_one_line(work: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever is typed wrongly: one line, exit 2, no file."""
    assert main(["compare", *words]) == 2
    shown = capsys.readouterr()
    assert shown.err.count("\n") == 1
    assert shown.out == ""
    assert not (work / "compare").exists()


def test_a_place_that_cannot_be_written_is_one_line(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An --output below a file: one line, exit 2."""
    (work / "taken").write_text("")
    assert main(["compare", "slow", "fast", "--output", "taken/x"]) == 2
    assert "cannot be written" in capsys.readouterr().err
