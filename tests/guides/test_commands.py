"""Every command in the documentation runs, in a folder where a small training stands in for the reader's.

Not run, but read by the real parsers: what needs several machines (--nnodes), what YAML of other tools
contains, the number of a process, and blocks below `<!-- not run: reason -->`. Slurm's batch scripts are
read, too, and run by `make test-long` with a small `srun` in place of the real one.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.guides.blocks import STAND_IN, Block, blocks, commands, commands_in_yaml, prepare
from tests.scenarios.preloaded import ENVIRONMENT, PreloadedTraceml
from traceml.cli import run as run_command
from traceml.cli.main import COMMANDS, main
from traceml.monitor import launch
from traceml.monitor.launch import find_this_node
from traceml.settings import resolve

BLOCKS = blocks()
SHELL = [b for b in BLOCKS if b.language == "bash" and "sbatch" not in b.title]
BATCH = [b for b in BLOCKS if "sbatch" in b.title]
done_before: dict[tuple[str, ...], str] = {}


def environment() -> dict[str, str]:
    """`traceml`, `python` and `torchrun` of this checkout come first."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, **ENVIRONMENT, "PATH": path}


@pytest.fixture(scope="module")
def template(preloaded: PreloadedTraceml, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a real run."""
    folder = tmp_path_factory.mktemp("template")
    (folder / "train.py").write_text(STAND_IN)
    done = preloaded("run", "train.py", "--run-name", "template", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "logs" / "template"


def is_only_read(words: list[str]) -> bool:
    """Several machines, or the number of a process that is not there."""
    return any(w.startswith("--nnodes") for w in words) or (words[1] == "watch" and words[2].isdigit())


@pytest.mark.scenario
@pytest.mark.parametrize("page", sorted({block.page for block in SHELL}))
def test_documented_commands_run(
    page: str, template: Path, tmp_path: Path, preloaded: PreloadedTraceml
) -> None:
    """Each command of the page ends with 0. One that an earlier page has shown is not run again."""
    for number, block in enumerate(b for b in SHELL if b.page == page):
        folder = tmp_path / str(number)
        folder.mkdir()
        for words in commands(block.text):
            if block.why or is_only_read(words):
                read(words)
            elif done_before.setdefault(tuple(words := with_two_ranks(words)), page) == page:
                prepare(folder, words, template)
                execute(words, folder, preloaded)


def with_two_ranks(words: list[str]) -> list[str]:
    """The same command; two ranks show as much as eight."""
    shorter = [re.sub(r"^(--nproc-per-node=)\d+$", r"\g<1>2", word) for word in words]
    if "--nproc-per-node" in shorter:
        shorter[shorter.index("--nproc-per-node") + 1] = "2"
    return shorter


def execute(words: list[str], folder: Path, preloaded: PreloadedTraceml) -> None:
    """Run it; it must end with 0, or, if it serves pages, come up."""
    if words[1] == "ui":
        comes_up(words, folder)
        return
    starts_new_python = {"torchrun", "-m"} & set(words) or words[1] == "watch"
    if not starts_new_python:
        done = preloaded(*words[1:], cwd=folder)
    else:
        command = [sys.executable, "-m", *words]
        done = subprocess.run(
            command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=200, check=False
        )
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}\n{done.stderr}"


def comes_up(words: list[str], folder: Path) -> None:
    """A server runs until it is stopped."""
    command = [sys.executable, "-m", *words, "--no-browser"]
    server = subprocess.Popen(command, cwd=folder, env=environment(), stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        assert any("dashboard: http" in line for line in server.stderr)
    finally:
        server.terminate()
        server.communicate(timeout=180)


def read(words: list[str]) -> None:
    """The command is known, and the parsers accept its words."""
    assert words[1] in {command.name for command in COMMANDS}, words
    if words[1] in ("run", "watch"):
        parsed = run_command.parse(words[2:])
        settings = resolve(parsed.flags, {}, environment={})
        node = find_this_node(settings, {}, "train")
        plain = launch.plain_command(parsed.target, parsed.arguments, parsed.is_module)
        assert launch.with_ranks(plain, settings, node, parsed.is_python)
        return
    flags = [word.partition("=")[0] for word in words if word.startswith("--")]
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
        main([words[1], "--help"])
    assert [flag for flag in flags if not re.search(rf"{flag}\b", shown.getvalue())] == [], words


def test_commands_inside_other_tools_are_accepted() -> None:
    """Kubernetes manifests, CI files and batch scripts: the parsers accept the words."""
    found = [words for b in BLOCKS if b.language == "yaml" for words in commands_in_yaml(b.text)]
    found += [words for block in BATCH for words in commands(block.text)]
    assert len(found) >= 6
    for words in found:
        read(words)


def test_blocks_with_commands_are_marked_as_shell() -> None:
    """A block that begins with a command is `bash`, so that the test above runs it."""
    for block in BLOCKS:
        assert block.language == "bash" or not block.text.startswith("traceml "), block
    for path in {b.page for b in BLOCKS}:
        text = (Path(__file__).parents[2] / path).read_text()
        assert not re.search(r"^```\ntraceml ", text, re.MULTILINE), path


SRUN = """#!/bin/bash
# What srun does with {tasks} tasks, on one machine.
export SLURM_NTASKS={tasks} SLURM_JOB_ID={job} SLURM_STEP_ID=0 SLURM_STEP_NODELIST=localhost
pids=()
for task in $(seq 0 $(({tasks} - 1))); do
  SLURM_PROCID=$task SLURM_LOCALID=$task SLURM_NODEID=$task "$@" & pids+=($!)
done
for pid in "${{pids[@]}}"; do wait "$pid" || exit; done
"""


@pytest.mark.long
@pytest.mark.parametrize("block", BATCH, ids=lambda b: b.title.split('"')[1])
def test_batch_script_makes_one_run_of_all_tasks(block: Block, tmp_path: Path) -> None:
    """Each `#SBATCH` script of the page, with a stand-in for `srun` that starts that many tasks."""
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=(\d+)", block.text, re.MULTILINE))
    tasks = int(options["nodes"]) * int(options["ntasks-per-node"])
    job = os.getpid()
    programs = {
        "srun": SRUN.format(tasks=tasks, job=job),
        "hostname": "#!/bin/sh\necho localhost\n",
        "traceml": f'#!/bin/sh\nexec {sys.executable} -m traceml "$@"\n',
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(stat.S_IRWXU)
    (tmp_path / "train.py").write_text(STAND_IN)
    with socket.create_server(("localhost", 0)) as free:
        port = str(free.getsockname()[1])
    script = block.text.replace("MASTER_PORT=29511", f"MASTER_PORT={port}")
    own = {"PATH": f"{tmp_path}{os.pathsep}{environment()['PATH']}", "SLURM_NTASKS": str(tasks)}
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env={**environment(), **own}, capture_output=True, text=True,
        timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "logs" / f"train-slurm-{job}.0"
    per_task = re.search(r"--nproc-per-node (\d+)", block.text)
    ranks = tasks * (int(per_task[1]) if per_task else 1)
    assert f"{ranks} ranks" in (folder / "final_summary.txt").read_text(), done.stderr
