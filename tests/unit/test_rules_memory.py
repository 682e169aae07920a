"""Every step-memory diagnosis on hand-made series: growth, jumps, waves, pressure, imbalance."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.unit import made
from tests.unit.made import align
from traceml.analyze.diagnose import diagnose_memory
from traceml.analyze.rules.memory import MemoryView
from traceml.analyze.sections import memory_section, memory_view, process_samples, training_times
from traceml.schema import catalog as c
from traceml.schema.recorded import RankRecording
from traceml.schema.summary import CRIT, INFO, WARN, Finding

MB, GB = 1e6, 1e9


def view(
    *peaks: Any,
    count: int = 200,
    memory: str = "device",
    reserved: float | None = None,
    capacity: float | None = None,
) -> MemoryView:
    """Peak memory of each rank in bytes: one number for all steps, or one per step."""
    table = np.stack([made.series(p, count) for p in peaks])
    values = {"peak_allocated_bytes": table, "peak_reserved_bytes": table, "rss_bytes": table}
    if reserved is not None:
        values["peak_reserved_bytes"] = np.full_like(table, reserved)
    return MemoryView(
        ranks=tuple(range(len(peaks))),
        steps=np.arange(1, count + 1),
        memory=memory,
        values=values,
        capacities=np.full(len(peaks), capacity) if capacity else None,
    )


def first(made_view: MemoryView | None) -> Finding:
    return diagnose_memory(made_view)[0]


def ramp(start: float, rise: float, count: int = 200) -> np.ndarray:
    """Steady growth."""
    return start + np.linspace(0, rise, count)


# ---- HIGH PRESSURE


@pytest.mark.parametrize(
    ("share", "severity"), [(0.5, None), (0.91, None), (0.93, WARN), (0.965, WARN), (0.98, CRIT)]
)
def test_pressure_fires_at_its_thresholds(share: float, severity: str | None) -> None:
    """Reserved memory of 92 % of the device is a warning, 97 % is critical."""
    found = first(view(1 * GB, reserved=share * 80 * GB, capacity=80 * GB))
    assert found.status == ("BALANCED" if severity is None else "HIGH PRESSURE")
    assert found.severity == (severity or INFO)


def test_pressure_is_never_guessed() -> None:
    """Without a known capacity there is no pressure, however much is used."""
    assert first(view(900 * GB)).kind == "BALANCED"


def test_resident_memory_is_compared_with_the_machine() -> None:
    """Without an accelerator the same rule compares RSS with the machine's memory, and says so."""
    found = first(view(15.6 * GB, memory="rss", capacity=16 * GB))
    assert (found.kind, found.severity) == ("HIGH_PRESSURE", CRIT)
    assert "resident memory" in found.summary


def test_pressure_is_not_critical_in_a_short_run() -> None:
    """Below 20 steps at most a warning."""
    assert first(view(79 * GB, count=19, capacity=80 * GB)).severity == WARN
    assert first(view(79 * GB, count=20, capacity=80 * GB)).severity == CRIT


# ---- creep


def test_steady_growth_is_memory_creep() -> None:
    """Memory that grows through the whole window: confirmed, critical, with rate and forecast."""
    found = first(view(ramp(1 * GB, 400 * MB), capacity=4 * GB))
    assert (found.kind, found.status, found.severity) == ("CREEP_CONFIRMED", "MEMORY CREEP", CRIT)
    assert found.evidence["bytes_per_step"] == pytest.approx(2 * MB, rel=0.05)
    assert found.evidence["steps_until_full"] == pytest.approx(2600 * MB / (2 * MB), rel=0.1)
    # The rise is that from the middle of the first tenth to the middle of the last one.
    assert "rose by 361.8 MB over 180 steps (1.02 GB to 1.38 GB, 2.0 MB per step)" in found.summary
    assert "at this rate, memory is full after" in found.summary


def test_confirmed_creep_is_not_also_early() -> None:
    """One growth is one finding."""
    assert [f.kind for f in diagnose_memory(view(ramp(1 * GB, 400 * MB)))] == ["CREEP_CONFIRMED"]


def test_small_rise_is_memory_rising() -> None:
    """A rise that is too small to be certain is the early form: a warning, never critical."""
    found = first(view(ramp(1 * GB, 45 * MB)))
    assert (found.kind, found.status, found.severity) == ("CREEP_EARLY", "MEMORY RISING", WARN)


def test_growth_with_noise_is_still_creep() -> None:
    """Garbage collection and caching make the series noisy, but it still grows."""
    noise = 10 * MB * np.random.default_rng(5).standard_normal(200)
    assert first(view(ramp(1 * GB, 400 * MB) + noise)).kind == "CREEP_CONFIRMED"


def waves(count: int = 200, size: float = 200 * MB, periods: float = 4.0) -> np.ndarray:
    return 1 * GB + size * np.sin(np.linspace(0, 2 * np.pi * periods, count))


@pytest.mark.parametrize(
    "series",
    [
        np.full(200, 1 * GB),
        1 * GB + 5 * MB * np.random.default_rng(1).standard_normal(200),
        np.where(np.arange(200) < 80, 1 * GB, 1.5 * GB),  # one jump: a new sequence length, a cache
        np.where(np.arange(200) < 10, 0.5 * GB, 1.5 * GB),
        waves(),
        waves(periods=1.5),
        np.concatenate([ramp(1 * GB, 400 * MB, 60), np.full(140, 1.4 * GB)]),  # it settled
        ramp(1.4 * GB, -400 * MB),
        1 * GB + 300 * MB * (np.arange(200) % 50) / 50,  # a saw: each epoch starts over
        ramp(1 * GB, 20 * MB),  # too little to matter
        ramp(100 * GB, 500 * MB),  # too small a share of what is there
    ],
    ids=[
        "flat",
        "noise",
        "jump",
        "early jump",
        "waves",
        "wave",
        "settled",
        "falling",
        "saw",
        "tiny",
        "share",
    ],
)
def test_series_without_growth_is_balanced(series: np.ndarray) -> None:
    """Flat, noisy, jumping, waving, settling or falling memory is not creep, not even early."""
    assert first(view(series)).kind == "BALANCED"


def test_trend_needs_fifty_steps() -> None:
    """With fewer steps no trend is claimed, and the section says so."""
    found = first(view(ramp(1 * GB, 400 * MB, 49), count=49))
    assert found.kind == "BALANCED"
    assert "A trend needs 50 steps; there are 49." in found.summary
    assert first(view(ramp(1 * GB, 400 * MB, 50), count=50)).kind == "CREEP_CONFIRMED"


def test_creep_must_show_on_the_typical_rank_too() -> None:
    """If one of four ranks grows, the job does not creep."""
    assert first(view(ramp(1 * GB, 200 * MB), 1 * GB, 1 * GB, 1 * GB)).kind == "BALANCED"
    assert first(view(*[ramp(1 * GB, 200 * MB)] * 4)).kind == "CREEP_CONFIRMED"


def test_forecast_is_never_negative() -> None:
    """Memory use beyond the capacity (it can be oversubscribed) is full now, not some steps ago."""
    found = diagnose_memory(view(ramp(10 * GB, 4 * GB), capacity=12 * GB))
    creep = next(f for f in found if f.kind == "CREEP_CONFIRMED")
    assert creep.evidence["steps_until_full"] == 0
    assert "-" not in creep.summary


# ---- IMBALANCE


@pytest.mark.parametrize(("worst", "severity"), [(1.19, None), (1.22, WARN), (1.29, WARN), (1.32, CRIT)])
def test_imbalance_fires_at_its_thresholds(worst: float, severity: str | None) -> None:
    """A rank 20 % above the median rank is a warning, 30 % is critical, and the rank is named."""
    found = first(view(4 * GB, 4 * GB, 4 * worst * GB))
    assert found.kind == ("BALANCED" if severity is None else "IMBALANCE")
    if severity is not None:
        assert (found.severity, found.ranks) == (severity, [2])


def test_imbalance_of_few_bytes_is_ignored() -> None:
    """Less than 256 MB more does not matter, whatever share that is."""
    assert first(view(100 * MB, 100 * MB, 355 * MB)).kind == "BALANCED"
    assert first(view(100 * MB, 100 * MB, 357 * MB)).kind == "IMBALANCE"


def test_single_rank_has_no_imbalance() -> None:
    """There is no other rank to compare with."""
    assert first(view(4 * GB)).kind == "BALANCED"


# ---- loader workers


def held(*by_sample: Any) -> MemoryView:
    """Calm ranks, and the bytes that their loader workers held at each sample."""
    calm = view(*[1 * GB for _ in by_sample], count=500)
    return replace(calm, workers={rank: np.array(values) for rank, values in enumerate(by_sample)})


def test_leak_in_loader_workers_names_the_rank_and_the_rate() -> None:
    """The processes themselves do not grow, but the workers of r1 do."""
    flat = np.full(40, 900 * MB)
    found = first(held(flat, ramp(900 * MB, 450 * MB, 40)))
    assert (found.status, found.severity, found.ranks) == ("WORKER MEMORY CREEP", CRIT, [1])
    assert "loader workers of r1" in found.summary
    assert 100 * made.number(found, "bytes_per_step") == pytest.approx(90 * MB, rel=0.1)
    assert first(held(ramp(900 * MB, 450 * MB, 20))).kind == "WORKER_CREEP"


@pytest.mark.parametrize(
    "values",
    [
        np.full(40, 900 * MB),
        ramp(900 * MB, 450 * MB, 19),  # too few samples
        np.tile(ramp(900 * MB, 450 * MB, 10), 4),  # workers that are started again in each epoch
        np.concatenate([np.full(10, 900 * MB), np.full(30, 2 * GB)]),  # a second loader
        np.concatenate([ramp(0, 900 * MB, 8), np.full(32, 900 * MB)]),  # they start, or fill a cache
        np.zeros(0),
    ],
    ids=["flat", "short", "epochs", "jump", "start", "none"],
)
def test_workers_that_do_not_keep_growing_are_not_reported(values: np.ndarray) -> None:
    """A level, a jump, a rise at the start and a sawtooth are no leak."""
    assert first(held(values)).kind == "BALANCED"


def test_memory_of_workers_comes_from_the_samples_of_their_rank() -> None:
    """Samples without a worker are left out."""
    rows = made.process(30, pid=100, workers_bytes=[np.nan] * 5 + [5e8] * 25)
    found, _ = section_of(made.rank(made.steps(100, forward=30.0)), process_rows=rows)
    assert found is not None
    assert found.workers[0].tolist() == [5e8] * 25


# ---- which memory, and missing readings


def section_of(*ranks: RankRecording, **parts: Any) -> tuple[MemoryView | None, Any]:
    recording = made.run(*ranks, **parts)
    by_rank = {r.rank: r for r in ranks}
    samples = process_samples(recording, by_rank, training_times(by_rank))
    found = memory_view(by_rank, align(ranks), recording, samples)
    return found, memory_section(found, by_rank)


def test_run_without_memory_readings_has_no_data() -> None:
    """Without any memory reading: NO DATA and null metrics, never 0 bytes."""
    found, section = section_of(made.rank(made.steps(100, forward=10, rss=None)))
    assert found is None
    assert section.diagnosis.status == "NO DATA"
    assert {stat.worst.value for stat in section.metrics.values()} == {None}


def test_resident_memory_is_used_without_an_accelerator() -> None:
    """The section says which memory it covers; device metrics are null, not 0."""
    rank = made.rank(made.steps(100, forward=10, rss=3 * GB))
    found, section = section_of(rank, system_rows=made.system(ram_bytes=8 * GB, ram_percent=25.0))
    assert found is not None
    assert (section.window.memory, section.window.capacity_bytes) == ("rss", 32 * GB)
    assert section.metrics["rss_bytes"].worst.value == 3 * GB
    assert section.metrics["peak_allocated_bytes"].worst.value is None


def test_device_memory_is_used_if_every_rank_has_it() -> None:
    """Peak allocated and reserved memory of the device, with the device's capacity."""
    rows = made.steps(100, forward=10, allocated=10 * GB, reserved=12 * GB)
    found, section = section_of(made.rank(rows, device={"type": "cuda", "capacity_bytes": 80 * GB}))
    assert found is not None
    assert (section.window.memory, section.window.capacity_bytes) == ("device", 80 * GB)
    assert section.metrics["peak_reserved_bytes"].worst.value == 12 * GB


def test_unread_resident_memory_is_null() -> None:
    """On a platform without /proc a rank's resident memory is unknown, not 0 bytes."""
    rows = made.steps(100, forward=10, allocated=10 * GB, rss=None)
    _, section = section_of(made.rank(rows, device={"type": "mps"}))
    assert section.metrics["rss_bytes"].worst.value is None
    assert section.ranks["0"].metrics["rss_bytes"] is None


def test_steps_before_the_first_reading_are_not_zero_memory() -> None:
    """Rows before the first reading are left out: they must not look like a rise from zero."""
    rows = made.steps(100, forward=10, rss=1 * GB)
    unread = rows["step"] <= 30
    rows["rss_bytes"][unread] = 0
    rows["flags"][unread] &= ~np.uint32(c.FLAG_RSS)
    found, section = section_of(made.rank(rows))
    assert found is not None
    assert found.peak.min() == 1 * GB
    assert section.diagnosis.kind == "BALANCED"
    assert section.window.head_tail_delta_bytes == 0
    assert section.metrics["rss_bytes"].p5 == 1 * GB


def test_capacity_is_unknown_if_one_rank_s_is_unknown() -> None:
    """Capacity counts only if every rank reports it."""
    ranks = [
        made.rank(made.steps(60, forward=10, allocated=GB), i, device={"type": "cuda", "capacity_bytes": cap})
        for i, cap in enumerate((80 * GB, None))
    ]
    found, section = section_of(*ranks)
    assert found is not None
    assert found.capacities is None
    assert section.window.capacity_bytes is None


def test_each_rank_is_compared_with_its_own_device() -> None:
    """45 GB would be too much for r0's 40 GB device, but r1's device has 80 GB."""
    ranks = [
        made.rank(
            made.steps(60, forward=10, allocated=used * GB),
            i,
            device={"type": "cuda", "capacity_bytes": cap * GB},
        )
        for i, (used, cap) in enumerate([(20, 40), (45, 80)])
    ]
    found, _ = section_of(*ranks)
    assert found is not None
    (first_finding, *_) = diagnose_memory(found)
    assert first_finding.kind != "HIGH_PRESSURE"
    assert found.capacities is not None
    assert found.capacities.tolist() == [40 * GB, 80 * GB]
