"""A real memory limit, as a container has one: memory findings compare with it, not with the machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scenarios.preloaded import ENVIRONMENT

LIMIT = 1_200 * 2**20
LEAKS = """
import time, torch
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
kept = []
for step in range(150):
    time.sleep(0.03)
    kept.append(torch.ones(2**20))
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """A memory cgroup with a limit."""
    name = f"traceml-test-memory-{os.getpid()}"
    for folder, file in (("memory", "memory.limit_in_bytes"), ("", "memory.max")):
        made = Path("/sys/fs/cgroup") / folder / name
        try:
            made.mkdir()
        except OSError:
            continue
        try:
            (made / file).write_text(str(LIMIT))
        except OSError:
            made.rmdir()
            continue
        yield made
        made.rmdir()
        return
    pytest.skip("no memory cgroup can be made here: needs root and the memory controller")


@pytest.mark.scenario
def test_memory_creep_is_compared_with_the_limit_of_the_container(tmp_path: Path, group: Path) -> None:
    """A leak of 4 MiB per step below 1.2 GiB: the capacity is the limit, and memory is full before long."""
    (tmp_path / "leaks.py").write_text(LEAKS)
    command = [sys.executable, "-m", "traceml", "run", "leaks.py", "--run-name", "m"]
    done = subprocess.run(
        ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh", *command],
        cwd=tmp_path,
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "logs" / "m" / "final_summary.json").read_text())
    memory = found["step_memory"]
    assert memory["window"]["capacity_bytes"] == pytest.approx(LIMIT, rel=0.01), done.stderr
    assert memory["diagnosis"]["status"] == "MEMORY CREEP", done.stderr
    assert "at this rate, memory is full after " in memory["diagnosis"]["summary"]
    assert memory["diagnosis"]["evidence"]["steps_until_full"] < LIMIT / 2**22
    ram = found["system"]["metrics"]["ram_bytes"]["worst"]["value"]
    assert 0.2e9 < ram < LIMIT
