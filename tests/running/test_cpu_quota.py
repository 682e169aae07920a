"""A real CPU quota, as a container has one: its cost is reported and not blamed on the training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scenarios.preloaded import ENVIRONMENT

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


@pytest.fixture
def group() -> Iterator[tuple[Path, str, str, str]]:
    """A CPU cgroup without a quota yet: its folder, the quota's file, a fifth of a core, no quota."""
    name = f"traceml-test-{os.getpid()}"
    v1 = (Path("/sys/fs/cgroup/cpu") / name, "cpu.cfs_quota_us", "20000", "-1")
    v2 = (Path("/sys/fs/cgroup") / name, "cpu.max", "20000 100000", "max")
    for made in (v1, v2):
        try:
            made[0].mkdir()
        except OSError:
            continue
        if (made[0] / made[1]).exists():
            yield made
            made[0].rmdir()
            return
        made[0].rmdir()
    pytest.skip("no CPU cgroup can be made here: needs root and the cpu controller")


@pytest.mark.scenario
def test_cpu_quota_is_reported_and_not_blamed_on_the_training(
    tmp_path: Path, group: tuple[Path, str, str, str]
) -> None:
    """Most of the time stopped by the quota: CPU LIMITED says so, and no jitter or slowdown is claimed."""
    folder, file, fifth, none = group
    (tmp_path / "busy.py").write_text(BUSY)
    command = [sys.executable, "-m", "traceml", "run", "busy.py", "--run-name", "q", "--"]
    words = (str(folder / file), fifth, none)
    done = subprocess.run(
        ["sh", "-c", f'echo $$ > {folder}/cgroup.procs && exec "$@"', "sh", *command, *words],
        cwd=tmp_path,
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "logs" / "q" / "final_summary.json").read_text())
    assert found["system"]["diagnosis"]["status"] == "CPU LIMITED", done.stderr
    assert found["primary_diagnosis"]["status"] == "COMPUTE-BOUND", done.stderr
    assert any("CPU quota" in note for note in found["run"]["notes"])
