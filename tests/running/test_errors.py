"""What goes wrong before or beside training is one clear line; exit code 2 only if training never started."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.running.scripts import write
from tests.scenarios.preloaded import ENVIRONMENT, PreloadedTraceml
from tests.scenarios.scenario import traceml
from traceml.capture.switch import c_module


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run"], "give a script"),
        (["run", "trian.py"], "no such file"),
        (["run", "nothing-like-this"], "no such script or command"),
        (["run", "data.csv"], "neither a Python script"),
        (["run", "-m"], "needs a module name"),
        (["run", "--bogus", "train.py"], "unknown flag --bogus"),
        (["run", "--run-name", "../x", "train.py"], "path segments"),
        (["run", "--run-name", "..", "train.py"], "plain name"),
        (["run", "--run-name", "", "train.py"], "plain name"),
        (["run", "--interval", "fast", "train.py"], "use a number"),
        (["run", "--interval=-1", "train.py"], "use seconds from"),
        (["run", "--mode", "loud", "train.py"], "--mode: unknown value 'loud'; use one of: summary"),
        (["run", "train.py", "--mode", "test"], "If it is an argument of the script, put --args before it"),
        (["run", "--run-name"], "needs a value"),
        (["dance"], "unknown command 'dance'"),
        (["view", "nowhere"], "no such file, run folder, or run under logs/"),
        (["view", "data.csv"], "not JSON; give the final_summary.json"),
        (["view", "empty.json"], "the file is empty"),
        (["view", "."], "not a TraceML run folder"),
    ],
)
def test_mistake_gives_one_clear_line_and_exit_code_2(tmp_path: Path, words: list[str], says: str) -> None:
    """Each mistake gives one line on standard error that says what to do, and exit code 2."""
    write(tmp_path, "train(2)")
    (tmp_path / "data.csv").write_text("1,2\n")
    (tmp_path / "empty.json").write_text("")
    done = traceml(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.startswith("traceml: ")
    assert says in done.stderr
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("TRACEML_INTERVAL", "soon", "TRACEML_INTERVAL: invalid value 'soon'; use a number"),
        ("TRACEML_RUN_NAME", "a/b", "TRACEML_RUN_NAME: invalid value 'a/b'"),
        ("TRACEML_OVERWRITE", "maybe", "use 1 or 0"),
        ("TRACEML_DISABLED", "perhaps", "use 1 or 0"),
    ],
)
def test_bad_variable_is_named_in_the_error(tmp_path: Path, variable: str, value: str, says: str) -> None:
    """A bad TRACEML_* value is an error that names the variable."""
    write(tmp_path, "train(2)")
    done = traceml("run", "train.py", cwd=tmp_path, env={variable: value})
    assert done.returncode == 2
    assert says in done.stderr


def test_settings_come_from_flag_then_environment_then_file(tmp_path: Path) -> None:
    """The flag beats the variable, the variable beats traceml.yaml, traceml.yaml beats pyproject.toml."""
    (tmp_path / "s.py").write_text("print('ran')")
    (tmp_path / "pyproject.toml").write_text("[tool.traceml]\nrun_name = 'toml'\n")

    def name(*words: str, **env: str) -> str:
        done = traceml("run", *words, "s.py", "--overwrite", cwd=tmp_path, env=env)
        assert done.returncode == 0, done.stderr
        newest = max((tmp_path / "logs").iterdir(), key=lambda p: p.stat().st_mtime_ns)
        return newest.name

    assert name() == "toml"
    (tmp_path / "traceml.yaml").write_text("run-name: yaml\n")
    assert name() == "yaml"
    assert name(TRACEML_RUN_NAME="env") == "env"
    assert name("--run-name", "flag", TRACEML_RUN_NAME="env") == "flag"


@pytest.mark.parametrize("text", ["run_nam: x\n", "- a\n- b\n", "a: [unclosed\n"])
def test_bad_settings_file_gives_one_clear_line(tmp_path: Path, text: str) -> None:
    """An unknown key or broken YAML names the file."""
    (tmp_path / "s.py").write_text("print('ran')")
    (tmp_path / "traceml.yaml").write_text(text)
    done = traceml("run", "s.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "traceml.yaml" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_existing_run_name_is_refused_unless_overwrite_is_given(
    tmp_path: Path, preloaded: PreloadedTraceml
) -> None:
    """The same name twice: one line that says what to do; --overwrite replaces the run."""
    write(tmp_path, "train(3)")
    words = ("run", "train.py", "--run-name", "größe")
    assert preloaded(*words, cwd=tmp_path).returncode == 0
    again = traceml(*words, cwd=tmp_path)
    assert again.returncode == 2
    assert "--overwrite" in again.stderr
    assert preloaded(*words, "--overwrite", cwd=tmp_path).returncode == 0


def test_overwrite_never_removes_what_is_not_a_run(tmp_path: Path) -> None:
    """A folder with other people's files in it is left alone."""
    write(tmp_path, "train(3)")
    (tmp_path / "logs" / "thesis").mkdir(parents=True)
    (tmp_path / "logs" / "thesis" / "chapter1.tex").write_text("years of work")
    done = traceml("run", "train.py", "--run-name", "thesis", "--overwrite", cwd=tmp_path)
    assert done.returncode == 2
    assert (tmp_path / "logs" / "thesis" / "chapter1.tex").exists()


def test_run_is_recorded_elsewhere_when_the_log_folder_is_unwritable(
    tmp_path: Path, preloaded: PreloadedTraceml
) -> None:
    """A log folder that cannot be made: one warning, training runs, the summary is where it says."""
    write(tmp_path, "train(5)\nsys.exit(6)")
    (tmp_path / "file").write_text("in the way")
    done = preloaded("run", "train.py", "--logs-dir", "file/logs", cwd=tmp_path)
    assert done.returncode == 6
    warning = done.stderr.splitlines()[0]
    assert "cannot write to" in warning
    folder = Path(warning.split("recording in ")[1].split(" ")[0])
    (path,) = folder.glob("*/final_summary.json")
    assert json.loads(path.read_text())["run"]["steps"]["total"] == 5


def test_a_full_disk_never_hurts_training(tmp_path: Path) -> None:
    """The disk fills up while training: one warning, training runs to its end with its own exit code."""
    write(tmp_path, "train(8000)\nprint('trained')\nsys.exit(7)")
    command = (sys.executable, "-m", "traceml", "run", "train.py", "--logs-dir", "small", "--run-name", "r")
    done = with_small_disk(tmp_path, *command)
    assert done.returncode == 7, done.stderr
    assert "trained" in done.stdout
    assert "No space left" in done.stderr
    assert done.stderr.count("traceml: end of a step failed") == 1


def test_a_full_disk_stays_out_of_a_script_that_skips_failing_batches(tmp_path: Path) -> None:
    """Events and rows that find no space raise nothing: the script skips its own bad batches only."""
    write(
        tmp_path,
        """
        import collections
        seen, batches = collections.Counter(), iter(DataLoader(TensorDataset(torch.randn(24000, 8)), 4))
        while True:
            if sum(seen.values()) == 100:  # the recording has begun: take what is left of the disk
                with open("small/rest", "wb", buffering=0) as rest:
                    try:
                        while rest.write(bytes(512)):
                            pass
                    except OSError:
                        pass
            try:
                (x,) = next(batches)
                optimizer.zero_grad()
                model(x[:, :5] if sum(seen.values()) % 3 else x).pow(2).mean().backward()
                optimizer.step()
                seen["trained"] += 1
            except StopIteration:
                break
            except Exception as problem:
                seen[type(problem).__name__] += 1
        print(dict(seen))
        """,
    )
    command = (sys.executable, "-m", "traceml", "run", "train.py", "--logs-dir", "small", "--run-name", "r")
    done = with_small_disk(tmp_path, *command)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "{'trained': 2000, 'RuntimeError': 4000}\n"
    assert done.stderr.count("events are no longer recorded (No space left on device)") == 1


def test_closed_standard_files_stay_closed(tmp_path: Path) -> None:
    """`>&- 2>&-`: what the script writes to descriptors 0 to 2 fails as it would without TraceML, and reaches
    no file of ours."""
    script = write(
        tmp_path,
        """
        import os
        train(200)  # the recording grows meanwhile
        wrong = []
        for fd in (0, 1, 2):
            try:
                wrong.append(os.write(fd, b"mine" * 4096))
            except OSError:
                pass
        train(200)
        open("wrong", "w").write(str(wrong))
        """,
    )
    run = f"{sys.executable} -m traceml run --run-name r {script} <&- >&- 2>&-"
    subprocess.run(["sh", "-c", run], cwd=tmp_path, env={**os.environ, **ENVIRONMENT}, check=True)
    assert (tmp_path / "wrong").read_text() == "[]"
    found = json.loads((tmp_path / "logs" / "r" / "final_summary.json").read_text())
    assert found["run"]["steps"]["total"] == 400


def with_small_disk(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run the command in `folder`, where `small` is a disk of 1.2 MB in a mount namespace of its own."""
    (folder / "small").mkdir()
    mount = 'mount -t tmpfs -o size=1200k tmpfs small && exec "$@"'
    inside = ("unshare", "--map-root-user", "--mount", "sh", "-c", mount, "sh")
    if (
        shutil.which("unshare") is None
        or subprocess.run([*inside, "true"], cwd=folder, check=False).returncode
    ):
        pytest.skip("no disk can be mounted here: needs unshare and user namespaces")
    return subprocess.run(
        [*inside, *command],
        cwd=folder,
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_failing_summary_never_turns_success_into_failure(
    tmp_path: Path, preloaded: PreloadedTraceml
) -> None:
    """The run folder is gone when the run ends: training's exit code stays 0, one line says what failed."""
    write(tmp_path, "train(5)\nimport shutil\nshutil.rmtree('logs')")
    done = preloaded("run", "train.py", cwd=tmp_path)
    assert done.returncode == 0
    assert "traceml: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(c_module is None, reason="the C module guards the recording")
@pytest.mark.parametrize("size", [0, 20_000])
def test_truncating_a_live_recording_never_hurts_training(
    tmp_path: Path, preloaded: PreloadedTraceml, size: int
) -> None:
    """Another program cuts the recording off: training goes on, one line says what happened, and the summary
    does not claim that nothing was trained."""
    body = f"""
        import glob, os
        def each(step):
            if step == 100:
                (path,) = glob.glob("logs/r/recording/rank-*.steps")
                os.truncate(path, {size})
        train(200, each)
        print("trained")
    """
    done = preloaded("run", str(write(tmp_path, body)), "--run-name", "r", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("traceml: ")]
    assert sum("was truncated by another program); training goes on" in line for line in said) == 1
    assert "no backward pass" not in done.stderr


@pytest.mark.skipif(c_module is None, reason="the C module guards the recording")
def test_another_bus_error_is_the_script_s_own(tmp_path: Path, preloaded: PreloadedTraceml) -> None:
    """SIGBUS that has nothing to do with the recording kills as it would without TraceML."""
    body = """
        import mmap, tempfile
        train(20)
        with tempfile.TemporaryFile() as file:
            file.truncate(4096)
            mapped = mmap.mmap(file.fileno(), 4096)
            file.truncate(0)
            mapped[0] = 1
    """
    done = preloaded("run", str(write(tmp_path, body)), "--run-name", "r", cwd=tmp_path)
    assert done.returncode == -signal.SIGBUS
    assert "killed by SIGBUS" in done.stderr
