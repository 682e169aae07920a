"""System and process diagnoses: each fires at its thresholds, and never without a measurement."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.unit import made
from traceml.analyze.cores import CoreUse
from traceml.analyze.diagnose import diagnose_gauges
from traceml.analyze.rules.system import GaugeView
from traceml.analyze.sections import process_samples, process_section, system_section, training_times
from traceml.analyze.summarize import summarize
from traceml.schema import catalog as c
from traceml.schema.recorded import NodeGauges, RankRecording, RunFacts, RunRecording
from traceml.schema.summary import CRIT, INFO, WARN, Section

FACTS = RunFacts("demo", cores=8)
ON_GPU = {"type": "cuda", "capacity_bytes": 80e9}


def rank(number: int = 0, device: dict[str, Any] | None = None, **rows: Any) -> RankRecording:
    """A rank that trains for a second."""
    return made.rank(made.steps(100, forward=10, **rows), number, device=device or ON_GPU)


def system_of(device: dict[str, Any] | None = None, **gauges: Any) -> Section:
    """The system section of a run with these gauges."""
    one = rank(device=device)
    return system_section(
        made.run(one, system_rows=made.system(**gauges)), FACTS, {0: one}, training_times({0: one}), CoreUse()
    )


def process_of(*samples: Any, ranks: int = 1, device: dict[str, Any] | None = None, **rows: Any) -> Section:
    """The process section of a run with these samples."""
    all_ranks = [rank(i, device, **rows) for i in range(ranks)]
    recording = made.run(
        *all_ranks,
        process_rows=np.concatenate(samples),
        system_rows=made.system(ram_bytes=8e9, ram_percent=10),
    )
    return summarize(recording, FACTS).process


SYSTEM = [
    ("gpu_util_percent", 95.0, "NORMAL", INFO),
    ("gpu_util_percent", 71.0, "NORMAL", INFO),
    ("gpu_util_percent", 69.0, "MODERATE GPU UTIL", WARN),
    ("gpu_util_percent", 31.0, "MODERATE GPU UTIL", WARN),
    ("gpu_util_percent", 29.0, "LOW GPU UTIL", WARN),
    ("gpu_util_percent", 0.0, "LOW GPU UTIL", WARN),
    ("gpu_mem_percent", 91.0, "NORMAL", INFO),
    ("gpu_mem_percent", 93.0, "HIGH GPU MEM", WARN),
    ("gpu_mem_percent", 98.0, "HIGH GPU MEM", CRIT),
    ("gpu_temp_c", 84.0, "NORMAL", INFO),
    ("gpu_temp_c", 86.0, "HIGH GPU TEMP", WARN),
    ("gpu_temp_c", 93.0, "HIGH GPU TEMP", CRIT),
    ("gpu_power_percent", 96.0, "NORMAL", INFO),
    ("gpu_power_percent", 98.0, "HIGH GPU POWER", WARN),
    ("gpu_util_spread_percent", 29.0, "NORMAL", INFO),
    ("gpu_util_spread_percent", 31.0, "UNEVEN GPU UTIL", WARN),
    ("cpu_percent", 89.0, "NORMAL", INFO),
    ("cpu_percent", 95.0, "HIGH CPU", WARN),
    ("ram_percent", 89.0, "NORMAL", INFO),
    ("ram_percent", 91.0, "HIGH RAM", WARN),
    ("ram_percent", 98.0, "HIGH RAM", CRIT),
    ("cpu_throttled_percent", 9.0, "NORMAL", INFO),
    ("cpu_throttled_percent", 11.0, "CPU LIMITED", WARN),
    ("cpu_throttled_percent", 31.0, "CPU LIMITED", CRIT),
]


@pytest.mark.parametrize(
    ("key", "value", "status", "severity"), SYSTEM, ids=[f"{s[0]}={s[1]}" for s in SYSTEM]
)
def test_system_rules_fire_at_their_thresholds(key: str, value: float, status: str, severity: str) -> None:
    """One gauge on both sides of each threshold, while everything else is calm."""
    gauges: dict[str, Any] = {key: value}
    found = system_of(**gauges)
    assert [(f.status, f.severity) for f in found.issues] == [(status, severity)]


def test_low_utilization_is_not_also_moderate() -> None:
    """Below 30 % there is one finding, not two."""
    assert [f.kind for f in system_of(gpu_util_percent=10.0).issues] == ["LOW_GPU_UTILIZATION"]


def test_utilization_is_judged_by_its_mean() -> None:
    """A GPU that is idle half of the time is moderately used, even if it peaks at 100 %."""
    assert system_of(gpu_util_percent=[100.0, 0.0] * 5).diagnosis.kind == "MODERATE_GPU_UTILIZATION"


def test_memory_is_judged_by_its_peak() -> None:
    """A single moment of full memory is enough to kill the job."""
    assert system_of(ram_percent=[30.0] * 9 + [98.0]).diagnosis.severity == CRIT


def test_busy_cpu_is_normal_when_training_on_the_cpu() -> None:
    """The training itself keeps the cores busy, so there is no finding."""
    assert system_of({"type": "cpu"}, cpu_percent=100.0).diagnosis.status == "NORMAL"


def test_machine_without_a_gpu_is_normal_and_says_so() -> None:
    """A missing GPU reading is not an idle GPU: metrics are null, and there is no warning."""
    found = system_of()
    assert found.diagnosis.status == "NORMAL"
    assert "no GPU seen" in found.diagnosis.summary
    assert found.metrics["gpu_util_percent"].average is None
    assert found.nodes["0"].metrics["gpu_util_percent"] is None


def test_run_without_samples_has_no_data() -> None:
    """A run that is too short to be sampled: NO DATA and nulls in both sections."""
    found = summarize(made.run(rank()), FACTS)
    for section in (found.system, found.process):
        assert section.diagnosis.status == "NO DATA"
        assert all(
            stat.average is None for k, stat in section.metrics.items() if k != "gpu_mem_reserved_bytes"
        )


def test_only_samples_during_training_count() -> None:
    """Idle GPUs before the first step, while data is loading, do not count."""
    one = rank()  # trains from second 1 to second 2
    rows = made.system(20, gpu_util_percent=0.0)
    rows["time_ns"] = np.arange(20) * 100_000_000
    rows["gpu_util_percent"][rows["time_ns"] >= 1_000_000_000] = 95.0
    found = system_section(
        made.run(one, system_rows=rows), FACTS, {0: one}, training_times({0: one}), CoreUse()
    )
    assert found.diagnosis.status == "NORMAL"
    assert found.window.samples == 10


# ---- process


def samples(pid: int = 100, **gauges: Any) -> Any:
    return made.process(pid=pid, **gauges)


PROCESS = [
    ({"cpu_percent": 700.0}, "NORMAL", INFO),
    ({"cpu_percent": 760.0}, "HIGH PROCESS CPU", WARN),
    ({"rss_bytes": 60e9}, "NORMAL", INFO),
    ({"rss_bytes": 65e9}, "HIGH PROCESS RSS", WARN),
    ({"rss_bytes": 75e9}, "HIGH PROCESS RSS", CRIT),
]


@pytest.mark.parametrize(("gauges", "status", "severity"), PROCESS, ids=[str(p[0]) for p in PROCESS])
def test_process_rules_fire_at_their_thresholds(gauges: dict[str, Any], status: str, severity: str) -> None:
    """CPU against the 8 cores, resident memory against the machine's 80 GB."""
    found = process_of(samples(**gauges)).issues
    assert [(f.status, f.severity) for f in found] == [(status, severity)]


@pytest.mark.parametrize(
    ("used", "severity"), [(70e9, None), (75e9, WARN), (78e9, CRIT)], ids=["normal", "warn", "crit"]
)
def test_device_memory_of_a_process_is_compared_with_its_device(used: float, severity: str | None) -> None:
    """92 % and 97 % of the device's own capacity."""
    found = process_of(samples(gpu_mem_used_bytes=used), allocated=40e9).diagnosis
    assert found.status == ("NORMAL" if severity is None else "HIGH PROCESS GPU MEM")
    assert found.severity == (severity or INFO)


def test_device_memory_is_not_judged_without_a_known_capacity() -> None:
    """Pressure is never guessed."""
    found = process_of(samples(gpu_mem_used_bytes=1e15), device={"type": "cuda"}, allocated=40e9)
    assert found.diagnosis.status == "NORMAL"


@pytest.mark.parametrize(("reserved", "status"), [(13e9, "NORMAL"), (16e9, "GPU RESERVED OVERHANG")])
def test_overhang_fires_if_the_allocator_holds_much_more_than_tensors_use(
    reserved: float, status: str
) -> None:
    """At 30 % of what the allocator holds, and at least 1 GB."""
    assert process_of(samples(), allocated=10e9, reserved=reserved).diagnosis.status == status


def test_small_overhang_is_ignored() -> None:
    """Less than a gigabyte does not matter, whatever its share."""
    assert process_of(samples(), allocated=0.5e9, reserved=1.4e9).diagnosis.status == "NORMAL"
    found = process_of(samples(), allocated=0.5e9, reserved=1.6e9)
    assert found.diagnosis.status == "GPU RESERVED OVERHANG"


def test_uneven_device_memory_names_the_rank() -> None:
    """A rank is named if it uses at least 20 % and 256 MB more than the median rank."""
    for used, worst, status, ranks in (
        (10e9, 12.1e9, "RANK GPU MEM IMBALANCE", [2]),
        (10e9, 11.9e9, "NORMAL", []),
        (1e9, 1.26e9, "RANK GPU MEM IMBALANCE", [2]),
        (1e9, 1.25e9, "NORMAL", []),
    ):
        uneven = [samples(100 + i, gpu_mem_used_bytes=u) for i, u in enumerate((used, used, worst))]
        found = process_of(*uneven, ranks=3, allocated=0.9e9).diagnosis
        assert (found.status, found.ranks) == (status, ranks)


def test_each_rank_has_its_own_numbers() -> None:
    """The samples of a process belong to its rank only, even if ranks have different numbers of samples."""
    both = [made.process(10, 100, cpu_percent=100.0), made.process(4, 101, cpu_percent=300.0)]
    found = process_of(*both, ranks=2)
    assert found.ranks["0"].metrics["cpu_percent"] == 100
    assert found.ranks["1"].metrics["cpu_percent"] == 300
    assert (found.metrics["cpu_percent"].worst.value, found.metrics["cpu_percent"].worst.rank) == (300, 1)


def test_unmeasured_device_memory_is_null() -> None:
    """On a CPU-only run every device metric of the process is null, in total and for each rank."""
    found = process_of(samples(), device={"type": "cpu"})
    for key in ("gpu_mem_used_bytes", "gpu_mem_reserved_bytes"):
        assert found.metrics[key].average is None
        assert found.ranks["0"].metrics[key] is None


def test_rank_without_samples_has_nulls() -> None:
    """A rank that ended before it was sampled has nulls, not zeros; other ranks have their numbers."""
    found = process_of(samples(100), ranks=2)
    assert found.ranks["1"].metrics["cpu_percent"] is None
    assert found.ranks["0"].metrics["cpu_percent"] == 100


# ---- all rules


@pytest.mark.parametrize("section", ["system", "process"])
def test_no_rule_fires_without_measurements(section: str) -> None:
    """A view without any measurement fires no rule, not even those about low values."""
    keys = [m.key for m in (*c.SYSTEM_METRICS, *c.PROCESS_METRICS)]
    empty = GaugeView(dict.fromkeys(keys), dict.fromkeys(keys), on_cpu=False, samples=5)
    assert [f.kind for f in diagnose_gauges(empty, section, "calm")] == ["NORMAL"]


def test_findings_are_sorted_by_severity() -> None:
    """Critical before warnings, and all of them are kept."""
    found = system_of(gpu_util_percent=50.0, ram_percent=98.0, gpu_temp_c=86.0).issues
    assert [f.severity for f in found] == [CRIT, WARN, WARN]
    assert found[0].kind == "HIGH_RAM"


def test_empty_run_has_both_sections() -> None:
    """Without ranks and samples both sections say NO DATA."""
    empty = RunRecording(ranks=[])
    assert system_section(empty, FACTS, {}, {}, CoreUse()).diagnosis.kind == "NO_DATA"
    assert process_section(empty, FACTS, {}, None, process_samples(empty, {}, {})).diagnosis.kind == "NO_DATA"


def test_slurm_tasks_on_one_host_are_one_machine() -> None:
    """Two tasks with their own monitors on one host and a third on another host: two machines are shown."""
    ranks = []
    for number, node_rank in ((0, 0), (1, 0), (2, 1)):
        rank = made.rank(made.steps(60, forward=10.0), number, world_size=3, node=number)
        ranks.append(replace(rank, identity=replace(rank.identity, node_rank=node_rank)))
    others = {node: NodeGauges(made.system(cpu_percent=30.0 + node), None) for node in (1, 2)}
    recording = made.run(*ranks, system_rows=made.system(), other_nodes=others)
    found = summarize(recording, RunFacts("demo")).system
    assert list(found.nodes) == ["0", "2"]
