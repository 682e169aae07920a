"""Bad input of every kind ends in one clear line, or in a word about what was left out; never in a hang."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.running.bad_input_server import MOST_S, limit
from tests.running.bad_inputs import CASES, Case, sound
from tests.running.processes import environment

pytestmark = pytest.mark.long
SERVER = Path(__file__).with_name("bad_input_server.py")


@pytest.fixture(scope="module")
def server() -> Iterator[subprocess.Popen[str]]:
    """Runs commands in forks."""
    words = [sys.executable, str(SERVER)]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables({})
    ) as made:
        yield made
        assert made.stdin is not None
        made.stdin.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with the two sound runs."""
    made = Path(tempfile.mkdtemp(prefix="bad-"))
    sound(made)
    yield made
    made.chmod(0o700)
    shutil.rmtree(made)


def variables(more: dict[str, str]) -> dict[str, str]:
    """The environment, without what this test is started with."""
    kept = {k: v for k, v in environment().items() if not k.startswith(("TRACEML_", "SLURM_", "LC_"))}
    return {**kept, "OPENBLAS_NUM_THREADS": "1", **more}


def by_a_shell(case: Case, folder: Path) -> tuple[int, bytes, bytes]:
    """The real command, as a user types it."""
    words = ["sh", "-c", case.shell or '"$@"', "sh", sys.executable, "-m", "traceml", *case.words]
    done = subprocess.run(
        words, cwd=folder, env=variables(case.env), capture_output=True, timeout=2 * MOST_S,
        preexec_fn=limit, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def in_a_fork(case: Case, folder: Path, server: subprocess.Popen[str]) -> tuple[int | str, bytes, bytes]:
    """The same without starting Python."""
    closed = folder / case.closed if case.closed else None
    with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as err:
        request = {
            "words": [os.fsencode(word).hex() for word in case.words],
            "cwd": str(folder),
            "env": variables(case.env),
            "stdout": out.name,
            "stderr": err.name,
            "closed": None if closed is None else str(closed),
        }
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        code = json.loads(server.stdout.readline())
        if closed is not None and closed.exists():
            closed.chmod(0o700)
        return code, out.read(), err.read()


@pytest.mark.parametrize("case", CASES, ids=lambda case: ascii(case.name)[1:-1])
def test_bad_input(case: Case, folder: Path, server: subprocess.Popen[str]) -> None:
    """One clear line and exit 2, or the answer without what is bad; bounded time and memory; no escapes."""
    case.make(folder)
    real = bool(case.shell) or any(name.startswith(("PYTHON", "LC_")) for name in case.env)
    code, *printed = by_a_shell(case, folder) if real else in_a_fork(case, folder, server)
    out, err = (data.decode(errors="replace") for data in printed)
    seen = ascii(f"exit {code}\n--- out\n{out[:2000]}\n--- err\n{err[-3000:]}").replace("\\n", "\n")
    assert code == case.code, seen
    assert not re.search(r"Traceback|failed \(\w+:|Exception ignored|Error:", err), seen
    for shown in (out, err):
        assert all(line.isprintable() for line in shown.split("\n")), seen
    assert case.says in out + err, seen
    if case.code == 2 and "2>&-" not in case.shell:
        assert err.startswith("traceml: "), seen
        assert err.count("\n") == 1, seen
        assert len(err) < 2000, seen
        assert out == "", seen
