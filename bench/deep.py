"""What deep mode costs: `traceml run` and `traceml deep`, interleaved in one process.

    python bench/deep.py [--seconds 20]

Each training alternates between blocks of steps with deep mode on, one of them sampled, and off.
Times are CPU times of the training thread, because other work on the machine changes them least.

- one sample: what a sampled step takes more than the median step without deep mode; median and quartiles
- added: that, divided by the time of the steps up to the next sample
- other steps: steps of blocks with deep mode that are not sampled, against those without it; pairs of medians
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Any

SCRIPT = """
import json, statistics, sys, time
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
torch.set_num_threads(1)
kind, seconds = sys.argv[1], float(sys.argv[2])
class Many(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(200))
    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x
class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(128, 4, 256, batch_first=True, dropout=0.0) for _ in range(4)
        )
    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if kind == "checkpointed" else block(x)
        return x
small = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
model = {"small": small, "many": Many()}.get(kind) or Blocks()
x = {"small": torch.randn(16, 16), "many": torch.randn(16, 32)}.get(kind, torch.randn(4, 32, 128))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
def step():
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
from traceml.capture import deep as deep_mode, install
deep_mode.PER_DOUBLING = 1e9  # as often as the cost allows, as at the beginning of a run
for _ in range(300):
    step()
session = install.active()
deep, switch = session.deep, session.switch
blocks, extra, clock, end = [], [], time.thread_time_ns, time.monotonic() + seconds
while time.monotonic() < end or len(blocks) < 8:
    for is_on in (True, False):
        # A block with deep mode has one sampled step, in its middle.
        deep._next = switch.step + deep._every // 2
        switch.visit = deep._next - 1 if is_on else 2**62
        times = []
        for _ in range(deep._every if is_on else len(blocks[-1][1])):
            sampled, began = switch.layers is not None, clock()
            step()
            times.append(clock() - began)
            if sampled:
                extra.append(times[-1])
                switch.visit = 2**62
        blocks.append((is_on, times))
usual = statistics.median(t for on, times in blocks if not on for t in times)
middle = [statistics.median(times) for _, times in blocks]
print(json.dumps({"step_us": usual / 1e3, "every": deep._every,
                  "sample_us": [(t - usual) / 1e3 for t in extra],
                  "others": [a / b - 1 for a, b in zip(middle[::2], middle[1::2])],
                  "said_us": statistics.median(deep._costs) / 1e3}))
"""
KINDS = {
    "small": "5 layers",
    "many": "200 layers in a ModuleList",
    "transformer": "4 transformer layers",
    "checkpointed": "the same, checkpointed",
}


def measure(kind: str, seconds: float) -> dict[str, Any]:
    """One training under `traceml deep`."""
    with tempfile.TemporaryDirectory() as folder:
        script = os.path.join(folder, "train.py")
        with open(script, "w") as file:
            file.write(SCRIPT)
        command = [sys.executable, "-m", "traceml", "deep", "--quiet", "train.py", kind, str(seconds)]
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """The lower quartile, the median, the upper quartile."""
    low, middle, high = statistics.quantiles(values, n=4)
    return low, middle, high


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    seconds = parser.parse_args().seconds
    print("| model | step | every | one sample | as estimated | added | other steps |")
    print("|---|---|---|---|---|---|---|")
    for kind, name in KINDS.items():
        found = measure(kind, seconds)
        low, sample, high = quartiles(found["sample_us"])
        period = found["every"] * found["step_us"]
        shares = " to ".join(f"{100 * share:+.1f} %" for share in quartiles(found["others"])[::2])
        print(
            f"| {name} | {found['step_us']:.0f} µs | {found['every']} "
            f"| {sample:.0f} µs ({low:.0f} to {high:.0f}) | {found['said_us']:.0f} µs "
            f"| {100 * sample / period:.2f} % "
            f"({100 * low / period:.2f} to {100 * high / period:.2f}) "
            f"| {100 * statistics.median(found['others']):+.1f} % ({shares}) |",
            flush=True,
        )


if __name__ == "__main__":
    main()
