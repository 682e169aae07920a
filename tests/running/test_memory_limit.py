"""A real memory limit, as a container has one: memory findings compare with it, not with the machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.running.cgroups import control_group, memory_limit, traceml_in

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


@pytest.mark.scenario
@pytest.mark.stack
def test_memory_creep_is_compared_with_the_limit_of_the_container(tmp_path: Path) -> None:
    """A leak of 4 MiB per step below 1.2 GiB: the capacity is the limit, and memory is full before long."""
    (tmp_path / "leaks.py").write_text(LEAKS)
    with control_group(memory_limit(LIMIT)) as group:
        done = traceml_in(group, tmp_path, "run", "leaks.py", "--run-name", "m")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "logs" / "m" / "final_summary.json").read_text())
    memory = found["step_memory"]
    assert memory["window"]["capacity_bytes"] == pytest.approx(LIMIT, rel=0.01), done.stderr
    assert memory["diagnosis"]["status"] == "MEMORY CREEP", done.stderr
    assert "at this rate, memory is full after " in memory["diagnosis"]["summary"]
    assert memory["diagnosis"]["evidence"]["steps_until_full"] < LIMIT / 2**22
    ram = found["system"]["metrics"]["ram_bytes"]["worst"]["value"]
    assert 0.2e9 < ram < LIMIT
