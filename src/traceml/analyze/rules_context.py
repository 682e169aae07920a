"""System and process diagnoses: pressure around the training. Context, seldom a cause."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from traceml.analyze.rule import Measured, Rule, ordered
from traceml.schema import fmt
from traceml.schema.summary import INFO, Finding


@dataclass(frozen=True, slots=True)
class ContextView:
    """Gauges as mean and peak per metric; `members` has the mean of each rank or node."""

    mean: dict[str, float | None]
    peak: dict[str, float | None]
    members: dict[str, dict[int, float]] = field(default_factory=dict)
    cores: int = 1
    ram_total: float | None = None
    gpu_capacity: float | None = None
    on_cpu: bool = True  # the training runs on the CPU itself
    samples: int = 0


def _level(
    key: str, where: str, unit: Callable[[float | None], str], doc: str
) -> Callable[[ContextView], Measured | None]:
    """A rule function that compares one gauge with the row's thresholds; `doc` is its page."""

    def measure(view: ContextView) -> Measured | None:
        value = getattr(view, where).get(key)
        if value is None:
            return None
        return Measured(
            level=value,
            score=0.0,
            words={"value": unit(value)},
            evidence={key: value, "over": where},
        )

    measure.__doc__ = doc
    return measure


def low_gpu(view: ContextView) -> Measured | None:
    """The GPUs were mostly idle. A symptom: it says that they waited, not for what."""
    value = view.mean.get("gpu_util_percent")
    if value is None:
        return None
    return Measured(
        level=100 - value,
        score=(100 - value) / 100,
        words={"value": fmt.percent(value)},
        evidence={"gpu_util_percent": value},
    )


def moderate_gpu(view: ContextView) -> Measured | None:
    """The GPUs were busy only part of the time."""
    found = low_gpu(view)
    return None if found is None or found.level > 70 else found


def high_cpu(view: ContextView) -> Measured | None:
    """The machine's cores are all busy. Expected where the CPU is what trains."""
    value = view.mean.get("cpu_percent")
    if value is None or view.on_cpu:
        return None
    return Measured(value, 0.0, {"value": fmt.percent(value)}, evidence={"cpu_percent": value})


def high_process_cpu(view: ContextView) -> Measured | None:
    """One rank and its workers use nearly all cores of the machine. Expected where the CPU is what trains."""
    value = view.mean.get("cpu_percent")
    if value is None or view.on_cpu:
        return None
    return Measured(value / view.cores, 0.0, {"value": fmt.percent(value), "cores": f"{view.cores}"})


def high_rss(view: ContextView) -> Measured | None:
    """The training processes hold most of the machine's memory."""
    value = view.peak.get("rss_bytes")
    if value is None or not view.ram_total:
        return None
    level = 100 * value / view.ram_total
    return Measured(level, 0.0, {"value": fmt.size(value), "share": fmt.percent(level)})


def high_process_gpu(view: ContextView) -> Measured | None:
    """A rank's device memory is nearly all of the device."""
    value = view.peak.get("gpu_mem_used_bytes")
    if value is None or not view.gpu_capacity:
        return None
    level = 100 * value / view.gpu_capacity
    return Measured(level, 0.0, {"value": fmt.size(value), "share": fmt.percent(level)})


def reserved_overhang(view: ContextView) -> Measured | None:
    """The allocator holds much more device memory than tensors use: fragmentation, or one large peak."""
    held, used = view.peak.get("gpu_mem_reserved_bytes"), view.peak.get("gpu_mem_allocated_bytes")
    if held is None or used is None or held - used < 1e9:
        return None
    level = 100 * (held - used) / held
    return Measured(level, 0.0, {"held": fmt.size(held), "used": fmt.size(used)})


def rank_gpu_imbalance(view: ContextView) -> Measured | None:
    """Ranks use very different amounts of device memory."""
    members = view.members.get("gpu_mem_used_bytes", {})
    if len(members) < 2:
        return None
    worst = max(members, key=lambda r: members[r])
    middle = sorted(members.values())[(len(members) - 1) // 2]
    if middle <= 0 or members[worst] - middle < 256e6:
        return None
    return Measured(
        100 * (members[worst] / middle - 1),
        0.0,
        {"rank": f"r{worst}", "value": fmt.size(members[worst]), "middle": fmt.size(middle)},
        ranks=(worst,),
    )


SYSTEM_RULES: Final[tuple[Rule[ContextView], ...]] = (
    Rule(
        "LOW_GPU_UTILIZATION",
        "LOW GPU UTIL",
        low_gpu,
        "The GPUs were busy {value} of the time.",
        "Read the step-time diagnosis for what they waited for.",
        warn=70.0001,
        crit=None,
    ),
    Rule(
        "MODERATE_GPU_UTILIZATION",
        "MODERATE GPU UTIL",
        moderate_gpu,
        "The GPUs were busy {value} of the time.",
        "Read the step-time diagnosis for what they waited for.",
        warn=30.0001,
        crit=None,
    ),
    Rule(
        "CPU_LIMITED",
        "CPU LIMITED",
        _level(
            "cpu_throttled_percent",
            "mean",
            fmt.percent,
            "The container's CPU quota stops the job for a good part of the time.",
        ),
        "The container's CPU quota stopped the job {value} of the time.",
        "Raise the CPU limit of the container, or use fewer threads and loader workers.",
        warn=10.0,
        crit=30.0,
    ),
    Rule(
        "HIGH_GPU_MEM",
        "HIGH GPU MEM",
        _level("gpu_mem_percent", "peak", fmt.percent, "The fullest of the job's GPUs is nearly full."),
        "The fullest GPU reached {value} of its memory.",
        "Reduce memory before the job runs out; see step memory.",
        warn=92.0,
        crit=97.0,
    ),
    Rule(
        "HIGH_GPU_TEMP",
        "HIGH GPU TEMP",
        _level("gpu_temp_c", "peak", fmt.BY_UNIT["c"], "A GPU is so hot that it may lower its clocks."),
        "The hottest GPU reached {value}.",
        "Check cooling: hot GPUs lower their clocks.",
        warn=85.0,
        crit=92.0,
    ),
    Rule(
        "HIGH_GPU_POWER",
        "HIGH GPU POWER",
        _level("gpu_power_percent", "mean", fmt.percent, "A GPU runs at its power limit."),
        "A GPU drew {value} of its power limit.",
        "A GPU at its power limit lowers its clocks; raise the limit if you may.",
        warn=97.0,
        crit=None,
    ),
    Rule(
        "UNEVEN_GPU_UTIL",
        "UNEVEN GPU UTIL",
        _level(
            "gpu_util_spread_percent",
            "mean",
            fmt.percent,
            "Some of the job's GPUs are much busier than others.",
        ),
        "The busiest GPU was {value} points busier than the idlest.",
        "Look at the straggler findings of step time.",
        warn=30.0,
        crit=None,
    ),
    Rule(
        "HIGH_RAM",
        "HIGH RAM",
        _level("ram_percent", "peak", fmt.percent, "The machine is nearly out of memory."),
        "Memory of the machine reached {value}.",
        "Reduce loader workers, caches or the batch size before the kernel kills the job.",
        warn=90.0,
        crit=97.0,
    ),
    Rule(
        "HIGH_CPU",
        "HIGH CPU",
        high_cpu,
        "All cores together were {value} busy.",
        "Move preprocessing off this machine, or use more cores.",
        warn=90.0,
        crit=None,
    ),
)
PROCESS_RULES: Final[tuple[Rule[ContextView], ...]] = (
    Rule(
        "HIGH_PROCESS_CPU",
        "HIGH PROCESS CPU",
        high_process_cpu,
        "A rank and its workers use {value} CPU on a machine of {cores} cores.",
        "Use fewer or cheaper loader workers.",
        warn=90.0,
        crit=None,
    ),
    Rule(
        "HIGH_PROCESS_RSS",
        "HIGH PROCESS RSS",
        high_rss,
        "A rank holds {value}, {share} of the machine's memory.",
        "Look for data kept in memory by the process or its workers.",
        warn=80.0,
        crit=92.0,
    ),
    Rule(
        "HIGH_PROCESS_GPU_MEM",
        "HIGH PROCESS GPU MEM",
        high_process_gpu,
        "A rank uses {value} of device memory, {share} of the device.",
        "Reduce the batch size or the model's footprint.",
        warn=92.0,
        crit=97.0,
    ),
    Rule(
        "GPU_RESERVED_OVERHANG",
        "GPU RESERVED OVERHANG",
        reserved_overhang,
        "The allocator holds {held} while tensors use {used}.",
        "Try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; avoid changing shapes.",
        warn=30.0,
        crit=None,
    ),
    Rule(
        "RANK_GPU_MEM_IMBALANCE",
        "RANK GPU MEM IMBALANCE",
        rank_gpu_imbalance,
        "{rank} uses {value} of device memory, the median rank {middle}.",
        "Compare what lives on {rank} with the other ranks.",
        warn=20.0,
        crit=None,
    ),
)


def diagnose_context(view: ContextView, rules: tuple[Rule[ContextView], ...], calm: str) -> list[Finding]:
    """Sorted findings; never empty. `calm` is what is said when nothing stands out."""
    if not view.samples:
        return [Finding("NO_DATA", "NO DATA", INFO, "No samples: the run was too short.", "Run longer.")]
    found = []
    for rule in rules:
        measured = rule.measure(view)
        finding = rule.finding(measured, True) if measured is not None else None
        if finding is not None:
            found.append(finding)
    return ordered(found) or [Finding("NORMAL", "NORMAL", INFO, calm, "Nothing to do.")]
