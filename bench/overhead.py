"""What TraceML costs: plain and traced runs of the same script, interleaved.

    python bench/overhead.py [--pairs 9] [--write docs/performance.md]

For steps of about 0.3, 3 and 30 ms: the added microseconds per step. Each run reports the median of its step
times. The difference within a pair is one observation; the tables show the median and quartiles over pairs.
Also measured: the wall time added at the start and end of a run, and the CPU and memory of the monitor.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from traceml.capture.slots import ROW
from traceml.recording.layout import padded_row_size
from traceml.recording.writer import CHUNK_BYTES

SCRIPT = """
import json, statistics, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(1)
steps, width, repeat = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
class Data(Dataset):
    def __init__(self):
        self.x, self.y = torch.randn(16, width), torch.randn(16, 1)
    def __len__(self):
        return steps
    def __getitem__(self, index):
        return self.x, self.y
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(width, width) for _ in range(repeat)], nn.Linear(width, 1))
    def forward(self, x):
        return self.layers(x)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
switch = None
if len(sys.argv) > 4:  # switch recording off and on every few steps
    from traceml.capture import install
    switch, thread = install.active().switch, install.active().switch.thread
times, off, skip = [], [], 0
before = time.perf_counter_ns()
for index, (x, y) in enumerate(DataLoader(Data(), batch_size=None), 1):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    now = time.perf_counter_ns()
    if skip:
        skip -= 1
    else:
        (times if switch is None or switch.thread == thread else off).append(now - before)
    if switch is not None and index > 100 and index % 20 == 0:
        switch.thread = -1 if switch.thread == thread else thread
        switch.restart(switch.clock())
        skip = 2
    before = time.perf_counter_ns()
def report(values):
    kept = sorted(values[len(values) // 10:])
    return {"median": statistics.median(kept), "p10": kept[len(kept) // 10]}
print(json.dumps({**report(times), "steps": steps, "off": report(off) if off else None}))
"""
PARTS = """
import json, statistics, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from traceml.capture import install
torch.set_num_threads(1)
big, model, x = torch.randn(96, 96), nn.Linear(16, 1), torch.randn(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
class Data(Dataset):
    def __len__(self):
        return 1 << 30
    def __getitem__(self, index):
        return x
batches = iter(DataLoader(Data(), batch_size=None))
def step():
    optimizer.zero_grad()
    model(next(batches)).sum().backward()
    optimizer.step()
for _ in range(200):
    step()
session = install.active()
switch, thread = session.switch, session.switch.thread
loss = model(x).sum()
def backward():
    torch.autograd.backward(loss, retain_graph=True)
def no_grad():
    with torch.no_grad():
        model(x)
calls = {"fetch": lambda: next(batches), "forward": lambda: model(x), "forward without gradients": no_grad,
         "backward": backward, "zero_grad": optimizer.zero_grad, "optimizer step and row": optimizer.step}
found = {}
for name, call in calls.items():
    took = {True: [], False: []}
    for index in range(6000):
        on = index // 20 % 2 == 0
        if index % 20 == 0:
            step()  # a step begins in which this call is usual
            switch.thread = thread if on else -1
        big @ big  # something else has the caches, for less than the 0.1 ms from which gaps are watched
        began = time.perf_counter_ns()
        call()
        ended = time.perf_counter_ns()
        if index % 20 > 2:
            took[on].append(ended - began)
        if index % 20 == 19:
            switch.thread = thread
            switch.restart(switch.clock())
    found[name] = (statistics.median(took[True]) - statistics.median(took[False])) / 1e3
print(json.dumps(found))
"""
LOOPS = """
import json, statistics, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
try:
    import traceml
except ImportError:
    traceml = None
torch.set_num_threads(1)
kind, steps = sys.argv[1], int(sys.argv[2])
class Data(Dataset):
    def __len__(self):
        return steps * 4
    def __getitem__(self, index):
        return torch.ones(16, 64)
model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
def update(x):
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
def plain(batches):
    update(next(batches))
def blocks(batches):
    x = next(batches)
    with traceml.trace_step(model):
        update(x)
def accumulation(batches):
    for _ in range(4):
        model(next(batches)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
def rollouts(batches):
    with torch.no_grad():
        for _ in range(100):
            model(torch.ones(1, 64))
    update(torch.ones(16, 64))
took, batches = [], iter(DataLoader(Data(), batch_size=None))
for _ in range(steps):
    began = time.perf_counter_ns()
    globals()[kind](batches)
    took.append(time.perf_counter_ns() - began)
kept = sorted(took[steps // 5:])
print(json.dumps({"median": statistics.median(kept), "p10": kept[len(kept) // 10]}))
"""
KINDS = (
    ("plain loop", "plain", 3000),
    ("`trace_step`", "blocks", 3000),
    ("4 micro-batches", "accumulation", 1500),
    ("100 rollout passes", "rollouts", 300),
)
SIZES = (("0.3 ms", 4000, 16, 2), ("3 ms", 900, 384, 3), ("30 ms", 120, 1024, 5))


def run(traced: bool, folder: Path, words: list[str], run_name: str) -> tuple[dict[str, Any], float]:
    """Run the script once; returns its report and its wall time."""
    command = [sys.executable, "script.py", *words]
    if traced:
        command = [sys.executable, "-m", "traceml", "run", "--quiet", "--run-name", run_name, *command]
    began = time.perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return json.loads(done.stdout), time.perf_counter() - began


def measure_inside(repeats: int, folder: Path) -> list[str]:
    """Rows of the second table: recording on and off, switched every 20 steps within one process."""
    rows = []
    for name, steps, width, repeat in SIZES:
        added, calm = [], []
        for _ in range(repeats):
            words = [str(2 * steps), str(width), str(repeat), "toggle"]
            found, _ = run(True, folder, words, f"inside-{name.replace(' ', '')}-{len(added)}")
            off = found["off"]
            assert isinstance(off, dict)
            added.append((found["median"] - off["median"]) / 1e3)
            calm.append((found["p10"] - off["p10"]) / 1e3)
        middle, low, high = quartiles(added)
        spread = f"{low:+.1f} .. {high:+.1f} µs"
        rows.append(f"| {name} | {middle:+.1f} µs | {spread} | {statistics.median(calm):+.1f} µs |")
        print(rows[-1], flush=True)
    return rows


def measure_parts(folder: Path) -> list[str]:
    """Rows of the table by part: recording on and off around one kind of call."""
    (folder / "parts.py").write_text(PARTS)
    command = [sys.executable, "-m", "traceml", "run", "--quiet", "--run-name", "parts", "parts.py"]
    runs = [
        json.loads(
            subprocess.run([*command, "--overwrite"], cwd=folder, capture_output=True, check=True).stdout
        )
        for _ in range(3)
    ]
    return [f"| {name} | {statistics.median(run[name] for run in runs):+.2f} µs |" for name in runs[0]]


def measure_kinds(pairs: int, folder: Path) -> list[str]:
    """Rows of the table by kind of loop: what a user would measure, and what the summary says."""
    (folder / "loops.py").write_text(LOOPS)
    rows = []
    for name, kind, steps in KINDS:
        added, own = [], []
        for pair in range(pairs):
            found = {}
            for traced in (False, True) if pair % 2 else (True, False):
                command = [sys.executable, "loops.py", kind, str(steps)]
                if traced:
                    words = ["run", "--quiet", "--run-name", f"{kind}-{pair}"]
                    command = [sys.executable, "-m", "traceml", *words, *command]
                done = subprocess.run(command, cwd=folder, capture_output=True, check=True)
                found[traced] = json.loads(done.stdout)
            added.append((found[True]["p10"] - found[False]["p10"]) / 1e3)
            path = folder / "logs" / f"{kind}-{pair}" / "final_summary.json"
            own.append(json.loads(path.read_text())["overhead"]["us_per_step"])
        middle, low, high = quartiles(added)
        spread = f"{low:+.1f} .. {high:+.1f} µs"
        rows.append(f"| {name} | {middle:+.1f} µs | {spread} | {statistics.median(own):.1f} µs |")
        print(rows[-1], flush=True)
    return rows


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """(median, lower quartile, upper quartile)."""
    low, middle, high = statistics.quantiles(values, n=4)
    return middle, low, high


def measure_steps(pairs: int, folder: Path) -> list[str]:
    """Rows of the first table: added microseconds per step for each size."""
    rows = []
    for name, steps, width, repeat in SIZES:
        added, fast, plain_us, own = [], [], [], []
        for pair in range(pairs):
            words = [str(steps), str(width), str(repeat)]
            order = (False, True) if pair % 2 == 0 else (True, False)
            found = {}
            for traced in order:
                found[traced], _ = run(traced, folder, words, f"{name.replace(' ', '')}-{pair}")
            added.append((found[True]["median"] - found[False]["median"]) / 1e3)
            fast.append((found[True]["p10"] - found[False]["p10"]) / 1e3)
            plain_us.append(found[False]["median"] / 1e3)
            path = folder / "logs" / f"{name.replace(' ', '')}-{pair}" / "final_summary.json"
            own.append(json.loads(path.read_text())["overhead"]["us_per_step"])
        middle, low, high = quartiles(added)
        undisturbed, _, _ = quartiles(fast)
        plain = statistics.median(plain_us)
        rows.append(
            f"| {name} | {plain:.0f} µs | {middle:+.1f} µs | {low:+.1f} .. {high:+.1f} µs "
            f"| {undisturbed:+.1f} µs | {statistics.median(own):.1f} µs |"
        )
        print(rows[-1], flush=True)
    return rows


def measure_ends(pairs: int, folder: Path) -> list[str]:
    """Wall time added at the start and end of a run, and what the monitor uses."""
    added, cpu, rss, size = [], [], [], []
    words = ["200", "256", "2"]
    for pair in range(pairs):
        _, plain_s = run(False, folder, words, "")
        _, traced_s = run(True, folder, words, f"ends-{pair}")
        added.append(traced_s - plain_s)
        summary = json.loads((folder / "logs" / f"ends-{pair}" / "final_summary.json").read_text())
        cpu.append(summary["overhead"]["monitor_cpu_s"])
        rss.append(summary["overhead"]["monitor_rss_bytes"] / 1e6)
        (steps,) = (folder / "logs" / f"ends-{pair}").glob("recording/rank-*.steps")
        size.append(steps.stat().st_size)
    middle, low, high = quartiles(added)
    return [
        f"| wall time added at start and end | {middle:.2f} s ({low:.2f} .. {high:.2f}) |",
        f"| monitor, CPU time for such a run | {statistics.median(cpu):.2f} s |",
        f"| monitor, peak resident memory | {statistics.median(rss):.0f} MB |",
        f"| recording | {padded_row_size(ROW.size)} bytes per step, in chunks of {CHUNK_BYTES // 1024} KiB |",
    ]


def monitor_load(folder: Path, seconds: float) -> str:
    """CPU use of the monitor during a run, measured from outside."""
    steps = int(seconds * 200)
    command = [sys.executable, "-m", "traceml", "run", "--quiet", "--run-name", "load"]
    command += [sys.executable, "script.py", str(steps), "512", "6"]
    running = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
    time.sleep(6)
    before, began = _cpu_seconds(running.pid), time.perf_counter()
    time.sleep(seconds / 3)
    share = (_cpu_seconds(running.pid) - before) / (time.perf_counter() - began)
    running.wait()
    return f"| monitor, share of a core while one rank trains | {100 * share:.1f} % |"


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def conditions() -> str:
    """The machine and versions, as one line."""
    import torch

    load = os.getloadavg()[0]
    return (
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores (shared, virtual; load {load:.1f} at the end), "
        f"Python {platform.python_version()}, torch {torch.__version__}, one torch thread."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--write", type=Path, help="write the tables into this file, between its markers")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "script.py").write_text(SCRIPT)
        parts, kinds = measure_parts(folder), measure_kinds(given.pairs, folder)
        inside = measure_inside(5, folder)
        steps = measure_steps(given.pairs, folder)
        ends = measure_ends(given.pairs, folder)
        ends.append(monitor_load(folder, 12))
    text = "\n".join(
        [
            f"Measured by `bench/overhead.py --pairs {given.pairs}`: {conditions()}",
            "",
            "| step | plain | added, median | quartiles over pairs | fastest tenth (p10) | own estimate |",
            "|---|---|---|---|---|---|",
            *steps,
            "",
            "Recording switched off and on every 20 steps within one process (5 processes per row):",
            "",
            "| step | added, median | quartiles over processes | fastest tenth (p10) |",
            "|---|---|---|---|",
            *inside,
            "",
            "By kind of loop, the fastest tenth of the steps of plain and traced processes in turn:",
            "",
            "| loop | added | quartiles over pairs | own estimate |",
            "|---|---|---|---|",
            *kinds,
            "",
            "By part, recording switched off and on around one kind of call, after a matrix product:",
            "",
            "| call | added, median |",
            "|---|---|",
            *parts,
            "",
            "| what | measured |",
            "|---|---|",
            *ends,
        ]
    )
    print(text)
    if given.write:
        before, rest = given.write.read_text().split("<!-- overhead begin -->")
        after = rest.split("<!-- overhead end -->")[1]
        given.write.write_text(f"{before}<!-- overhead begin -->\n{text}\n<!-- overhead end -->{after}")


if __name__ == "__main__":
    main()
