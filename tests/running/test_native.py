"""A disabled run is the plain command; a traced one differs by two variables."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.running.bad_inputs import LAUGHS
from tests.running.processes import environment, traced
from tests.running.scripts import write
from tests.scenarios.preloaded import PreloadedTraceml

SAYS_ALL = "import os, sys; print(sys.argv, sorted(os.environ.items())); sys.exit(6)"
DISABLED = (("--disable-traceml",), ())
"""Both spellings: the flag, and TRACEML_DISABLED=1 without it."""


def run(command: list[str], folder: Path, variables: dict[str, str], **more: Any) -> tuple[int, bytes, bytes]:
    """(exit code, standard output, standard error)."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=variables,
        capture_output=True,
        check=False,
        timeout=120,
        stdin=subprocess.DEVNULL,
        **more,
    )
    return done.returncode, done.stdout, done.stderr


def disabled(flags: tuple[str, ...], *words: str) -> list[str]:
    return traced(*flags, *words)


def _yaml(text: bytes) -> Callable[[Path], dict[str, str]]:
    def make(folder: Path) -> dict[str, str]:
        (folder / "traceml.yaml").write_bytes(text)
        return {}

    return make


def _fifo(folder: Path) -> dict[str, str]:
    os.mkfifo(folder / "traceml.yaml")
    return {}


def _folder_as_file(folder: Path) -> dict[str, str]:
    (folder / "traceml.yaml").mkdir()
    (folder / "logs").write_text("not a folder")
    return {}


def _unreadable_link(folder: Path) -> dict[str, str]:
    (folder / "traceml.yaml").symlink_to("traceml.yaml")
    (folder / "pyproject.toml").symlink_to("/dev/zero")
    return {}


def _terabyte(folder: Path) -> dict[str, str]:
    with (folder / "traceml.yaml").open("wb") as file:
        file.truncate(1 << 40)
    return {}


NAMES = ("RUN_NAME", "LOGS_DIR", "MODE", "INTERVAL", "NNODES", "QUIET")
BAD = {f"TRACEML_{name}": "\x1b[31m no such thing" for name in NAMES}
SLURM = {"SLURM_NTASKS": "2", "SLURM_PROCID": "1", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7"}
TROUBLES: dict[str, Callable[[Path], dict[str, str]]] = {
    "nothing": lambda _: {},
    "yaml that is none": _yaml(b"run_name: ["),
    "yaml of bytes": _yaml(b"\xff\xfe\x00"),
    "yaml with unknown settings": _yaml(b"intervall: 1\nnnodes: many\n"),
    "deep yaml": _yaml(b"[" * 20_000),
    "fifo": _fifo,
    "folders and files swapped": _folder_as_file,
    "links": _unreadable_link,
    "bad variables": lambda _: BAD,
    "bad key": lambda _: {"TRACEML_KEY": "short"},
    "closed logs folder": lambda _: {"TRACEML_LOGS_DIR": "/proc/1/nothing"},
    "Slurm": lambda _: SLURM,
    "broken Slurm": lambda _: {**SLURM, "SLURM_NTASKS": "²"},
    "C locale": lambda _: {"LANG": "C", "LC_ALL": "", "LC_CTYPE": ""},
    "endless Slurm": lambda _: {**SLURM, "SLURM_NTASKS": "9" * 5000, "SLURM_JOB_ID": "9" * 5000},
    "machines without a number": lambda _: {"TRACEML_NNODES": "2"},
    "machines without an address": lambda _: {"TRACEML_NNODES": "2", "TRACEML_NODE_RANK": "1"},
    "ranks that are none": lambda _: {"TRACEML_NPROC_PER_NODE": "\x1b[31m²"},
    "yaml with ranks that are none": _yaml(b"nproc_per_node: 2001-99-99\n"),
    "a billion laughs": _yaml(LAUGHS.encode() + b"nproc_per_node: *a11\n"),
    "yaml of a terabyte": _terabyte,
    "variables that are not UTF-8": lambda _: dict.fromkeys(BAD, "\udcff"),
    "no temporary folder": lambda _: {"TMPDIR": "/proc/nowhere"},
}


@pytest.mark.parametrize("flags", DISABLED, ids=["flag", "variable"])
@pytest.mark.parametrize("trouble", TROUBLES)
def test_nothing_can_make_a_disabled_run_differ(tmp_path: Path, trouble: str, flags: tuple[str, ...]) -> None:
    """Exit code, arguments, environment (but TRACEML_DISABLED=1) and output are plain. No file appears."""
    extra = TROUBLES[trouble](tmp_path)
    (tmp_path / "say.py").write_text(SAYS_ALL)
    before = sorted(p.name for p in tmp_path.rglob("*"))
    variables = {k: v for k, v in environment(TRACEML_DISABLED="1", **extra).items() if k != "LC_CTYPE"}
    if trouble == "C locale":
        variables = {k: v for k, v in variables.items() if not k.startswith("LC_")}
    plain = run([sys.executable, "say.py", "a b", "--x"], tmp_path, variables)
    given = {k: v for k, v in variables.items() if not (flags and k == "TRACEML_DISABLED")}
    within = {"TRACEML_RUN_DIR": str(tmp_path)}  # inside another run
    assert run(disabled(flags, "say.py", "a b", "--x"), tmp_path, {**given, **within}) == plain
    assert plain[0] == 6
    assert sorted(p.name for p in tmp_path.rglob("*")) == before


@pytest.mark.parametrize("flags", DISABLED, ids=["flag", "variable"])
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["missing.py"], 2),
        (["-m", "no.such.module"], 1),
        (["no-such-command"], 127),
        (["./notes.txt"], 126),
        (["./text-without-interpreter", "x"], 9),
        (["sh", "-c", "yes | head -1; exit ${PIPESTATUS:-0}"], 0),
        (["sh", "-c", "kill -9 $$"], -9),
        (["folder"], 1),
    ],
    ids=lambda w: " ".join(w) if isinstance(w, list) else None,
)
def test_exit_codes_of_a_disabled_run_are_plain(
    tmp_path: Path, words: list[str], code: int, flags: tuple[str, ...]
) -> None:
    """What Python or a shell would return, also for what cannot be started."""
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "text-without-interpreter").write_text('test "$1" = x && exit 9')
    (tmp_path / "text-without-interpreter").chmod(0o755)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "__main__.py").write_text("raise SystemExit(1)")
    found = run(disabled(flags, *words), tmp_path, environment(TRACEML_DISABLED="1"))
    assert found[0] == code, found[2]
    assert b"Traceback" not in found[2]
    assert b"Broken pipe" not in found[2]


def test_a_disabled_run_in_a_removed_folder(tmp_path: Path) -> None:
    """A current folder that is gone fails nothing but what plain Python fails as well."""
    (tmp_path / "say.py").write_text("print('ran'); raise SystemExit(6)")
    line = f'mkdir gone; cd gone; rmdir ../gone; exec "$@" {tmp_path}/say.py'
    for command in ([sys.executable], traced("--disable-traceml")):
        found = run(["sh", "-c", line, "sh", *command], tmp_path, environment())
        assert found == (6, b"ran\n", b"")


def test_a_traced_run_in_a_removed_folder_is_recorded_elsewhere(tmp_path: Path) -> None:
    """Training comes first: the command runs, and one line says where its recording is."""
    (tmp_path / "say.py").write_text("print('ran'); raise SystemExit(6)")
    (tmp_path / "tmp").mkdir()
    line = f'mkdir gone; cd gone; rmdir ../gone; exec "$@" {tmp_path}/say.py'
    variables = environment(TMPDIR=str(tmp_path / "tmp"))
    code, out, err = run(["sh", "-c", line, "sh", *traced()], tmp_path, variables)
    assert (code, out) == (6, b"ran\n"), err
    assert b"recording in" in err
    assert len(list((tmp_path / "tmp").glob("*/*/final_summary.json"))) == 1


def test_ranks_from_any_source_are_started_by_a_disabled_run(tmp_path: Path) -> None:
    """--nproc-per-node decides the command: torchrun is started with the flag, the variable or the file."""
    (tmp_path / "say.py").write_text("import os; os.write(1, b'rank %s\\n' % os.environb[b'RANK'])")
    words = ["say.py"]
    flag = run(disabled(("--disable-traceml", "--nproc-per-node=2"), *words), tmp_path, environment())
    (tmp_path / "traceml.yaml").write_text("nproc-per-node: 2\n")
    file = run(disabled(("--disable-traceml",), *words), tmp_path, environment(TRACEML_NNODES="many"))
    for code, out, err in (flag, file):
        assert code == 0, err
        assert sorted(out.split(b"\n")) == [b"", b"rank 0", b"rank 1"]


def test_the_environment_of_a_traced_command(tmp_path: Path) -> None:
    """Two variables are set. The relay's secret is not passed on, nor what Python does to its own locale."""
    variables = {k: v for k, v in environment(LANG="C").items() if not k.startswith("LC_")}
    plain = run(["env", "-0"], tmp_path, variables)
    secret = {"TRACEML_KEY": "a secret of the monitors"}
    found = run(traced("env", "-0"), tmp_path, {**variables, **secret})
    expected = dict(line.split(b"=", 1) for line in plain[1].split(b"\0") if line)
    seen = dict(line.split(b"=", 1) for line in found[1].split(b"\0") if line)
    assert seen.pop(b"TRACEML_RUN_DIR").startswith(os.fsencode(tmp_path))
    assert seen.pop(b"PYTHONPATH").endswith(b":" + expected.pop(b"PYTHONPATH"))
    assert seen == expected


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002, 0o000])
def test_everything_that_is_written_keeps_the_umask(
    tmp_path: Path, preloaded: PreloadedTraceml, mask: int
) -> None:
    """Folders and files of a run: readable and writable for whom the user says, no more and no less."""
    write(tmp_path, "train(5)\nimport traceml\ntraceml.final_summary()\n")
    done = preloaded("run", "train.py", cwd=tmp_path, umask=mask)
    assert done.returncode == 0, done.stderr
    made = [tmp_path / "logs", *(tmp_path / "logs").rglob("*")]
    assert {"manifest.json", "final_summary.json", "final_summary.txt"} <= {p.name for p in made}
    assert any(p.suffix == ".steps" for p in made)
    for path in made:
        full = 0o777 if path.is_dir() else 0o666
        assert oct(path.stat().st_mode & 0o777) == oct(full & ~mask), path
