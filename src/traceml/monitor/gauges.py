"""Samples the machine and the training processes from outside: no sampler runs in a training process."""

import contextlib
import math
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from traceml.monitor.cgroups import CpuGroups, MemoryGroups, MemoryUse
from traceml.monitor.gpus import GpuReading, ReadGpus, gpu_columns, process_gpu_bytes
from traceml.recording.writer import RecordingWriter
from traceml.schema import catalog as c

BUSY_SHARE = 0.1
"""A child that wants a core for a smaller share of the time tells nothing about a lack of cores."""


class Gauges:
    """Writes one system row, and one row per training process, at each `sample`."""

    def __init__(self, recording: Path, read_gpus: ReadGpus) -> None:
        self._read_gpus = read_gpus
        self._system, self._process = (
            RecordingWriter(str(recording / f"{kind}.gauges"), columns, {"kind": kind})
            for kind, columns in (("system", c.SYSTEM_COLUMNS), ("process", c.PROCESS_COLUMNS))
        )
        self._processes: dict[int, _Process] = {}
        self._groups, self._memory_groups = CpuGroups(), MemoryGroups()
        self._throttled_us = self._groups.quota().throttled_us
        self._sampled_ns = time.perf_counter_ns()
        self._cpu_times = psutil.cpu_times()
        psutil.cpu_percent()

    def sample(self, threads: dict[int, int]) -> None:
        """Look at everything once. `threads` maps each training process to its training thread."""
        now = time.perf_counter_ns()
        elapsed_s, self._sampled_ns = (now - self._sampled_ns) / 1e9, now
        throttled_s = self._throttled_s()
        readings = self._read_gpus()
        machine = psutil.virtual_memory()
        memory = self._memory_groups.use(MemoryUse(machine.total - machine.available, machine.total))
        self._system.append(
            now,
            psutil.cpu_percent(),
            memory.used,
            100 * memory.used / memory.total,
            _percent(throttled_s, elapsed_s),
            *gpu_columns(readings),
        )
        before, self._cpu_times = self._cpu_times, psutil.cpu_times()
        self._processes = {pid: known for pid, known in self._processes.items() if pid in threads}
        cores = Cores.between(before, self._cpu_times, throttled_s or 0.0)
        for pid, thread in threads.items():
            with contextlib.suppress(psutil.Error):  # it has ended
                self._process.append(now, pid, *self._process_row(pid, thread, readings, cores))

    def _throttled_s(self) -> float | None:
        """How long the CPU quota stopped the job since the last call."""
        before, self._throttled_us = self._throttled_us, self._groups.quota().throttled_us
        if before is None or self._throttled_us is None:
            return None
        return (self._throttled_us - before) / 1e6

    def _process_row(
        self, pid: int, thread: int, readings: list[GpuReading], cores: "Cores"
    ) -> tuple[float, ...]:
        if pid not in self._processes:
            self._processes[pid] = _Process(pid, thread)
        process = self._processes[pid]
        rss_bytes, usage = process.rss_bytes(), process.usage()
        gpu_bytes = process_gpu_bytes(readings, pid)
        return (
            _percent(usage.cpu_s, usage.elapsed_s),
            rss_bytes,
            math.nan if gpu_bytes is None else gpu_bytes,
            _percent(cores.delay_s(usage), usage.elapsed_s),
            _percent(cores.core_wait_s(usage), usage.elapsed_s),
            process.workers_bytes(),
        )


def _percent(part_s: float | None, whole_s: float) -> float:
    return math.nan if part_s is None or whole_s <= 0 else 100 * part_s / whole_s


class Usage(NamedTuple):
    """What a training process used between two samples."""

    elapsed_s: float
    cpu_s: float  # with its children, i.e. loader workers
    waited_s: float | None  # the training thread was ready but had no core
    workers_waited_s: float = 0.0  # the same of a busy child, on average


class Child(NamedTuple):
    """A child of a training process, i.e. a loader worker, since it started."""

    cpu_s: float
    waited_s: float  # its main thread was ready but had no core
    own_bytes: float  # without mapped files and memory that it shares to hand over batches


class Cores(NamedTuple):
    """What the machine's cores did between two samples."""

    worked_s: float
    stolen_s: float  # the host of a virtual machine gave them to others
    throttled_s: float  # the container's CPU quota was used up

    @classmethod
    def between(cls, before: Any, after: Any, throttled_s: float = 0.0) -> "Cores":
        """From two values of psutil's `cpu_times`."""

        def passed(*names: str) -> float:
            return sum(max(0.0, getattr(after, n, 0.0) - getattr(before, n, 0.0)) for n in names)

        return cls(passed("user", "nice", "system", "irq", "softirq"), passed("steal"), throttled_s)

    def delay_s(self, usage: Usage) -> float | None:
        """How long other work or a quota kept the training thread from running.

        The thread also waits for threads of its own process; for others at most as long as they ran.
        """
        if usage.waited_s is None:
            return None
        others_s = max(0.0, self.worked_s - usage.cpu_s) + self.throttled_s
        stolen = self.stolen_s / self.worked_s if self.worked_s else 0.0
        delayed_s = min(usage.waited_s, others_s) + stolen * min(usage.cpu_s, usage.elapsed_s)
        return min(delayed_s, usage.elapsed_s)

    def core_wait_s(self, usage: Usage) -> float | None:
        """How long the training thread, or a loader worker, was kept from a core by anybody: also by threads
        and workers of its own process."""
        delayed_s = self.delay_s(usage)
        if delayed_s is None or usage.waited_s is None:
            return None
        return min(max(delayed_s, usage.waited_s, usage.workers_waited_s), usage.elapsed_s)


class _Process:
    """A training process and its children (loader workers), whose CPU time counts as its own."""

    def __init__(self, pid: int, thread: int) -> None:
        self._process = psutil.Process(pid)
        self._thread = Path(f"/proc/{pid}/task/{thread}/schedstat")
        self._before: Usage | None = None  # totals at the last call
        self._children: dict[int, Child] = {}  # at the last call

    def rss_bytes(self) -> float:
        return float(self._process.memory_info().rss)

    def usage(self) -> Usage:
        """Since the last call; the first one has no elapsed time."""
        cpu_s = _cpu_seconds(self._process)
        children = self._children_now()
        cpu_s += sum(child.cpu_s for child in children.values())
        now = Usage(time.monotonic(), cpu_s, run_delay_seconds(self._thread))
        before, self._before = self._before or now, now
        waited_s = None
        if now.waited_s is not None and before.waited_s is not None:
            waited_s = max(0.0, now.waited_s - before.waited_s)
        elapsed_s = now.elapsed_s - before.elapsed_s
        known, self._children = self._children, children
        busy = [
            child.waited_s - known[pid].waited_s
            for pid, child in children.items()
            if pid in known and sum(child[:2]) - sum(known[pid][:2]) >= BUSY_SHARE * elapsed_s
        ]
        return Usage(elapsed_s, max(0.0, now.cpu_s - before.cpu_s), waited_s, sum(busy) / max(len(busy), 1))

    def workers_bytes(self) -> float:
        """What the children held at the last call of `usage`."""
        return sum(child.own_bytes for child in self._children.values()) if self._children else math.nan

    def _children_now(self) -> dict[int, Child]:
        found = {}
        for pid in descendants(self._process.pid):
            with contextlib.suppress(psutil.Error):
                waited_s = run_delay_seconds(Path(f"/proc/{pid}/schedstat"))
                process = psutil.Process(pid)
                memory = process.memory_info()
                own_bytes = float(memory.rss - getattr(memory, "shared", 0))
                found[pid] = Child(_cpu_seconds(process), waited_s or 0.0, own_bytes)
        return found


def descendants(pid: int) -> list[int]:
    """The children of a process, and theirs.

    Linux lists them by thread. Where it does not, psutil looks at every process of the machine, which takes
    ten times as long on a small machine and far longer on a large one.
    """
    if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    found: list[int] = []
    parents = [pid]
    while parents:
        children = _children(parents.pop())
        found += children
        parents += children
    return found


def _children(pid: int) -> list[int]:
    folder, found = f"/proc/{pid}/task", b""
    with contextlib.suppress(OSError):  # it has ended
        for thread in os.listdir(folder):
            with contextlib.suppress(OSError), open(f"{folder}/{thread}/children", "rb", buffering=0) as file:
                found += file.read(65_536) + b" "
    return [int(word) for word in found.split()]


def run_delay_seconds(schedstat: Path) -> float | None:
    """How long a thread was ready to run but had no core; None where Linux does not report it."""
    try:
        return int(schedstat.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
