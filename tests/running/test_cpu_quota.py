"""A real CPU quota, as a container has one: its cost is reported and not blamed on the training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.running.cgroups import FIFTH_OF_A_CORE, NO_QUOTA, control_group, traceml_in

BUSY = """
import sys, time, torch
def burn(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass
class Model(torch.nn.Linear):
    def forward(self, x):
        burn(0.04)
        return super().forward(x)
torch.set_num_threads(1)
model = Model(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(45):
    if step == 3:
        open(sys.argv[1], "w").write(sys.argv[2])  # from here on, a fifth of a core
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
open(sys.argv[1], "w").write(sys.argv[3])
"""


@pytest.mark.scenario
@pytest.mark.stack
@pytest.mark.timed
def test_cpu_quota_is_reported_and_not_blamed_on_the_training(tmp_path: Path) -> None:
    """Most of the time stopped by the quota: CPU LIMITED says so, and no jitter or slowdown is claimed."""
    (tmp_path / "busy.py").write_text(BUSY)
    with control_group(NO_QUOTA) as file:
        fifth, none = (
            next(value for path, value in limit if path.endswith(file.name))
            for limit in (FIFTH_OF_A_CORE, NO_QUOTA)
        )
        words = ("busy.py", "--run-name", "q", "--", str(file), fifth, none)
        done = traceml_in(file, tmp_path, "run", *words)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "logs" / "q" / "final_summary.json").read_text())
    assert found["system"]["diagnosis"]["status"] == "CPU LIMITED", done.stderr
    assert found["primary_diagnosis"]["status"] == "COMPUTE-BOUND", done.stderr
    assert any("CPU quota" in note for note in found["run"]["notes"])
