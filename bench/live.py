"""What the live views cost, and how soon they have a verdict: 8 ranks, 20 steps per second each.

    python bench/live.py [--ranks 8] [--seconds 20]

A real run on a pseudo-terminal of 120x40 that is read all the time. CPU time and memory are those that the
kernel reports for the monitor and for the view, once all ranks train. Wanted: together less than 10 % of a
core and 150 MB, and a verdict within 3 s of the 20th step.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

LAUNCHER = """
import os, subprocess, sys
ranks = int(sys.argv[1])
def one(rank):
    who = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    return subprocess.Popen([sys.executable, "rank.py", sys.argv[2]],
                            env={**os.environ, **{k: str(v) for k, v in who.items()}})
sys.exit(max(p.wait() for p in [one(rank) for rank in range(ranks)]))
"""
RANK = """
import os, sys, time, torch
from torch import nn
torch.set_num_threads(1)
model, x = nn.Linear(32, 32), torch.randn(8, 32)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
open(f"up-{os.environ['RANK']}", "w").close()
while len([n for n in os.listdir(".") if n.startswith("up-")]) < int(os.environ["WORLD_SIZE"]):
    time.sleep(0.05)
for step in range(int(float(sys.argv[1]) * 20)):
    if step == 20 and os.environ["RANK"] == "0":
        with open("twentieth.new", "w") as file:
            file.write(repr(time.monotonic()))
        os.rename("twentieth.new", "twentieth")
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
    time.sleep(0.05)
"""
VERDICT = re.compile(rb"since step")
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Screen:
    """Reads what the run draws, and notes when a text first appears."""

    master: int
    seen: dict[str, float] = field(default_factory=dict)
    tail: bytes = b""
    bytes_read: int = 0

    def read(self) -> None:
        while True:
            try:
                if select.select([self.master], [], [], 0.05)[0]:
                    data = os.read(self.master, 65536)
                    self.bytes_read += len(data)
                    self.tail = (self.tail + data)[-4096:]
                    if VERDICT.search(self.tail):
                        self.seen.setdefault("verdict", time.monotonic())
            except OSError:
                return


def cpu_s(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def rss_mb(pid: int) -> float:
    """Resident memory; and PSS, which counts shared pages once."""
    found = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(re.findall(r"^Pss:\s+(\d+)", found, re.MULTILINE)[0]) / 1e3


def view_of(monitor: int) -> int:
    """The process of the view: the monitor's child that runs `traceml watch`."""
    children = Path(f"/proc/{monitor}/task/{monitor}/children").read_text().split()
    for child in map(int, children):
        if b"\0watch\0" in Path(f"/proc/{child}/cmdline").read_bytes():
            return child
    return 0


def measure(ranks: int, seconds: float) -> list[tuple[str, str]]:
    folder = Path(tempfile.mkdtemp(prefix="traceml-live-"))
    (folder / "launch.py").write_text(LAUNCHER)
    (folder / "rank.py").write_text(RANK)
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))

    def lead() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    words = ["run", "--mode=cli", "--run-name", "bench", "launch.py", str(ranks), str(seconds + 15)]
    process = subprocess.Popen(
        [sys.executable, "-m", "traceml", *words],
        cwd=folder,
        env={**os.environ, "TERM": "xterm-256color", "OMP_NUM_THREADS": "1", "LC_ALL": "C.UTF-8"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
        preexec_fn=lead,  # noqa: PLW1509
    )
    os.close(slave)
    screen = Screen(master)
    reader = threading.Thread(target=screen.read, daemon=True)
    reader.start()
    while not (folder / "twentieth").exists():
        time.sleep(0.05)
        assert process.poll() is None, screen.tail.decode(errors="replace")
    twentieth = float((folder / "twentieth").read_text())
    time.sleep(5)  # until everything is imported
    pids = {"monitor": process.pid, "terminal view": view_of(process.pid)}
    assert pids["terminal view"], "the view is not there"
    before = {name: (cpu_s(pid), time.monotonic()) for name, pid in pids.items()}
    drawn = screen.bytes_read
    time.sleep(seconds)
    rows, total_cpu, total_mb = [], 0.0, 0.0
    for name, pid in pids.items():
        used, at = before[name]
        cpu, memory = 100 * (cpu_s(pid) - used) / (time.monotonic() - at), rss_mb(pid)
        total_cpu, total_mb = total_cpu + cpu, total_mb + memory
        rows.append((name, f"{cpu:.1f} % of a core, {memory:.0f} MB"))
    rows.append(("monitor and terminal view", f"{total_cpu:.1f} % of a core, {total_mb:.0f} MB"))
    rows.append(("drawn", f"{(screen.bytes_read - drawn) / seconds / 1e3:.1f} kB/s"))
    first = screen.seen.get("verdict")
    rows.append(("first verdict after step 20", f"{first - twentieth:.1f} s" if first else "none"))
    process.terminate()
    process.wait(60)
    shutil.rmtree(folder)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=20)
    given = parser.parse_args()
    print(f"{given.ranks} ranks, 20 steps/s each, {given.seconds:.0f} s")
    for name, value in measure(given.ranks, given.seconds):
        print(f"  {name:<32}{value}")


if __name__ == "__main__":
    main()
