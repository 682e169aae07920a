"""How the monitor's work grows with the number of ranks, and how much disk a million steps take.

    python bench/scale.py [--ranks 8 64 512 4096] [--ticks 7] [--write docs/performance.md]

Synthetic recordings (bench/synthetic.py: eight ranks per machine, one rank slow) go through tail, align,
diagnose and summary, as in a real run. Each number of ranks is measured in its own processes, so that the
peak memory is its own too. Also measured: the relay with 64 simulated nodes, and rolling up a million steps.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from synthetic import SyntheticRun, dtype_of

from traceml.analyze.align import align_ranks
from traceml.analyze.recordings import find_attempts
from traceml.analyze.summarize import summarize
from traceml.analyze.window_arrays import Before
from traceml.monitor.result import encode
from traceml.recording.rollup import KEEP_ROWS, Roller
from traceml.recording.tail import Tail, live_tail
from traceml.schema import catalog as c
from traceml.schema.recorded import RunFacts

FACTS = RunFacts("scale", begin_ns=0, end_ns=10**14)
STEPS_PER_TICK = 10
SLOW_RANK = 3
BEGIN, END = "<!-- scale begin -->", "<!-- scale end -->"


@dataclass(frozen=True, slots=True)
class Found:
    """What was measured for one number of ranks."""

    ranks: int
    rows: int
    ingest_s: float
    tick_s: float
    fastest_s: float
    read_s: float
    analyze_s: float
    encode_s: float
    cpu_s: float
    rss_bytes: int
    json_bytes: int
    verdict: str


def peak_rss_bytes() -> int:
    """Peak memory of this process."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def ingest(run_dir: Path) -> dict[str, float]:
    """Read every row of every rank into one window."""
    began = time.perf_counter()
    window = align_ranks(find_attempts(Tail(run_dir, most_cells=10**9).read().ranks).chosen)
    took_s = time.perf_counter() - began
    return {"ingest_s": took_s, "rows": len(window.ranks) * window.total_steps}


def tick(run_dir: Path, run: SyntheticRun, ticks: int) -> dict[str, object]:
    """What a live view does at each update: read new rows, summarize the newest steps."""
    tail, before = live_tail(run_dir), Before()
    parts: list[tuple[float, float, float, float]] = []
    for at in range(ticks + 2):
        run.append(STEPS_PER_TICK)
        cpu, began = time.process_time(), time.perf_counter()
        recording = tail.read()
        read = time.perf_counter()
        summary = summarize(recording, FACTS, final=False, before=before)
        analyzed = time.perf_counter()
        data = encode(summary)
        done = time.perf_counter()
        if at >= 2:  # the first update reads the whole run, the second frees memory
            parts.append((read - began, analyzed - read, done - analyzed, time.process_time() - cpu))
    first = summary.primary_diagnosis
    read_s, analyze_s, encode_s, cpu_s = (statistics.median(column) for column in zip(*parts, strict=True))
    return {
        "tick_s": statistics.median(sum(p[:3]) for p in parts),
        "fastest_s": min(sum(p[:3]) for p in parts),
        "read_s": read_s,
        "analyze_s": analyze_s,
        "encode_s": encode_s,
        "cpu_s": cpu_s,
        "rss_bytes": peak_rss_bytes(),
        "json_bytes": len(data),
        "verdict": f"{first.status} r{first.ranks[0]}" if first.ranks else first.status,
    }


def child(what: str, run_dir: Path, ranks: int, steps: int, ticks: int) -> dict[str, object]:
    """One measurement in its own process."""
    words = [what, str(run_dir), str(ranks), str(steps), str(ticks)]
    done = subprocess.run([sys.executable, __file__, "--child", *words], capture_output=True, check=True)
    return dict(json.loads(done.stdout))


def be_child(words: list[str]) -> None:
    """What the process started by `child` does."""
    what, run_dir, ranks, steps, ticks = words[0], Path(words[1]), *map(int, words[2:])
    if what == "ingest":
        print(json.dumps(ingest(run_dir)))
        return
    run = SyntheticRun(run_dir, ranks, slow_rank=SLOW_RANK, steps=steps, is_there=True)
    print(json.dumps(tick(run_dir, run, ticks)))


def measure(ranks: int, ticks: int, place: Path) -> Found:
    """Measure one number of ranks."""
    run_dir = place / f"{ranks}"
    steps = max(400, 400_000 // ranks)
    run = SyntheticRun(run_dir, ranks, slow_rank=SLOW_RANK)
    run.append(steps)
    run.sample(20)
    looks = sorted((child("ingest", run_dir, ranks, steps, 0) for _ in range(5)), key=lambda f: f["ingest_s"])
    found = Found(ranks=ranks, **looks[2], **child("tick", run_dir, ranks, steps, ticks))  # type: ignore[arg-type]
    shutil.rmtree(run_dir)
    print(json.dumps(asdict(found)), flush=True)
    return found


def table(found: list[Found]) -> list[str]:
    """The table of updates, and how they grow with the ranks."""
    head = ["ranks", "rank-steps/s into the window", "update, median (fastest)", "read + analyze + encode"]
    lines = [_line(*head, "CPU per update", "peak memory", "summary", "verdict"), _line(*["---"] * 8)]
    lines += [
        _line(
            f"{f.ranks:,}",
            f"{f.rows / f.ingest_s / 1e6:.1f} million",
            f"{f.tick_s:.3f} s ({f.fastest_s:.3f} s)",
            f"{f.read_s:.3f} + {f.analyze_s:.3f} + {f.encode_s:.3f} s",
            f"{f.cpu_s:.3f} s",
            f"{f.rss_bytes / 1e6:.0f} MB",
            f"{f.json_bytes / 1e6:.1f} MB",
            f.verdict,
        )
        for f in found
    ]
    lines += ["", _line("growth", "ranks", "update (median)", "memory"), _line(*["---"] * 4)]
    lines += [
        _line(
            f"{a.ranks:,} to {b.ranks:,}",
            f"x {b.ranks / a.ranks:.0f}",
            f"x {b.tick_s / a.tick_s:.1f}",
            f"x {b.rss_bytes / a.rss_bytes:.1f}",
        )
        for a, b in pairwise(found)
    ]
    return lines


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def relay_lines(nodes: int) -> list[str]:
    """The relay with many nodes at once, measured by `bench/relay.py`."""
    from relay import measure as measure_relay

    found = measure_relay(nodes=nodes, ranks=8, rows=500, rate=20, seconds=5)
    share, per_s = found.steady_cpu_s / found.steady_s, found.backlog_rows / found.backlog_s
    per_row_us = 1e6 * found.backlog_cpu_s / found.backlog_rows
    return [
        _line(
            f"relay, backlog from {nodes} nodes of 8 ranks",
            f"{per_s:,.0f} rows/s, {per_row_us:.1f} µs of node 0's CPU per row "
            "(one process simulates all nodes on the same cores)",
        ),
        _line(
            f"relay, {found.steady_rows_per_s:,.0f} rows/s steady from {nodes} nodes",
            f"{100 * share:.0f} % of a core on node 0, {found.rss_bytes / 1e6:.0f} MB",
        ),
    ]


def rollup_lines(place: Path) -> list[str]:
    """Roll up a million steps of one rank while they are recorded."""
    run_dir = place / "long"
    run = SyntheticRun(run_dir, 1)
    roller = Roller(run_dir, every_s=0)
    took_s, most, rolled = 0.0, 0, 0
    for at in range(20):
        run.append(50_000)
        began = time.perf_counter()
        rolled += roller.maybe_roll(float(at))
        took_s += time.perf_counter() - began
        most = max(most, sum(p.stat().st_blocks * 512 for p in (run_dir / "recording").iterdir()))
    written = run.steps * dtype_of(c.STEP_COLUMNS).itemsize
    shutil.rmtree(run_dir)
    return [
        _line(
            f"roll-up of {run.steps:,} steps of one rank, keeping the newest {KEEP_ROWS:,}",
            f"{rolled / took_s / 1e6:.1f} million rows/s; at most {most / 1e6:.0f} MB on disk "
            f"instead of {written / 1e6:.0f} MB",
        )
    ]


def main() -> None:
    """Measure and print, and with --write update the docs."""
    if sys.argv[1:2] == ["--child"]:
        be_child(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 64, 512, 4096])
    parser.add_argument("--ticks", type=int, default=7)
    parser.add_argument("--nodes", type=int, default=64, help="nodes of the relay; 0 skips it")
    parser.add_argument("--write", type=Path, help="write the tables into this file, between its markers")
    given = parser.parse_args()
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory, prefix="traceml-scale-") as name:
        found = [measure(ranks, given.ticks, Path(name)) for ranks in given.ranks]
    with tempfile.TemporaryDirectory(prefix="traceml-scale-") as name:
        more = rollup_lines(Path(name))
    if given.nodes:
        more += relay_lines(given.nodes)
    load = os.getloadavg()[0]
    text = "\n".join(
        [
            f"Measured by `bench/scale.py`: {time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores "
            f"(shared, virtual; load {load:.1f} at the end), "
            f"Python {platform.python_version()}, NumPy {np.__version__}.",
            "",
            *table(found),
            "",
            "| what | measured |",
            "|---|---|",
            *more,
        ]
    )
    print(text)
    if given.write:
        before, rest = given.write.read_text().split(BEGIN)
        after = rest.split(END)[1]
        given.write.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


if __name__ == "__main__":
    main()
