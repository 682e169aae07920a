"""Samples the machine and the training processes from outside: no sampler runs in a training process."""

import contextlib
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from traceml.monitor.machine import Cgroups, MemoryUse
from traceml.recording.writer import RecordingWriter
from traceml.schema import catalog as c

BUSY_SHARE = 0.1
"""A child that wants a core for a smaller share of the time tells nothing about a lack of cores."""


class Gauges:
    """Writes one system row, and one row per training process, at each `sample`."""

    def __init__(self, recording: Path, read_gpus: "ReadGpus") -> None:
        self._read_gpus = read_gpus
        self._system, self._process = (
            RecordingWriter(str(recording / f"{kind}.gauges"), columns, {"kind": kind})
            for kind, columns in (("system", c.SYSTEM_COLUMNS), ("process", c.PROCESS_COLUMNS))
        )
        self._processes: dict[int, _Process] = {}
        self._groups = Cgroups()
        self._throttled_us = self._groups.quota().throttled_us
        self._sampled_ns = time.perf_counter_ns()
        self._cpu_times = psutil.cpu_times()
        psutil.cpu_percent()

    def sample(self, threads: dict[int, int]) -> None:
        """Look at everything once. `threads` maps each training process to its training thread."""
        now = time.perf_counter_ns()
        elapsed_s, self._sampled_ns = (now - self._sampled_ns) / 1e9, now
        before_us, after_us = self._throttled_us, self._groups.quota().throttled_us
        is_known = before_us is not None and after_us is not None
        throttled_s = ((after_us or 0) - (before_us or 0)) / 1e6 if is_known else None
        self._throttled_us = after_us
        readings = self._read_gpus()
        machine = psutil.virtual_memory()
        memory = self._groups.memory(MemoryUse(machine.total - machine.available, machine.total))
        self._system.append(
            now,
            psutil.cpu_percent(),
            memory.used,
            100 * memory.used / memory.total,
            _percent(throttled_s, elapsed_s),
            *gpu_columns(readings),
        )
        before, self._cpu_times = self._cpu_times, psutil.cpu_times()
        cores = Cores.between(before, self._cpu_times, throttled_s or 0.0)
        known, self._processes = self._processes, {}
        for pid, thread in threads.items():
            with contextlib.suppress(psutil.Error):  # it has ended
                process = self._processes[pid] = known.get(pid) or _Process(pid, thread)
                self._process.append(now, pid, *process.row(cores, readings))


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

    def row(self, cores: Cores, readings: "list[GpuReading]") -> tuple[float, ...]:
        """The columns of a sample, without time and process id."""
        rss_bytes, usage = self._process.memory_info().rss, self.usage()
        gpu_bytes = process_gpu_bytes(readings, self._process.pid)
        return (
            _percent(usage.cpu_s, usage.elapsed_s),
            rss_bytes,
            math.nan if gpu_bytes is None else gpu_bytes,
            _percent(cores.delay_s(usage), usage.elapsed_s),
            _percent(cores.core_wait_s(usage), usage.elapsed_s),
            self.workers_bytes(),
        )

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
    found = [pid]
    for parent in found:  # grows meanwhile
        folder = f"/proc/{parent}/task"
        with contextlib.suppress(OSError):  # it has ended
            for thread in os.listdir(folder):
                with contextlib.suppress(OSError), open(f"{folder}/{thread}/children", "rb") as file:
                    found += map(int, file.read().split())
    return found[1:]


def run_delay_seconds(schedstat: Path) -> float | None:
    """How long a thread was ready to run but had no core; None where Linux does not report it."""
    try:
        return int(schedstat.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU at one moment; None where the driver does not say."""

    util_percent: float | None
    mem_used_bytes: float | None
    mem_total_bytes: float | None
    temp_c: float | None
    power_w: float | None
    power_limit_w: float | None
    process_bytes: Mapping[int, int]  # by process id, where the driver says it


ReadGpus = Callable[[], list[GpuReading]]
"""Where readings come from; tests bring a simulated one."""


class NvmlGpus:
    """NVML, restricted to CUDA_VISIBLE_DEVICES."""

    def __init__(self, nvml: Any, visible: str | None) -> None:
        self._nvml = nvml
        count = nvml.nvmlDeviceGetCount()
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
        uuids = [nvml.nvmlDeviceGetUUID(h) for h in handles]
        self._handles = [handles[i] for i in visible_indices(visible, uuids)]

    def read(self) -> list[GpuReading]:
        return [self._read_one(handle) for handle in self._handles]

    def _read_one(self, handle: Any) -> GpuReading:
        nvml = self._nvml
        util = self._ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        power = self._ask(nvml.nvmlDeviceGetPowerUsage, handle)
        limit = self._ask(nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
        processes = self._ask(nvml.nvmlDeviceGetComputeRunningProcesses, handle) or []
        return GpuReading(
            util_percent=None if util is None else float(util.gpu),
            mem_used_bytes=None if memory is None else float(memory.used),
            mem_total_bytes=None if memory is None else float(memory.total),
            temp_c=self._ask(nvml.nvmlDeviceGetTemperature, handle, 0),
            power_w=None if power is None else power / 1000,
            power_limit_w=None if limit is None else limit / 1000,
            process_bytes={p.pid: p.usedGpuMemory for p in processes if p.usedGpuMemory is not None},
        )

    def _ask(self, question: Any, *args: Any) -> Any:
        try:
            return question(*args)
        except self._nvml.NVMLError:
            return None  # this GPU does not support the question


def visible_indices(visible: str | None, uuids: list[str]) -> list[int]:
    """The GPUs that CUDA_VISIBLE_DEVICES names, by index or UUID, up to its first bad entry."""
    if visible is None:
        return list(range(len(uuids)))
    found = []
    for entry in (e.strip() for e in visible.split(",")):
        if entry.isdigit() and int(entry) < len(uuids):
            found.append(int(entry))
            continue
        matches = [i for i, uuid in enumerate(uuids) if entry and uuid.startswith(entry)]
        if len(matches) != 1:
            break
        found.append(matches[0])
    return found


def find_gpus(environment: Mapping[str, str]) -> ReadGpus:
    """NVML if it is there and answers; else no readings, and no complaint on a machine without a GPU."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return NvmlGpus(pynvml, environment.get("CUDA_VISIBLE_DEVICES")).read
    except ImportError:
        return list
    except pynvml.NVMLError:
        return list


def process_gpu_bytes(readings: list[GpuReading], pid: int) -> float | None:
    """Device memory of a process; None where no driver says (it does not know process ids of a container)."""
    found = [r.process_bytes[pid] for r in readings if pid in r.process_bytes]
    return float(sum(found)) if found else None


def gpu_columns(readings: list[GpuReading]) -> list[float]:
    """util, spread, fullest memory (bytes, percent), hottest, total power, worst power share."""
    utils = [r.util_percent for r in readings if r.util_percent is not None]
    temps = [r.temp_c for r in readings if r.temp_c is not None]
    powers = [(r.power_w, r.power_limit_w) for r in readings if r.power_w is not None]
    memories = [
        (100 * r.mem_used_bytes / r.mem_total_bytes, r.mem_used_bytes)
        for r in readings
        if r.mem_used_bytes is not None and r.mem_total_bytes
    ]
    fullest_percent, fullest_bytes = max(memories, default=(math.nan, math.nan))
    return [
        sum(utils) / len(utils) if utils else math.nan,
        max(utils) - min(utils) if len(utils) > 1 else math.nan,
        fullest_bytes,
        fullest_percent,
        max(temps, default=math.nan),
        sum(power for power, _ in powers) if powers else math.nan,
        max((100 * power / limit for power, limit in powers if limit), default=math.nan),
    ]
