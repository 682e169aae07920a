"""Samples the machine and the training processes from outside: no sampler lives in a training process."""

from __future__ import annotations

import contextlib
import math
import time
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

    def sample(self, pids: dict[int, int]) -> None:
        """Look at everything once. `pids` are the processes that train."""
        now = time.perf_counter_ns()
        readings = self._gpus.read()
        memory = psutil.virtual_memory()
        used = memory.total - memory.available
        self._system.append(
            now,
            psutil.cpu_percent(),
            used,
            100 * used / memory.total,
            _or_nan(self._throttled_percent(now)),
            *gpu_columns(readings),
        )
        before, self._cpu_times = self._cpu_times, psutil.cpu_times()
        stolen = stolen_share(before, self._cpu_times)
        for pid in pids:
            row = self._process_row(pid, readings, stolen)
            if row is not None:
                self._process.append(now, pid, *row)

    def _throttled_percent(self, now: int) -> float | None:
        before, before_at = self._quota, self._quota_at
        self._quota, self._quota_at = read_quota(), now
        if before.throttled_us is None or self._quota.throttled_us is None or now <= before_at:
            return None
        return 1e5 * (self._quota.throttled_us - before.throttled_us) / (now - before_at)

    def _process_row(self, pid: int, readings: list[GpuReading], stolen: float) -> tuple[float, ...] | None:
        try:
            process = self._processes.setdefault(pid, _Process(pid))
            cpu_percent, rss_bytes, delay_percent = process.usage()
        except psutil.Error:
            return None  # it has ended
        if delay_percent is not None and cpu_percent is not None:
            delay_percent += stolen * min(cpu_percent, 100.0)  # one thread trains, helpers do not count
        gpu_bytes = process_gpu_bytes(readings, pid)
        return _or_nan(cpu_percent), rss_bytes, _or_nan(gpu_bytes), _or_nan(delay_percent)


class _Process:
    """A training process and its children (loader workers): CPU time of the whole family."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._before: tuple[float, float, float | None] | None = None

    def usage(self) -> tuple[float | None, float, float | None]:
        """(CPU percent since the last call, resident bytes, percent of time waiting for a core)."""
        seconds = _cpu_seconds(self._process)
        for child in self._process.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                seconds += _cpu_seconds(child)
        now = time.monotonic()
        delay = run_delay_seconds(Path(f"/proc/{self._process.pid}/task"))
        before, self._before = self._before, (now, seconds, delay)
        percent = delay_percent = None
        if before is not None and now > before[0]:
            percent = max(0.0, 100 * (seconds - before[1]) / (now - before[0]))
            if delay is not None and before[2] is not None:
                delay_percent = max(0.0, 100 * (delay - before[2]) / (now - before[0]))
        return percent, float(self._process.memory_info().rss), delay_percent


def stolen_share(before: Any, after: Any) -> float:
    """What the host of a virtual machine gave to others, for each second that its cores worked."""

    def passed(*names: str) -> float:
        return sum(max(0.0, getattr(after, n, 0.0) - getattr(before, n, 0.0)) for n in names)

    worked = passed("user", "nice", "system", "irq", "softirq")
    return passed("steal") / worked if worked else 0.0


def run_delay_seconds(tasks: Path) -> float | None:
    """Time that a process's threads were ready to run but had no core; None where Linux does not tell."""
    total = 0
    try:
        for thread in tasks.iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                total += int((thread / "schedstat").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return total / 1e9


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
