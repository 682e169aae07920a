"""What the dashboard costs and how soon it knows: `traceml run --mode=dashboard` with a page open.

    python bench/live_server.py [cpu] [verdict] [training] [ranks]

cpu: CPU of monitor and server at 8 ranks × 20 steps/s, with one page open and with none.
verdict: seconds from the 20th step until a page has a verdict.
training: step time with a page open and without, in turns of a few seconds within one run.
ranks: seconds from a new step of 4,096 simulated ranks until a page has it, and the server's memory.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

SRC = Path(__file__).resolve().parents[1] / "src"
TRAIN = """
import json, os, sys, time, torch
from torch import nn
torch.set_num_threads(1)
rank, steps, pause = int(os.environ.get("RANK", 0)), int(sys.argv[1]), float(sys.argv[2])
model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(int(sys.argv[3]))], nn.Linear(256, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
x, times = torch.randn(16, 256), []
for step in range(1, steps + 1):
    began = time.monotonic()
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
    if pause:
        time.sleep(pause)
    ended = time.monotonic()
    times.append((ended, ended - began))
    if rank == 0 and step == 20:
        open("at20.new", "w").write(repr(ended))
        os.rename("at20.new", "at20")
if rank == 0:
    json.dump(times, open("times.json", "w"))
"""


class Page:
    """A browser's tab, as far as the server can tell: it reads the stream of a run."""

    def __init__(self, url: str, run: str) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120)
        self._connection.request("GET", f"{parts.path}api/run/{run}/events")
        self._answer = self._connection.getresponse()

    def messages(self) -> Iterator[dict[str, Any]]:
        while line := self._answer.readline():
            if line.startswith(b'data: {"live'):
                yield json.loads(line.removeprefix(b"data: "))

    def close(self) -> None:
        self._answer.close()
        self._connection.close()


class Run:
    """`traceml run --mode=dashboard` on a script in a folder of its own."""

    def __init__(self, folder: Path, *words: str, ranks: int = 1) -> None:
        self.folder = folder
        (folder / "train.py").write_text(TRAIN)
        many = ["--nproc-per-node", str(ranks)] if ranks > 1 else []
        command = [sys.executable, "-m", "traceml", "run", "train.py", "--mode=dashboard", "--run-name", "r"]
        environment = {**os.environ, "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"}
        for name in ("DISPLAY", "WAYLAND_DISPLAY"):
            environment.pop(name, None)
        self.process = subprocess.Popen(
            [*command, *many, "--args", *words],
            cwd=folder,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        self.url = next(
            m[1] for line in self.process.stderr if (m := re.search(r"dashboard: (http\S+)", line))
        )
        threading.Thread(target=self.process.stderr.read, daemon=True).start()
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        self.server = next(int(c) for c in children if b"\0ui\0" in Path(f"/proc/{c}/cmdline").read_bytes())

    def wait_for(self, name: str) -> Path:
        while not (self.folder / name).exists():
            time.sleep(0.002)
        return self.folder / name


def cpu_s(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu(folder: Path, seconds: float = 20.0) -> None:
    run = Run(folder, "3000", "0.048", "1", ranks=8)
    run.wait_for("at20")
    page = Page(run.url, "r")
    threading.Thread(target=_read, args=(page,), daemon=True).start()
    time.sleep(3)
    for label in ("one page", "no page"):
        before, began = (cpu_s(run.process.pid), cpu_s(run.server)), time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - began
        monitor, server = (
            (cpu_s(p) - b) / took for p, b in zip((run.process.pid, run.server), before, strict=True)
        )
        total = monitor + server
        print(
            f"8 ranks x 20 steps/s, {label}: "
            f"monitor {monitor:.1%} + server {server:.1%} = {total:.1%} of a core"
        )
        page.close()
        time.sleep(3)
    status = Path(f"/proc/{run.server}/status").read_text()
    print(f"memory of the server: {int(status.split('VmHWM:')[1].split()[0]) / 1024:.0f} MB at most")
    run.process.terminate()
    run.process.wait()


def verdict(folder: Path, turns: int = 3) -> None:
    for turn in range(turns):
        place = folder / str(turn)
        place.mkdir()
        run = Run(place, "400", "0.02", "1")
        page = Page(run.url, "r")
        known = next(
            time.monotonic()
            for m in page.messages()
            if m["summary"]["primary_diagnosis"]["kind"] != "NO_DATA"
        )
        at20 = float(run.wait_for("at20").read_text())
        print(f"verdict on a page {known - at20:+.2f} s after the 20th step")
        run.process.wait()


def training(folder: Path, turns: int = 12, turn_s: float = 5.0) -> None:
    run = Run(folder, str(int(turns * turn_s / 0.001)), "0", "8")
    run.wait_for("at20")
    spans: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for turn in range(turns):
        is_open = turn % 2 == 0
        page = Page(run.url, "r") if is_open else None
        if page is not None:
            threading.Thread(target=_read, args=(page,), daemon=True).start()
        began = time.monotonic()
        time.sleep(turn_s)
        spans[is_open].append((began + 2, time.monotonic()))  # without what the change itself brings
        if page is not None:
            page.close()
        if run.process.poll() is not None:
            break
    run.process.wait()
    times = json.loads((folder / "times.json").read_text())
    medians: dict[bool, list[float]] = {
        key: [
            statistics.median(s for at, s in times if a < at < b)
            for a, b in value
            if any(a < at < b for at, _ in times)
        ]
        for key, value in spans.items()
    }
    on, off = (statistics.median(medians[key]) * 1e6 for key in (True, False))
    pairs = [(a - b) * 1e6 for a, b in zip(medians[True], medians[False], strict=False)]
    print(
        f"step with a page {on:.0f} us, without {off:.0f} us; median difference of neighbouring turns: "
        f"{statistics.median(pairs):+.0f} us ({', '.join(f'{p:+.0f}' for p in pairs)})"
    )


def _read(page: Page) -> None:
    try:
        for _ in page.messages():
            pass
    except (OSError, ValueError, AttributeError):
        pass  # closed meanwhile


def ranks(folder: Path, count: int = 4096, turns: int = 8) -> None:
    from synthetic import SyntheticRun

    from traceml.runs.liveness import this_process

    run = SyntheticRun(folder / "logs" / "r", count, slow_rank=3)
    run.append(100)
    run.sample(10)
    manifest = {
        "name": "r",
        "status": "running",
        "begin_ns": 0,
        "monitor_pid": os.getpid(),
        "monitor_process": this_process(),
    }
    (run.folder / "manifest.json").write_text(json.dumps(manifest))
    server = subprocess.Popen(
        [sys.executable, "-m", "traceml", "ui", "--no-browser", "--port", "0"],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(SRC)}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert server.stderr is not None
    url = next(m[1] for line in server.stderr if (m := re.search(r"dashboard: (http\S+)", line)))
    began = time.monotonic()
    page = Page(url, "r")
    messages = page.messages()
    size = len(json.dumps(next(messages)))
    print(f"{count} ranks: first message after {time.monotonic() - began:.2f} s, {size / 1e6:.2f} MB")
    took, apart = [], []
    for _ in range(turns):
        run.append(10)
        added = time.monotonic()
        while (message := next(messages))["summary"]["run"]["steps"]["total"] != run.steps:
            pass
        took.append(time.monotonic() - added)
    last = time.monotonic()
    for _ in range(5):
        next(messages)
        apart.append(time.monotonic() - last)
        last = time.monotonic()
    print(f"new steps on the page after {statistics.median(took):.2f} s (at most {max(took):.2f} s)")
    busy = cpu_s(server.pid) / (time.monotonic() - began)
    print(f"messages every {statistics.median(apart):.2f} s; the server uses {busy:.0%} of a core")
    print(f"verdict {message['summary']['primary_diagnosis']['status']}")
    status = Path(f"/proc/{server.pid}/status").read_text()
    print(f"memory of the server: {int(status.split('VmHWM:')[1].split()[0]) / 1024:.0f} MB at most")
    server.terminate()
    server.wait()


ROWS: dict[str, Callable[[Path], None]] = {
    "cpu": cpu,
    "verdict": verdict,
    "training": training,
    "ranks": ranks,
}


if __name__ == "__main__":
    for name in sys.argv[1:] or ROWS:
        with tempfile.TemporaryDirectory() as made:
            ROWS[name](Path(made))
