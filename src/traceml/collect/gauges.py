"""Samples the machine and the training processes from outside: no sampler lives in a training process."""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from traceml.collect.gpus import GpuReading, GpuSource
from traceml.collect.quota import read_quota
from traceml.recording.writer import RecordingWriter
from traceml.schema import catalog as c


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else float(value)


class Gauges:
    """Writes one system row and one row a training process at each `sample`."""

    def __init__(self, recording: Path, gpus: GpuSource) -> None:
        self._gpus = gpus
        self._system = RecordingWriter(str(recording / "system.gauges"), c.SYSTEM_COLUMNS, {"kind": "system"})
        self._process = RecordingWriter(
            str(recording / "process.gauges"), c.PROCESS_COLUMNS, {"kind": "process"}
        )
        self._processes: dict[int, _Process] = {}
        self._quota = read_quota()
        self._quota_at = time.perf_counter_ns()
        self._cpu_times = psutil.cpu_times()
        psutil.cpu_percent()

    def sample(self, threads: dict[int, int]) -> None:
        """Look at everything once. `threads` are the processes that train, and the thread that does."""
        now = time.perf_counter_ns()
        readings = self._gpus.read()
        memory = psutil.virtual_memory()
        used = memory.total - memory.available
        elapsed_s, throttled_s = self._throttled(now)
        self._system.append(
            now,
            psutil.cpu_percent(),
            used,
            100 * used / memory.total,
            math.nan if throttled_s is None else 100 * throttled_s / elapsed_s,
            *gpu_columns(readings),
        )
        before, self._cpu_times = self._cpu_times, psutil.cpu_times()
        cores = Cores.between(before, self._cpu_times, throttled_s or 0.0)
        for pid, thread in threads.items():
            row = self._process_row(pid, thread, readings, cores)
            if row is not None:
                self._process.append(now, pid, *row)

    def _throttled(self, now: int) -> tuple[float, float | None]:
        """(seconds since the last sample, of these: how long the CPU quota stopped the job)."""
        before, before_at = self._quota, self._quota_at
        self._quota, self._quota_at = read_quota(), now
        elapsed_s = (now - before_at) / 1e9
        if before.throttled_us is None or self._quota.throttled_us is None or elapsed_s <= 0:
            return elapsed_s, None
        return elapsed_s, (self._quota.throttled_us - before.throttled_us) / 1e6

    def _process_row(
        self, pid: int, thread: int, readings: list[GpuReading], cores: Cores
    ) -> tuple[float, ...] | None:
        try:
            process = self._processes.setdefault(pid, _Process(pid, thread))
            rss_bytes, usage = process.rss_bytes(), process.usage()
        except psutil.Error:
            return None  # it has ended
        gpu_bytes = process_gpu_bytes(readings, pid)
        cpu_percent = delay_percent = None
        if usage is not None and usage.elapsed_s > 0:
            cpu_percent = 100 * usage.cpu_s / usage.elapsed_s
            delay_s = cores.delay_s(usage)
            delay_percent = None if delay_s is None else 100 * delay_s / usage.elapsed_s
        return _or_nan(cpu_percent), rss_bytes, _or_nan(gpu_bytes), _or_nan(delay_percent)


@dataclass(frozen=True, slots=True)
class Usage:
    """Of a training process between two samples."""

    elapsed_s: float
    cpu_s: float  # with its children, i.e. loader workers
    waited_s: float | None  # the training thread was ready but had no core


@dataclass(frozen=True, slots=True)
class Cores:
    """What the machine's cores did between two samples."""

    worked_s: float
    stolen_s: float  # the host of a virtual machine gave them to others
    throttled_s: float  # the container's CPU quota was used up

    @classmethod
    def between(cls, before: Any, after: Any, throttled_s: float = 0.0) -> Cores:
        """From psutil's `cpu_times`."""

        def passed(*names: str) -> float:
            return sum(max(0.0, getattr(after, n, 0.0) - getattr(before, n, 0.0)) for n in names)

        return cls(passed("user", "nice", "system", "irq", "softirq"), passed("steal"), throttled_s)

    def delay_s(self, usage: Usage) -> float | None:
        """How long other work or a quota kept the training thread from running.

        It also waits for threads of its own process; for others at most as long as they ran.
        """
        if usage.waited_s is None:
            return None
        others_s = max(0.0, self.worked_s - usage.cpu_s) + self.throttled_s
        stolen = self.stolen_s / self.worked_s if self.worked_s else 0.0
        delayed_s = min(usage.waited_s, others_s) + stolen * min(usage.cpu_s, usage.elapsed_s)
        return min(delayed_s, usage.elapsed_s)


class _Process:
    """A training process and its children (loader workers): CPU time of the whole family."""

    def __init__(self, pid: int, thread: int) -> None:
        self._process = psutil.Process(pid)
        self._thread = Path(f"/proc/{pid}/task/{thread}/schedstat")
        self._before: tuple[float, float, float | None] | None = None

    def rss_bytes(self) -> float:
        return float(self._process.memory_info().rss)

    def usage(self) -> Usage | None:
        """Since the last call; None at the first."""
        seconds = _cpu_seconds(self._process)
        for child in self._process.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                seconds += _cpu_seconds(child)
        now, waited = time.monotonic(), run_delay_seconds(self._thread)
        before, self._before = self._before, (now, seconds, waited)
        if before is None:
            return None
        known = waited is not None and before[2] is not None
        waited_s = max(0.0, (waited or 0.0) - (before[2] or 0.0)) if known else None
        return Usage(now - before[0], max(0.0, seconds - before[1]), waited_s)


def run_delay_seconds(schedstat: Path) -> float | None:
    """Time that a thread was ready to run but had no core; None where Linux does not tell."""
    try:
        return int(schedstat.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def process_gpu_bytes(readings: list[GpuReading], pid: int) -> float | None:
    """Device memory of a process; None where no driver tells (inside a container it knows other ids)."""
    told = [r.process_bytes[pid] for r in readings if pid in r.process_bytes]
    return float(sum(told)) if told else None


def gpu_columns(readings: list[GpuReading]) -> list[float]:
    """util, spread, fullest memory (bytes, percent), hottest, total power, worst power share."""
    utils = [r.util_percent for r in readings if r.util_percent is not None]
    full = [
        (r.mem_used_bytes, 100 * r.mem_used_bytes / r.mem_total_bytes)
        for r in readings
        if r.mem_used_bytes is not None and r.mem_total_bytes
    ]
    temps = [r.temp_c for r in readings if r.temp_c is not None]
    powers = [r.power_w for r in readings if r.power_w is not None]
    loads = [100 * r.power_w / r.power_limit_w for r in readings if r.power_w is not None and r.power_limit_w]
    most = max(full, key=lambda pair: pair[1], default=(math.nan, math.nan))
    return [
        sum(utils) / len(utils) if utils else math.nan,
        max(utils) - min(utils) if len(utils) > 1 else math.nan,
        most[0],
        most[1],
        max(temps, default=math.nan),
        sum(powers) if powers else math.nan,
        max(loads, default=math.nan),
    ]
