"""What a step costs in instructions and cache misses, which a noisy machine hardly changes.

    python bench/instructions.py        (needs valgrind with its headers, and a C compiler)

The same 100 steps of a small model run under callgrind, plainly and traced. Gaps count as short whatever the
clock says, because everything takes fifty times as long there: this is the path of steps of 0.2 ms.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

SWITCH = """
#include <valgrind/callgrind.h>
void start(void) { CALLGRIND_START_INSTRUMENTATION; }
void stop(void) { CALLGRIND_STOP_INSTRUMENTATION; }
"""
SCRIPT = """
from traceml.capture import slots
slots.SHORT_GAP_NS = 10**9
import ctypes, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
counting = ctypes.CDLL("./counting.so")
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
loader = DataLoader(TensorDataset(torch.randn(4800, 16), torch.randn(4800, 1)), batch_size=4)
for number, (x, y) in enumerate(loader):
    if number == 1050:
        counting.start()
    if number == 1150:
        counting.stop()
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
"""
STEPS = 100


def count(folder: Path, traced: bool) -> tuple[float, float, float]:
    """Instructions, and misses of the first-level caches for code and data, per step."""
    out = folder / f"counts-{traced}.txt"
    valgrind = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--cache-sim=yes"]
    command = [*valgrind, "--callgrind-out-file=/dev/null", f"--log-file={out}", sys.executable, "script.py"]
    if traced:
        command = [sys.executable, "-m", "traceml", "run", "--quiet", "--run-name", "counts", *command]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    (counted,) = re.findall(r"Collected : ([\d ]+)", out.read_text())
    instructions, _, _, code, reads, writes, *_ = (int(word) / STEPS for word in counted.split())
    return instructions, code, reads + writes


def main() -> None:
    """Print both, and the difference."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "counting.c").write_text(SWITCH)
        subprocess.run(["cc", "-shared", "-fPIC", "counting.c", "-o", "counting.so"], cwd=folder, check=True)
        (folder / "script.py").write_text(SCRIPT)
        plain, traced = count(folder, traced=False), count(folder, traced=True)
    names = ("instructions", "misses of code", "misses of data")
    for name, before, after in zip(names, plain, traced, strict=True):
        print(f"{name:16} {before:12,.0f} {after:12,.0f}  +{after - before:,.0f} per step")


if __name__ == "__main__":
    main()
