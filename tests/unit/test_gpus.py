"""GPU gauges with a simulated NVML: only the job's devices, null where the driver gives no answer."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from traceml.monitor.gauges import GpuReading, NvmlGpus, gpu_columns, process_gpu_bytes, visible_indices
from traceml.schema import catalog as c

UUIDS = ["GPU-aaaa-1", "GPU-aabb-2", "GPU-cccc-3"]


class SimulatedNvml:
    """The part of pynvml that is used. `silent` questions raise its error, like those a driver lacks."""

    class NVMLError(Exception):
        """NVML's own error."""

    def __init__(self, count: int = 3, silent: tuple[str, ...] = ()) -> None:
        self.count, self.silent = count, silent
        self.processes: dict[int, list[tuple[int, int | None]]] = {}

    def __getattr__(self, name: str) -> Any:
        answer = getattr(type(self), "_" + name)

        def ask(*arguments: Any) -> Any:
            if name in self.silent:
                raise self.NVMLError(name)
            return answer(self, *arguments)

        return ask

    def _nvmlDeviceGetCount(self) -> int:
        return self.count

    def _nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def _nvmlDeviceGetUUID(self, handle: int) -> bytes:
        return UUIDS[handle].encode()

    def _nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=10 * (handle + 1))

    def _nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(used=(handle + 1) * 1_000, total=10_000)

    def _nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return 150_000

    def _nvmlDeviceGetEnforcedPowerLimit(self, handle: int) -> int:
        return 300_000

    def _nvmlDeviceGetTemperature(self, handle: int, _sensor: int) -> int:
        return 60 + handle

    def _nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        found = self.processes.get(handle, [])
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in found]


EVERY_QUESTION = (
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetComputeRunningProcesses",
)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("0", [0]),
        ("2,0", [2, 0]),
        (" 1 , 2 ", [1, 2]),
        ("1,7,2", [1]),
        ("1,-1,2", [1]),
        ("GPU-cccc", [2]),
        ("GPU-aa", []),
        ("GPU-cccc-3,0", [2, 0]),
        ("NoDevFiles", []),
    ],
)
def test_only_the_devices_that_the_job_sees(visible: str | None, expected: list[int]) -> None:
    """CUDA_VISIBLE_DEVICES by index or unique UUID prefix, in its order, up to the first bad entry."""
    assert visible_indices(visible, UUIDS) == expected


def test_a_reading_of_each_visible_device() -> None:
    """In watts, bytes, percent and degrees; devices that the job does not see are not asked."""
    found = NvmlGpus(SimulatedNvml(), "1").read()
    assert found == [GpuReading(20.0, 2000.0, 10000.0, 61, 150.0, 300.0, {})]


@pytest.mark.parametrize("question", EVERY_QUESTION)
def test_a_reading_that_the_driver_lacks_is_null(question: str) -> None:
    """One unsupported reading is null and does not affect the others."""
    whole = NvmlGpus(SimulatedNvml(), "0").read()[0]
    found = NvmlGpus(SimulatedNvml(silent=(question,)), "0").read()[0]
    fields = GpuReading.__dataclass_fields__
    changed = {f for f in fields if getattr(found, f) != getattr(whole, f)}
    assert all(getattr(found, f) is None for f in changed)
    assert len(changed) == {"nvmlDeviceGetMemoryInfo": 2, "nvmlDeviceGetComputeRunningProcesses": 0}.get(
        question, 1
    )


def test_a_machine_without_gpus_has_no_reading() -> None:
    """Every column is NaN, which becomes null."""
    assert all(math.isnan(v) for v in gpu_columns([]))


def test_the_columns_are_those_of_the_catalogue() -> None:
    """Mean and spread of utilization, fullest, hottest, total power, worst power share, in this order."""
    readings = NvmlGpus(SimulatedNvml(), None).read()
    keys = [m.key for m in c.SYSTEM_METRICS if m.key.startswith("gpu_")]
    assert dict(zip(keys, gpu_columns(readings), strict=True)) == {
        "gpu_util_percent": 20.0,
        "gpu_util_spread_percent": 20.0,
        "gpu_mem_bytes": 3000.0,
        "gpu_mem_percent": 30.0,
        "gpu_temp_c": 62,
        "gpu_power_w": 450.0,
        "gpu_power_percent": 50.0,
    }


def test_one_gpu_has_no_spread() -> None:
    """A spread needs two devices: that of one is null, not 0."""
    assert math.isnan(gpu_columns(NvmlGpus(SimulatedNvml(1), None).read())[1])


def test_a_device_that_answers_nothing_is_null_in_every_column() -> None:
    """It never counts as 0."""
    assert all(
        math.isnan(v) for v in gpu_columns(NvmlGpus(SimulatedNvml(silent=EVERY_QUESTION), None).read())
    )


def test_device_memory_of_a_process_is_its_sum_over_devices() -> None:
    """A process on two devices uses the memory of both."""
    nvml = SimulatedNvml()
    nvml.processes = {0: [(7, 100), (8, 50)], 1: [(7, 200)]}
    readings = NvmlGpus(nvml, None).read()
    assert process_gpu_bytes(readings, 7) == 300
    assert process_gpu_bytes(readings, 8) == 50


def test_unknown_device_memory_of_a_process_is_null() -> None:
    """Listed without a number, or not listed (another pid namespace): unknown, not 0 bytes."""
    nvml = SimulatedNvml()
    nvml.processes = {0: [(7, None)], 1: [(8, 50)]}
    readings = NvmlGpus(nvml, None).read()
    assert process_gpu_bytes(readings, 7) is None
    assert process_gpu_bytes(readings, 999) is None
    assert process_gpu_bytes([], 7) is None
