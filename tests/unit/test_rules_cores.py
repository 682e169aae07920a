"""Lack of cores and idle cores: what is said about them, and when. Hand-made windows and gauges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.unit import made
from tests.unit.made import window
from traceml.analyze.cores import CoreUse, core_use
from traceml.analyze.diagnose import diagnose_time
from traceml.analyze.summarize import summarize
from traceml.schema.recorded import RunFacts
from traceml.schema.summary import CRIT, INFO, WARN, Environment, Finding

FACTS = RunFacts("demo", status="completed", cores=2, environment=Environment(cpu_count=2))
BUSY: dict[str, dict[str, Any]] = {
    "INPUT_BOUND": {"input": 60.0, "forward": 30.0, "backward": 10.0},
    "WAIT_HEAVY": {"wait": 60.0, "forward": 30.0, "backward": 10.0},
    "COMPUTE_BOUND": {"forward": 90.0, "backward": 10.0},
    "BALANCED": {"forward": 44.0, "backward": 40.0, "input": 8.0, "wait": 8.0},
}


def first(use: CoreUse, kind: str = "COMPUTE_BOUND", **more: Any) -> Finding:
    found = diagnose_time(window(core_use=use, **BUSY[kind], **more))[0]
    assert found.kind == kind
    return found


@pytest.mark.parametrize("kind", BUSY)
def test_lack_of_cores_comes_before_any_other_advice(kind: str) -> None:
    """Threads that wait for a core 46 % of the time: the sentence says so, and cores come first."""
    short = CoreUse(cores=2, wait_share=0.46, run_busy=0.7, others_busy=1.3)
    found = first(short, kind)
    assert found.summary.endswith("The threads waited for a core 46.0 % of the time.")
    assert found.action.startswith("Free CPU cores first: other work keeps 1.3 of 2 cores busy. Then ")
    calm = first(CoreUse(cores=2, wait_share=0.1, run_busy=1.9, others_busy=0.1), kind)
    assert "waited for a core" not in calm.summary
    assert ("the 2 cores are busy" in calm.action) is (kind == "INPUT_BOUND")
    assert "Free CPU cores" not in calm.action


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (
            {"processes": 2, "threads": 2, "others_busy": 0.0},
            "the run competes with itself, 2 processes × 2 threads on 2 cores: try OMP_NUM_THREADS=1 ",
        ),
        (
            {"threads": 8, "others_busy": 0.0},
            "the run competes with itself, 1 process × 8 threads on 2 cores: try OMP_NUM_THREADS=2 ",
        ),
        ({"processes": 4, "others_busy": 0.0}, "4 processes × 1 thread on 2 cores: try fewer processes"),
        (
            {"workers": 4, "others_busy": 0.0},
            "1 process × 1 thread and 4 loader workers on 2 cores: try fewer loader workers",
        ),
        (
            {"threads": 2, "others_busy": 1.3},
            "first: other work keeps 1.3 of 2 cores busy (until they are free, try OMP_NUM_THREADS=1).",
        ),
        ({"workers": 4, "others_busy": 1.0}, "first: other work keeps 1.0 of 2 cores busy."),
        ({"processes": 2, "threads": 2, "others_busy": 1.0}, "; other work keeps 1.0 of 2 cores busy."),
        (
            {"throttled_share": 0.6, "others_busy": 1.0},
            "first: a CPU quota stops the run 60.0 % of the time.",
        ),
        ({}, "look for other jobs, a CPU quota, or a busy host of this machine."),
    ],
)
def test_rival_for_the_cores_is_named(use: dict[str, Any], words: str) -> None:
    """The rival is the run itself if it has more threads than cores, otherwise other work, if any was
    seen."""
    assert words in first(CoreUse(cores=2, wait_share=0.5, run_busy=1.0, **use)).action


@pytest.mark.parametrize(
    ("use", "words"),
    [
        ({"threads": 1, "run_busy": 1.0}, "OMP_NUM_THREADS=4 "),
        ({"threads": 1, "run_busy": 2.0, "processes": 2}, "OMP_NUM_THREADS=2 "),
        ({"threads": 1, "run_busy": 1.0, "others_busy": 2.0}, "OMP_NUM_THREADS=2 "),
        ({"threads": 1, "run_busy": 1.0, "others_busy": 2.2}, "OMP_NUM_THREADS=2 "),
        ({"threads": 1, "run_busy": 1.0, "others_busy": 2.3}, None),
        ({"threads": 2, "run_busy": 1.41}, "OMP_NUM_THREADS=4 "),
        ({"threads": 2, "run_busy": 1.39}, None),
        ({"threads": 4, "run_busy": 3.9}, None),
        ({"threads": 1, "run_busy": 1.0, "on_cpu": False}, None),
        ({"threads": 1, "run_busy": None}, None),
        ({"threads": 1, "run_busy": 0.5}, None),
    ],
)
def test_compute_on_few_threads_while_cores_are_idle(use: dict[str, Any], words: str | None) -> None:
    """One busy torch thread and idle cores: try more threads first. Not with a GPU, a busy machine, or a
    thread that sleeps."""
    action = first(CoreUse(cores=4, **{"others_busy": 0.0, **use})).action
    assert ("Try more torch threads first" in action) == (words is not None)
    assert words is None or words in action


@pytest.mark.parametrize(
    ("run_busy", "kinds"),
    [(0.4, [("WAIT_HEAVY", WARN), ("COMPUTE_BOUND", INFO)]), (0.9, [("WAIT_HEAVY", WARN)])],
)
def test_a_model_that_only_waits_is_a_remark_beside_a_warning(
    run_busy: float, kinds: list[tuple[str, str]]
) -> None:
    """A sleep in a layer, beside some validation. A model that computes is no finding there."""
    use = CoreUse(cores=2, run_busy=run_busy, others_busy=0.0)
    found = diagnose_time(window(core_use=use, forward=70.0, backward=12.0, optimizer=3.0, validation=15.0))
    assert [(f.kind, f.severity) for f in found] == kinds


def test_rank_that_alone_lacks_cores_is_reported() -> None:
    """Two equal ranks without coupling, one of them on a busy core: its slowness is explained."""
    rows = [made.steps(100, forward=ms, measured=made.ALL_MEASURED) for ms in (100.0, 130.0)]
    ranks = [made.rank(r, number, world_size=2) for number, r in enumerate(rows)]
    delays = (1.0, 24.0)
    gauges = [
        made.process(10, pid=100 + number, core_wait_percent=delay, cpu_delay_percent=delay)
        for number, delay in enumerate(delays)
    ]
    process_rows = np.concatenate(gauges)
    process_rows["time_ns"] = 2_000_000_000
    found = summarize(made.run(*ranks, process_rows=process_rows), FACTS).primary_diagnosis
    assert (found.kind, found.ranks) == ("COMPUTE_STRAGGLER", [1])
    assert (
        "The threads of r1 waited for a core 24.0 % of the time, those of the other ranks 1.0 %"
        in found.summary
    )
    assert found.action.startswith("Free CPU cores for r1 first: ")


@pytest.mark.parametrize(
    ("pinned", "cores", "who"),
    [
        (
            ("1", "1"),
            1,
            "the run competes with itself, 2 processes × 1 thread on 1 core: try fewer processes",
        ),
        (("1", "2"), 2, "other work keeps 0.9 of 2 cores busy"),
        (("3", None), 2, "other work keeps 0.9 of 2 cores busy"),
        (("3", "x"), 2, "other work keeps 0.9 of 2 cores busy"),
    ],
)
def test_ranks_that_are_pinned_to_one_core_compete_with_each_other(
    pinned: tuple[str | None, ...], cores: int, who: str
) -> None:
    """Two ranks that a script or a launcher pins to one of two cores: other work is not blamed."""
    rows = made.steps(100, forward=40.0, sync=0.0, measured=(*made.ALL_MEASURED, "sync"))
    ranks = [made.rank(rows, number, world_size=2) for number in range(2)]
    for rank, mask in zip(ranks, pinned, strict=True):
        rank.header["process"] |= {"cores": mask, "threads": 1}
    gauges = [made.process(10, pid=100 + n, core_wait_percent=45.0, cpu_percent=50.0) for n in range(2)]
    process_rows = np.concatenate(gauges)
    process_rows["time_ns"] = 2_000_000_000
    system_rows = made.system(10, cpu_percent=95.0)
    system_rows["time_ns"] = 2_000_000_000
    run = made.run(*ranks, process_rows=process_rows, system_rows=system_rows)
    found = summarize(run, FACTS).primary_diagnosis
    assert found.evidence["cores"] == cores
    assert who in found.action


def test_lack_of_cores_is_not_first_if_it_explains_little_of_the_excess() -> None:
    """r1 sleeps for 60 % of its step and waits for cores a tenth longer than r0: the sleep comes first."""
    rows = [made.steps(100, forward=ms, measured=made.ALL_MEASURED) for ms in (40.0, 100.0)]
    ranks = [made.rank(r, number, world_size=2) for number, r in enumerate(rows)]
    gauges = [made.process(10, pid=100 + n, core_wait_percent=1.0 + 12.0 * n) for n in range(2)]
    process_rows = np.concatenate(gauges)
    process_rows["time_ns"] = 2_000_000_000
    found = summarize(made.run(*ranks, process_rows=process_rows), FACTS).primary_diagnosis
    assert (found.kind, found.ranks) == ("COMPUTE_STRAGGLER", [1])
    assert found.action.startswith("Compare batch shapes")


def test_processes_threads_and_workers_are_counted() -> None:
    """Two trainings without ranks and their loader workers, next to other work, on one machine."""
    starts = [{"kind": "epoch_start", "step": 1, "workers": 2}]
    ranks = [made.rank(made.steps(50, forward=100.0), pid=pid, events=starts) for pid in (100, 101)]
    process_rows = np.concatenate([made.process(5, pid, cpu_percent=60.0) for pid in (100, 101)])
    process_rows["core_wait_percent"] = np.repeat([30.0, 50.0], 5)
    recording = made.run(*ranks, process_rows=process_rows, system_rows=made.system(5, cpu_percent=90.0))
    found = core_use(recording, FACTS, ranks, (0, 10_000_000_000))
    assert (found.cores, found.processes, found.threads, found.workers) == (2, 2, 2, 4)
    assert found.run_busy == pytest.approx(1.2)
    assert found.others_busy == pytest.approx(0.6)
    assert found.wait_share == pytest.approx(0.5)


def test_without_gauges_nothing_is_claimed() -> None:
    """A run that was too short for samples: no core was seen busy or idle."""
    rank = made.rank(made.steps(50, forward=100.0))
    found = core_use(made.run(rank), FACTS, [rank], (0, 1))
    assert (found.run_busy, found.others_busy, found.free, found.wait_share) == (None, None, None, 0.0)


@pytest.mark.parametrize(
    ("busy", "waited", "says"),
    [(0.4, 0.05, True), (0.4, 0.5, False), (0.97, 0.0, False), (None, 0.0, False)],
)
def test_model_that_only_waits_gets_no_advice_to_compute_less(
    busy: float | None, waited: float, says: bool
) -> None:
    """A sleep in a hook is model work by its place, but the process is idle meanwhile. One that lacks a core
    is not idle, and without samples nothing is known."""
    found = first(CoreUse(cores=2, run_busy=busy, wait_share=waited, others_busy=0.0))
    assert ("sleeps, locks and reads inside the model" in found.action) is says
    assert ("its process was idle" in found.summary) is says


def test_idle_time_of_a_process_that_trains_on_a_gpu_says_nothing() -> None:
    """There the process waits for the device."""
    found = first(CoreUse(cores=2, run_busy=0.1, others_busy=0.0, on_cpu=False))
    assert "sleeps" not in found.action


def test_little_other_work_is_not_blamed_while_cores_are_left() -> None:
    """One thread and a third of a core do not fill two cores: who lacks one then lacks it on the host."""
    starved: dict[str, Any] = {"cores": 2, "threads": 1, "run_busy": 0.6, "wait_share": 0.28}
    assert CoreUse(**starved, others_busy=0.3).rival == ""
    assert "other work keeps 1.0 of 2 cores busy" in CoreUse(**starved, others_busy=1.0).rival
    starved["threads"] = 2
    assert CoreUse(**starved, others_busy=0.24).rival == ""
    assert "other work keeps 0.3 of 2 cores busy" in CoreUse(**starved, others_busy=0.26).rival


@pytest.mark.parametrize(
    ("kind", "waited", "primary"),
    [("BALANCED", 81.0, "CPU_LIMITED"), ("BALANCED", 40.0, "BALANCED"), ("INPUT_BOUND", 81.0, "INPUT_BOUND")],
)
def test_run_that_mostly_waits_for_a_core_is_not_balanced(kind: str, waited: float, primary: str) -> None:
    """A lack of cores that costs most of the time is the verdict, unless a phase stands out all the same."""
    process_rows = made.process(10, cpu_percent=19.0, core_wait_percent=waited)
    system_rows = made.system(10, cpu_percent=99.0)
    process_rows["time_ns"] = system_rows["time_ns"] = 2_000_000_000
    rank = made.rank(made.steps(100, **BUSY[kind]))
    found = summarize(made.run(rank, process_rows=process_rows, system_rows=system_rows), FACTS)
    assert found.primary_diagnosis.kind == primary
    if waited > 50:
        assert (found.system.diagnosis.kind, found.system.diagnosis.severity) == ("CPU_LIMITED", CRIT)
        assert found.system.diagnosis.summary == "The training threads waited for a core 81.0 % of the time."
        assert "other work keeps 1.8 of 2 cores busy" in found.system.diagnosis.action
