"""`traceml compare` on the command line: names, files, formats, exit codes."""

from __future__ import annotations

import json
import re
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


def test_generic_file_name_is_replaced_by_folder_name(work: Path) -> None:
    """final_summary.json takes the name of its folder: compare/slow_vs_fast.json and .txt."""
    assert main(["compare", "logs/slow/final_summary.json", "logs/fast/final_summary.json"]) == 0
    names = sorted(p.name for p in (work / "compare").iterdir())
    assert names == ["slow_vs_fast.json", "slow_vs_fast.txt"]


def test_specific_file_names_are_kept(work: Path) -> None:
    """run_a.json and run_b.json give compare/run_a_vs_run_b."""
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
def test_output_sets_the_name_of_both_files(work: Path, output: str, expected: str) -> None:
    """--output=x writes x.json and x.txt, creates folders, and leaves nothing else behind."""
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


def test_text_has_legend_verdict_and_rows(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The legend, the verdict, then the rows in the documented order, within 100 columns."""
    assert main(["compare", "slow", "fast"]) == 0
    text = capsys.readouterr().out
    assert text == (work / "compare" / "slow_vs_fast.txt").read_text()
    for line in ("- A: slow", "- B: fast", "- Format: A -> B | delta = B - A", "Verdict  IMPROVEMENT"):
        assert line in text
    labels = ("Primary diagnosis", "Total step", "Input", "Compute", "Wait", "Wait share", "Step memory")
    at = [*(text.index(f"\n  {label} ") for label in labels), text.index("\nPhases\n")]
    assert at == sorted(at)
    assert text.index("Verdict") < at[0]
    assert not re.search(r"\d/s", text), "the label says already that it is per second"
    assert max(map(len, text.splitlines())) <= 100
    assert "None" not in text


def test_long_names_do_not_break_the_layout(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The text stays within 100 columns for names and paths of any length."""
    long = work / ("very_" * 20) / ("long_name_" * 15 + ".json")
    write(long, summary(primary=("X" * 60, "warn"), environment={"torch": "9" * 90}))
    assert main(["compare", str(long), "fast"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 100


def test_json_has_the_documented_keys(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--format json prints exactly the JSON file, with the documented keys."""
    assert main(["compare", "slow", "fast", "--format", "json"]) == 0
    printed = capsys.readouterr().out
    assert printed == (work / "compare" / "slow_vs_fast.json").read_text()
    data = json.loads(printed)
    assert data["schema"] == SCHEMA
    keys = "a b verdict why interval diagnosis metrics explained_by differences warnings"
    assert set(keys.split()) <= set(data)
    assert {"a", "b", "delta", "delta_share", "unit"} <= set(data["metrics"]["step_ms"])
    step = data["metrics"]["step_ms"]
    assert step["delta"] == pytest.approx(step["b"] - step["a"])


def test_names_cannot_inject_markdown(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A hostile name is shown as text: no mention, no link, no markup, no extra cell."""
    hostile = summary(primary=("A|B <img src=x> @team [x](http://evil)", "warn"))
    path = write(work / "x" / "final_summary.json", hostile)
    assert main(["compare", path, path, "--format", "markdown"]) == 0
    row = next(r for r in capsys.readouterr().out.splitlines() if r.startswith("| Primary"))
    assert row.replace("\\|", "").count("|") == 5
    assert "<img" not in row
    assert "@team" not in row
    assert "[x](http://evil)" not in row
    assert "http:" not in row


def test_files_of_the_released_package_can_be_compared(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Released slow and fast runs give IMPROVEMENT by input; a released file also compares with ours."""
    assert main(["compare", str(RELEASED / "v0.4.2_slow.json"), str(RELEASED / "v0.4.2_fast.json")]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Verdict IMPROVEMENT" in text
    assert "Input -42.2 ms explains 94 % of the change" in text
    assert main(["compare", str(RELEASED / "v0.2.15_slow.json"), "fast"]) == 0
    assert "Verdict  INCONCLUSIVE" in capsys.readouterr().out
    assert main(["compare", str(RELEASED / "v0.4.2_slow.json"), "fast"]) == 0


def test_straggler_is_named_from_released_files(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A rank that got slower is named from released files too, although waiting grew as well."""
    pair = [str(RELEASED / f"v0.5.0_ddp2_{n}.json") for n in ("healthy", "compute_straggler")]
    assert main(["compare", *pair]) == 0
    assert "r1 changed on its own: Forward 12.8 ms -> 34.8 ms" in " ".join(capsys.readouterr().out.split())


def test_several_runs_per_side(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--a and --b take several runs, and then show a change that one pair cannot show."""
    a = [write(work / f"a{i}.json", summary(100 + i / 5, seed=i)) for i in range(3)]
    b = [write(work / f"b{i}.json", summary(104 + i / 5, seed=9 + i)) for i in range(3)]
    assert main(["compare", "--a", *a, "--b", *b, "--fail-on", "regression"]) == 1
    assert "Verdict  REGRESSION" in capsys.readouterr().out
    assert (work / "compare" / "a0_and_2_more_vs_b0_and_2_more.json").exists()


def gate(work: Path, step_ms: float, *flags: str, **more: object) -> int:
    """The exit code for a step of 100 ms in A and of `step_ms` in B."""
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
def test_exit_code_of_the_gate(work: Path, step_ms: float, flags: tuple[str, ...], code: int) -> None:
    """1 for a real regression above the limit, otherwise 0. Noise never fails a build."""
    assert gate(work, step_ms, *flags) == code


def test_inconclusive_and_mixed_fail_only_on_request(work: Path) -> None:
    """An inconclusive or mixed comparison fails the gate only if --fail-on names it."""
    noisy = {"means": [100.0, 200.0, 90.0, 120.0, 180.0, 80.0, 300.0, 95.0, 130.0, 160.0]}
    assert gate(work, 130, "--fail-on", "regression", "--max-step-time-regression", "5%", **noisy) == 0
    assert gate(work, 130, "--fail-on", "regression,inconclusive", **noisy) == 1
    assert gate(work, 80, "--fail-on", "regression", peak_bytes=9e9) == 0
    assert gate(work, 80, "--fail-on", "mixed", peak_bytes=9e9) == 1


def test_gate_without_step_times_exits_with_2(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A gate that has nothing to check must not pass."""
    empty = str(RELEASED / "v0.2.15_slow.json")
    assert main(["compare", empty, "fast", "--fail-on", "regression"]) == 2
    assert "no step times" in capsys.readouterr().err


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
def test_usage_errors_are_one_line(work: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Every usage error is one line with exit code 2, and no file is written."""
    assert main(["compare", *words]) == 2
    shown = capsys.readouterr()
    assert shown.err.count("\n") == 1
    assert shown.out == ""
    assert not (work / "compare").exists()


@pytest.mark.parametrize("name", ["nowhere", "\0", "x" * 5000])
def test_view_of_a_missing_run_is_one_line(work: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`traceml view` reports a run that does not exist in one line, for any name, with exit code 2."""
    assert main(["view", name]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_unwritable_output_is_one_line(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An --output inside a file gives one line and exit code 2."""
    (work / "taken").write_text("")
    assert main(["compare", "slow", "fast", "--output", "taken/x"]) == 2
    assert "cannot be written" in capsys.readouterr().err
