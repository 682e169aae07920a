"""System and process diagnoses: pressure around the training. Context, rarely a cause."""

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median_low
from typing import Final

from traceml.analyze.cores import CoreUse
from traceml.analyze.rules.rule import MOST_SHARE, Measured, Rule, Thresholds
from traceml.schema import fmt

LOW_GPU_PERCENT: Final = 30.0
BUSY_GPU_PERCENT: Final = 70.0
SMALL_OVERHANG_BYTES: Final = 1e9
SMALL_IMBALANCE_BYTES: Final = 256e6


@dataclass(frozen=True, slots=True)
class GaugeView:
    """Mean and peak of each gauge while the ranks trained, and what they are compared with."""

    mean: dict[str, float | None]
    peak: dict[str, float | None]
    gpu_used_by_rank: dict[int, float] = field(default_factory=dict)
    cores: int = 1
    ram_total: float | None = None
    gpu_capacity: float | None = None
    on_cpu: bool = True  # the model trains on the CPU
    samples: int = 0
    core_use: CoreUse = field(default_factory=CoreUse)


def _gauge(over: str, key: str, doc: str) -> Callable[[GaugeView], Measured | None]:
    """A rule function that judges the `over` (mean or peak) of one gauge; `doc` is its text in the docs."""

    def measure(view: GaugeView) -> Measured | None:
        value = getattr(view, over).get(key)
        return None if value is None else Measured(value, evidence={key: value, "over": over})

    measure.__doc__ = doc
    return measure


def low_gpu(view: GaugeView) -> Measured | None:
    """The GPUs were mostly idle. This is a symptom: it shows that they waited, but not for what."""
    return _idle_gpus(view, 0.0, LOW_GPU_PERCENT)


def moderate_gpu(view: GaugeView) -> Measured | None:
    """The GPUs were busy only part of the time."""
    return _idle_gpus(view, LOW_GPU_PERCENT, BUSY_GPU_PERCENT)


def _idle_gpus(view: GaugeView, least: float, below: float) -> Measured | None:
    busy = view.mean.get("gpu_util_percent")
    if busy is None or not least <= busy < below:
        return None
    return Measured(100 - busy, score=(100 - busy) / 100, evidence={"gpu_util_percent": busy})


def cpu_limited(view: GaugeView) -> Measured | None:
    """A CPU quota often stops the job, or the training threads wait for a core most of the time."""
    stopped, share = view.mean.get("cpu_throttled_percent"), view.core_use.wait_share
    if share >= MOST_SHARE and 100 * share > (stopped or 0.0):
        summary = "The training threads waited for a core {level} of the time."
        return Measured(
            100 * share,
            words={"remedy": view.core_use.remedy},
            evidence={"core_wait_share": share},
            summary=summary,
            action="Free CPU cores: {remedy}.",
        )
    return None if stopped is None else Measured(stopped, evidence={"cpu_throttled_percent": stopped})


def high_cpu(view: GaugeView) -> Measured | None:
    """All cores of the machine are busy. Not reported if the model trains on the CPU."""
    value = view.mean.get("cpu_percent")
    return None if value is None or view.on_cpu else Measured(value, evidence={"cpu_percent": value})


def high_process_cpu(view: GaugeView) -> Measured | None:
    """A rank and its workers use nearly all cores. Not reported if the model trains on the CPU."""
    value = view.mean.get("cpu_percent")
    if value is None or view.on_cpu:
        return None
    return Measured(value / view.cores, words={"value": fmt.percent(value), "cores": f"{view.cores}"})


def high_rss(view: GaugeView) -> Measured | None:
    """A training process holds most of the memory that the machine has, or that its container may use."""
    return _used_of(view.peak.get("rss_bytes"), view.ram_total)


def high_process_gpu(view: GaugeView) -> Measured | None:
    """A rank uses nearly all memory of its device."""
    return _used_of(view.peak.get("gpu_mem_used_bytes"), view.gpu_capacity)


def _used_of(used: float | None, capacity: float | None) -> Measured | None:
    if used is None or not capacity:
        return None
    return Measured(100 * used / capacity, words={"used": fmt.size(used), "total": fmt.size(capacity)})


def reserved_overhang(view: GaugeView) -> Measured | None:
    """The allocator holds much more device memory than tensors use: fragmentation, or one large peak."""
    held, used = view.peak.get("gpu_mem_reserved_bytes"), view.peak.get("gpu_mem_allocated_bytes")
    if held is None or used is None or held - used < SMALL_OVERHANG_BYTES:
        return None
    return Measured(100 * (held - used) / held, words={"held": fmt.size(held), "used": fmt.size(used)})


def rank_gpu_imbalance(view: GaugeView) -> Measured | None:
    """One rank uses clearly more device memory than the median rank."""
    used = view.gpu_used_by_rank
    if len(used) < 2:
        return None
    rank, median = max(used, key=lambda r: used[r]), median_low(used.values())
    if median <= 0 or used[rank] - median < SMALL_IMBALANCE_BYTES:
        return None
    words = {"rank": f"r{rank}", "value": fmt.size(used[rank]), "typical": fmt.size(median)}
    return Measured(100 * (used[rank] / median - 1), words=words, ranks=(rank,))


def _percent(warn: float, crit: float | None, of: str) -> Thresholds:
    return Thresholds(warn, crit, of, unit=fmt.percent)


SYSTEM_RULES: Final[tuple[Rule[GaugeView], ...]] = (
    Rule(
        "LOW_GPU_UTILIZATION",
        low_gpu,
        "The GPUs were busy {gpu_util_percent} of the time.",
        "See the step-time diagnosis for what they waited for.",
        _percent(100.0 - LOW_GPU_PERCENT, None, "{} idle GPU time"),
        status="LOW GPU UTIL",
    ),
    Rule(
        "MODERATE_GPU_UTILIZATION",
        moderate_gpu,
        "The GPUs were busy {gpu_util_percent} of the time.",
        "See the step-time diagnosis for what they waited for.",
        _percent(100.0 - BUSY_GPU_PERCENT, None, "{} idle GPU time"),
        status="MODERATE GPU UTIL",
    ),
    Rule(
        "CPU_LIMITED",
        cpu_limited,
        "The container's CPU quota stopped the job {level} of the time.",
        "Try a higher CPU limit for the container, or fewer threads and loader workers.",
        _percent(10.0, 30.0, "{} of the time stopped or without a core"),
    ),
    Rule(
        "HIGH_GPU_MEM",
        _gauge("peak", "gpu_mem_percent", "The fullest of the job's GPUs is nearly full."),
        "The fullest GPU reached {level} of its memory.",
        "See step memory, and try to use less before the job runs out of it.",
        _percent(92.0, 97.0, "{} of the device's memory"),
    ),
    Rule(
        "HIGH_GPU_TEMP",
        _gauge("peak", "gpu_temp_c", "A GPU is hot enough to lower its clocks."),
        "The hottest GPU reached {level}.",
        "Check the cooling: hot GPUs lower their clocks.",
        Thresholds(85.0, 92.0, "{}", fmt.BY_UNIT["c"]),
    ),
    Rule(
        "HIGH_GPU_POWER",
        _gauge("mean", "gpu_power_percent", "A GPU runs at its power limit."),
        "A GPU drew {level} of its power limit.",
        "Try a higher power limit if you may set it: at the limit a GPU lowers its clocks.",
        _percent(97.0, None, "{} of the power limit"),
    ),
    Rule(
        "UNEVEN_GPU_UTIL",
        _gauge("mean", "gpu_util_spread_percent", "Some of the job's GPUs are much busier than others."),
        "The busiest GPU was busy {level} more of the time than the idlest.",
        "See the straggler findings in step time.",
        _percent(30.0, None, "{} between the busiest and the idlest GPU"),
    ),
    Rule(
        "HIGH_RAM",
        _gauge("peak", "ram_percent", "The machine, or the container's limit, is nearly out of memory."),
        "Memory was up to {level} full (the machine's, or the container's if its limit is lower).",
        "Try fewer loader workers, smaller caches or a smaller batch before the kernel kills the job.",
        _percent(90.0, 97.0, "{} of the memory"),
    ),
    Rule(
        "HIGH_CPU",
        high_cpu,
        "The machine's cores were {level} busy.",
        "Try to move preprocessing to another machine, or to use more cores.",
        _percent(90.0, None, "{} of all cores"),
    ),
)
PROCESS_RULES: Final[tuple[Rule[GaugeView], ...]] = (
    Rule(
        "HIGH_PROCESS_CPU",
        high_process_cpu,
        "A rank and its workers use {value} CPU (100 % is one core) on a machine with {cores} cores.",
        "Try fewer or cheaper loader workers.",
        _percent(90.0, None, "{} of all cores"),
    ),
    Rule(
        "HIGH_PROCESS_RSS",
        high_rss,
        "A rank holds {used}, {level} of {total}.",
        "Look for data that the process or its workers keep in memory.",
        _percent(80.0, 92.0, "{} of the memory"),
    ),
    Rule(
        "HIGH_PROCESS_GPU_MEM",
        high_process_gpu,
        "A rank uses {used} of device memory, {level} of the device.",
        "Try a smaller batch, or a model that needs less memory.",
        _percent(92.0, 97.0, "{} of the device's memory"),
    ),
    Rule(
        "GPU_RESERVED_OVERHANG",
        reserved_overhang,
        "The allocator holds {held} of device memory, but tensors use only {used}.",
        "Try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, and avoid changing tensor shapes.",
        _percent(30.0, None, "{} of what the allocator holds"),
    ),
    Rule(
        "RANK_GPU_MEM_IMBALANCE",
        rank_gpu_imbalance,
        "{rank} uses {value} of device memory; the median rank uses {typical}.",
        "Compare what {rank} keeps on its device with the other ranks.",
        _percent(20.0, None, "{} above the median rank"),
    ),
)
