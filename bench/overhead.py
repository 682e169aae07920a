"""What TraceML costs a training: recording on and off, plain and traced runs, start and end.

    python bench/overhead.py [--seconds 20] [--pairs 12] [--write docs/performance.md]

The loops are in loops.py. Everything that is compared alternates within one run of this program.
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

LOOPS = str(Path(__file__).with_name("loops.py"))
KINDS = (
    ("plain loop", "plain"),
    ("with `trace_step`", "trace_step"),
    ("larger model", "large"),
    ("4 micro-batches", "accumulation"),
    ("100 rollout passes", "rollouts"),
    ("DDP, one rank", "ddp"),
)
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


def run(folder: Path, run_name: str | None, *command: str) -> Any:
    """Run a script, traced if it gets a name; returns what it printed."""
    traced = ["-m", "traceml", "run", "--quiet", "--overwrite", "--run-name", run_name] if run_name else []
    words = [sys.executable, *traced, *((sys.executable,) if run_name else ()), *command]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, check=True)
    return json.loads(done.stdout)


def own_estimate(folder: Path, run_name: str) -> float:
    """What the summary says about its own cost, in microseconds per step."""
    path = folder / "logs" / run_name / "final_summary.json"
    return float(json.loads(path.read_text())["overhead"]["us_per_step"])


def command_of(kind: str) -> list[str]:
    """The loop of this kind, with its launcher."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node=1"] if kind == "ddp" else []
    return [*launcher, LOOPS, kind]


def measure_on_and_off(
    folder: Path, seconds: float, processes: int = 3
) -> tuple[list[str], dict[str, float]]:
    """Rows of the first table: recording on and off within a process, the median of a few processes; and
    what was added per step, in microseconds."""
    rows, added = [], {}
    for name, kind in KINDS:
        found = [run(folder, kind, *command_of(kind), str(seconds), "alternate") for _ in range(processes)]
        middle = sorted(found, key=lambda one: one["added_us"])[processes // 2]
        added[kind] = middle["added_us"]
        low, high = middle["interval_us"]
        cells = (
            name,
            f"{middle['step_us']:.0f} µs",
            f"{middle['added_us']:+.1f} µs",
            f"{low:+.1f} .. {high:+.1f} µs",
            f"{middle['fastest_us']:+.1f} µs",
            ", ".join(f"{one['added_us']:+.1f}" for one in found),
            f"{middle['wrapper_us']:+.1f} µs" if middle["wrapper_us"] else "",
        )
        rows.append(f"| {' | '.join(cells)} |")
        print(rows[-1], flush=True)
    return rows, added


def measure_processes(folder: Path, pairs: int, on_and_off: dict[str, float]) -> list[str]:
    """Rows of the second table: plain and traced processes in turn, and what the summary says."""
    rows = []
    for name, kind in KINDS:
        tenth, middle, own = [], [], []
        for pair in range(pairs):
            found = {}
            for traced in (False, True) if pair % 2 else (True, False):
                found[traced] = run(folder, kind if traced else None, *command_of(kind), "2")
            tenth.append(found[True]["fastest_tenth_us"] - found[False]["fastest_tenth_us"])
            middle.append(found[True]["median_us"] - found[False]["median_us"])
            own.append(own_estimate(folder, kind))
        estimate = statistics.median(own)
        ratios = (estimate / measured for measured in (on_and_off[kind], statistics.median(middle)))
        cells = (name, spread(tenth), spread(middle), f"{estimate:.1f} µs", *(f"{r:.2f}" for r in ratios))
        rows.append(f"| {' | '.join(cells)} |")
        print(rows[-1], flush=True)
    return rows


def spread(values: list[float]) -> str:
    """Median and quartiles."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:+.1f} µs ({low:+.1f} .. {high:+.1f})"


def measure_parts(folder: Path) -> list[str]:
    """Rows of the table by part: recording on and off around one kind of call."""
    (folder / "parts.py").write_text(PARTS)
    runs = [run(folder, "parts", "parts.py") for _ in range(3)]
    return [f"| {name} | {statistics.median(run[name] for run in runs):+.2f} µs |" for name in runs[0]]


def measure_ends(folder: Path, pairs: int) -> list[str]:
    """Wall time added at the start and end of a run, and what the monitor uses."""
    added, cpu, rss = [], [], []
    for pair in range(pairs):
        took = {}
        for traced in (False, True) if pair % 2 else (True, False):
            began = time.perf_counter()
            run(folder, "ends" if traced else None, LOOPS, "plain", "0")  # always as many steps
            took[traced] = time.perf_counter() - began
        added.append(took[True] - took[False])
        summary = json.loads((folder / "logs" / "ends" / "final_summary.json").read_text())
        cpu.append(summary["overhead"]["monitor_cpu_s"])
        rss.append(summary["overhead"]["monitor_rss_bytes"] / 1e6)
    low, middle, high = statistics.quantiles(added, n=4)
    return [
        f"| wall time added at start and end | {middle:.2f} s ({low:.2f} .. {high:.2f}) |",
        f"| monitor, CPU time for such a run | {statistics.median(cpu):.2f} s |",
        f"| monitor, peak resident memory | {statistics.median(rss):.0f} MB |",
        f"| monitor, share of a core while one rank trains | {100 * monitor_load(folder):.1f} % |",
        f"| recording | {padded_row_size(ROW.size)} bytes per step, in chunks of {CHUNK_BYTES // 1024} KiB |",
    ]


def monitor_load(folder: Path) -> float:
    """The share of a core that the monitor uses during a run, measured from outside."""
    command = [sys.executable, "-m", "traceml", "run", "--quiet", "--run-name", "load"]
    running = subprocess.Popen([*command, LOOPS, "large", "12"], cwd=folder, stdout=subprocess.DEVNULL)
    time.sleep(6)
    before, began = _cpu_seconds(running.pid), time.perf_counter()
    time.sleep(6)
    share = (_cpu_seconds(running.pid) - before) / (time.perf_counter() - began)
    running.wait()
    return share


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def conditions(load: float) -> str:
    """The machine and versions, as one line."""
    import torch

    reads = 200_000
    began = time.perf_counter_ns()
    for _ in range(reads):
        time.perf_counter_ns()
    clock_ns = (time.perf_counter_ns() - began) / reads
    return (
        f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores (virtual; load {load:.1f} at first), Python "
        f"{platform.python_version()}, torch {torch.__version__}, one torch thread. "
        f"Reading the clock from Python takes {clock_ns:.0f} ns here."
    )


def table(columns: str, rows: list[str]) -> list[str]:
    """A Markdown table and the empty line after it."""
    return [f"| {columns} |", "|---" * (columns.count("|") + 1) + "|", *rows, ""]


def main() -> None:
    """Measure everything; print it or write it into the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="of each process of the first table")
    parser.add_argument("--pairs", type=int, default=12, help="of plain and traced processes")
    parser.add_argument("--write", type=Path, help="write the tables into this file, between its markers")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        on_and_off, added = measure_on_and_off(folder, given.seconds)
        processes = measure_processes(folder, given.pairs, added)
        parts, ends = measure_parts(folder), measure_ends(folder, given.pairs)
    text = "\n".join(
        [
            f"Measured by `bench/overhead.py --seconds {given.seconds:g} --pairs {given.pairs}`: "
            f"{conditions(load)}",
            "",
            "Recording on and off within one process, the middle one of three processes:",
            "",
            *table(
                "loop | step | added per step | 95 % interval | fastest of 8 steps | each process "
                "| the same calls in an empty Python wrapper",
                on_and_off,
            ),
            f"Plain and traced in turn, {given.pairs} pairs of processes (median and quartiles):",
            "",
            *table(
                "loop | added to the fastest tenth | added to the median step | own estimate "
                "| of on and off | of processes in turn",
                processes,
            ),
            "By part, recording on and off around one kind of call, after a matrix product:",
            "",
            *table("call | added, median", parts),
            *table("what | measured", ends),
        ]
    )
    print(text)
    if given.write:
        before, rest = given.write.read_text().split("<!-- overhead begin -->")
        after = rest.split("<!-- overhead end -->")[1]
        given.write.write_text(f"{before}<!-- overhead begin -->\n{text}<!-- overhead end -->{after}")


if __name__ == "__main__":
    main()
