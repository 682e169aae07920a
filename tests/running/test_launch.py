"""Every way to start a command, and a command that cannot tell that it runs under TraceML."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest

from tests.running.scripts import LOOP, write
from tests.scenarios.preloaded import PreloadedTraceml
from tests.scenarios.scenario import SRC, traceml

WHO = """
import json, sys
print(json.dumps([sys.argv, sys.path[0], __name__, __file__, sys.flags.isolated, sorted(
    m for m in sys.modules if m.startswith("traceml")) == [] or "torch" in sys.modules]))
"""


def summary(folder: Path, name: str) -> dict[str, Any]:
    """The summary of a named run."""
    found: dict[str, Any] = json.loads((folder / "logs" / name / "final_summary.json").read_text())
    return found


@pytest.mark.parametrize(
    "words",
    [
        ["train.py", "--run-name", "r", "--args", "--lr", "1", "--mode=x"],
        ["train.py", "--run-name", "r", "--", "--lr", "1", "--mode=x"],
        ["train.py", "--run-name=r", "--lr", "1", "--mode=x"],
        ["--run-name", "r", "train.py", "--lr", "1", "--mode=x"],
        ["--run-name", "r", sys.executable, "train.py", "--lr", "1", "--mode=x"],
        ["--run-name", "r", "bash", "-c", f"{sys.executable} train.py --lr 1 --mode=x"],
    ],
)
def test_script_arguments_reach_the_script_in_every_spelling(
    tmp_path: Path, preloaded: PreloadedTraceml, words: list[str]
) -> None:
    """With --args, with --, with neither, and as any command: the script sees exactly its own arguments."""
    write(tmp_path, "train(5)\nprint(sys.argv[1:])")
    command = traceml if "bash" in words else preloaded
    done = command("run", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['--lr', '1', '--mode=x']"
    assert summary(tmp_path, "r")["run"]["steps"]["total"] == 5


def test_a_module_runs_with_relative_imports(tmp_path: Path) -> None:
    """`-m pkg.train` is python -m: relative imports work, our flags may follow."""
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "loop.py").write_text(LOOP)
    (package / "train.py").write_text("from .loop import train\nimport sys\ntrain(7)\nprint(sys.argv[1:])\n")
    done = traceml("run", "-m", "pkg.train", "--run-name", "m", "--", "--x", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['--x']"
    assert summary(tmp_path, "m")["run"]["steps"]["total"] == 7


def test_the_script_sees_what_it_would_see_in_plain_python(tmp_path: Path) -> None:
    """sys.argv, sys.path[0], __name__, __file__ are the plain ones, also in a folder with spaces."""
    folder = tmp_path / "a folder with späces"
    folder.mkdir()
    (folder / "who am i.py").write_text(WHO)
    command = ["who am i.py", "--a", "b c"]
    plain = subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True, check=True)
    traced = traceml("run", *command, cwd=folder)
    assert traced.stdout == plain.stdout


def test_an_existing_sitecustomize_still_runs(tmp_path: Path) -> None:
    """Somebody else's sitecustomize on PYTHONPATH runs as before, and is the one that is imported."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import sys; sys.theirs = 'ran'\n")
    script = tmp_path / "s.py"
    script.write_text("import sys, sitecustomize; print(sys.theirs, sitecustomize.__file__)")
    path = os.pathsep.join([str(SRC), str(tmp_path / "site")])
    done = traceml("run", str(script), cwd=tmp_path, env={"PYTHONPATH": path})
    assert done.stdout.split() == ["ran", str(tmp_path / "site" / "sitecustomize.py")]


def test_another_environment_without_traceml_is_recorded_all_the_same(tmp_path: Path) -> None:
    """The command's Python may be another environment than ours: the injected folder alone suffices."""
    other = tmp_path / "venv"
    venv.create(other, with_pip=False)
    (site,) = other.glob("lib/python*/site-packages")
    (site / "torch-from-here.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    write(tmp_path, "train(6)\nimport traceml\nprint(traceml.trace_step is not None)")
    python = str(other / "bin" / "python")
    plain = subprocess.run([python, "-c", "import traceml"], capture_output=True, text=True, check=False)
    assert "No module named 'traceml'" in plain.stderr, "the other environment must not have TraceML"
    done = subprocess.run(
        [sys.executable, "-m", "traceml", "run", "--run-name", "o", python, "train.py"],
        cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert summary(tmp_path, "o")["run"]["steps"]["total"] == 6


@pytest.mark.parametrize("flag", ["-I", "-S", "-E"])
def test_a_python_that_ignores_us_gets_one_clear_line(tmp_path: Path, flag: str) -> None:
    """-I, -S and -E keep us out: the command runs, and the summary says why nothing was recorded."""
    script = tmp_path / "s.py"
    script.write_text("print('ran')")
    done = traceml("run", sys.executable, flag, str(script), cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout == "ran\n"
    assert "Nothing was recorded" in done.stderr.replace("\n    ", " ")


def test_disabled_means_a_native_launch(tmp_path: Path) -> None:
    """--disable-traceml and TRACEML_DISABLED=1: nothing imported, nothing wrapped, no folder, same code."""
    script = write(
        tmp_path,
        """
        train(3)
        assert not any(m.startswith("traceml") for m in sys.modules), "imported"
        assert not hasattr(torch.save, "_traceml_original"), "wrapped"
        sys.exit(4)
        """,
    )
    for words, env in ((["--disable-traceml"], {}), ([], {"TRACEML_DISABLED": "1"})):
        done = traceml("run", *words, str(script), cwd=tmp_path, env=env)
        assert done.returncode == 4, done.stderr
        assert "traceml" not in done.stderr
    assert not (tmp_path / "logs").exists()


def test_two_runs_side_by_side_need_no_flags(tmp_path: Path) -> None:
    """Two runs of the same script at the same moment get folders of their own."""
    write(tmp_path, "train(20)")
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    both = [
        subprocess.Popen(
            [sys.executable, "-m", "traceml", "run", "train.py"],
            cwd=tmp_path,
            env=environment,
            stderr=subprocess.PIPE,
        )
        for _ in range(2)
    ]
    for running in both:
        running.communicate(timeout=120)
        assert running.returncode == 0
    totals = [
        json.loads(p.read_text())["run"]["steps"]["total"]
        for p in (tmp_path / "logs").glob("*/final_summary.json")
    ]
    assert totals == [20, 20]


def test_helpers_and_subprocesses_are_not_ranks(tmp_path: Path, preloaded: PreloadedTraceml) -> None:
    """A subprocess that imports torch, loader workers and a launcher shell leave no recording."""
    write(
        tmp_path,
        """
        import subprocess
        subprocess.run([sys.executable, "-c", "import torch; torch.zeros(1)"], check=True)
        if __name__ == "__main__":
            train(5)
        """,
    )
    done = preloaded("run", "train.py", "--run-name", "r", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "logs" / "r" / "recording").glob("rank-*.steps"))) == 1


def test_a_script_that_changes_folder_changes_nothing(tmp_path: Path, preloaded: PreloadedTraceml) -> None:
    """os.chdir in the script does not move the recording."""
    write(tmp_path, "import os, tempfile\nos.chdir(tempfile.mkdtemp())\ntrain(5)\n")
    preloaded("run", "train.py", "--run-name", "r", cwd=tmp_path)
    assert summary(tmp_path, "r")["run"]["steps"]["total"] == 5
