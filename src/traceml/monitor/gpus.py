"""GPU gauges through NVML, for the devices that the job can see. Without NVML there is simply no reading."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


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
    except ImportError:
        return list
    try:
        pynvml.nvmlInit()
        return NvmlGpus(pynvml, environment.get("CUDA_VISIBLE_DEVICES")).read
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
