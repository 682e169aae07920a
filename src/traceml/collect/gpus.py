"""GPU gauges through NVML, for the devices that the job can see. Absent NVML is simply no reading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU at one moment; None where the driver does not tell."""

    util_percent: float | None
    mem_used_bytes: float | None
    mem_total_bytes: float | None
    temp_c: float | None
    power_w: float | None
    power_limit_w: float | None
    process_bytes: Mapping[int, int]  # of the processes whose memory the driver tells


class GpuSource(Protocol):
    """Where readings come from; tests bring a simulated one."""

    def read(self) -> list[GpuReading]: ...


class NoGpus:
    """A machine without a GPU, or without its driver."""

    def read(self) -> list[GpuReading]:
        return []


class NvmlGpus:
    """NVML, restricted to CUDA_VISIBLE_DEVICES."""

    def __init__(self, nvml: Any, visible: str | None) -> None:
        self._nvml = nvml
        count = nvml.nvmlDeviceGetCount()
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
        uuids = [_text(nvml.nvmlDeviceGetUUID(h)) for h in handles]
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
            return None  # this GPU does not answer this one


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def visible_indices(visible: str | None, uuids: list[str]) -> list[int]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, by index or UUID; it stops at the first bad one."""
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


def find_gpus(environment: Mapping[str, str]) -> GpuSource:
    """NVML if it is there and answers, else nothing; never a complaint on a machine without a GPU."""
    try:
        import pynvml
    except ImportError:
        return NoGpus()
    try:
        pynvml.nvmlInit()
        return NvmlGpus(pynvml, environment.get("CUDA_VISIBLE_DEVICES"))
    except pynvml.NVMLError:
        return NoGpus()
