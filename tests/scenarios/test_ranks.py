"""Many ranks: the right label, the right rank and the right milliseconds."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.preloaded import PreloadedTraceml
from tests.scenarios.scenario import SCRIPTS, TracemlCommand, really, traceml

pytestmark = [pytest.mark.scenario, pytest.mark.timed]
DDP = str(SCRIPTS / "ddp.py")


@dataclass(frozen=True)
class RankScenario:
    """A fault on one rank, and what TraceML must say about it.

    A straggler has `injected_ms` per step; `measure` is the evidence to compare it with, and `naps` are the
    script's own clock. `named` are the ranks that must be named. A `cold` scenario runs by the real command
    line and torchrun; the others run in forks of a process with torch loaded. Two ranks, except where more of
    them matter.
    """

    name: str
    words: tuple[str, ...]
    status: str
    injected_ms: float | None = None
    phase: str | None = None
    ranks: int = 2
    cold: bool = False
    named: tuple[int, ...] = (1,)
    measure: str = "excess_ms"
    naps: str = "fault"

    def problems(self, primary: dict[str, Any]) -> list[str]:
        """What is wrong about this verdict."""
        found = [] if primary["status"] == self.status else [f"expected {self.status}"]
        if self.injected_ms is not None and tuple(primary["ranks"]) != self.named:
            found.append(f"named {primary['ranks']}, not {list(self.named)}")
        if self.phase is not None and primary["phase"] != self.phase:
            found.append(f"said {primary['phase']}, not {self.phase}")
        return found


SLOW = "COMPUTE STRAGGLER"
SCENARIOS = (
    RankScenario("healthy", ("--base", "80"), "COMPUTE-BOUND"),
    RankScenario("slow input", ("--input", "30"), "INPUT STRAGGLER", 30, "input"),
    RankScenario("slow forward", ("--forward", "30"), SLOW, 30, "forward", cold=True),
    RankScenario("slow forward of 4", ("--forward", "30"), SLOW, 30, "forward", ranks=4, named=(2,)),
    RankScenario("slow backward", ("--backward", "30"), SLOW, 30, "backward"),
    RankScenario("slow optimizer", ("--optimizer", "30"), SLOW, 30, "optimizer"),
    RankScenario("slow input and forward", ("--input", "25", "--forward", "25"), "STRAGGLER", 50),
    RankScenario("uncoupled", ("--no-ddp", "--forward", "30"), SLOW, 30, "forward"),
    RankScenario("accumulation with no_sync", ("--accumulate", "3", "--forward", "15"), SLOW, 45, "forward"),
    RankScenario("averaging every 8 steps", ("--average-every", "8", "--forward", "30"), SLOW, 30, "forward"),
    RankScenario(
        *("slow every 6 steps", ("--forward", "200", "--every", "6"), "JITTER", 200, "forward"),
        measure="extra_ms",
    ),
    RankScenario(
        *("slow in turns", ("--forward", "40", "--rotate"), SLOW, 40, "forward", 4),
        named=(),
    ),
    RankScenario(
        *("two late for two reasons", ("--base", "25", "--late", "0:input:36", "--late", "1:forward:35")),
        *("STRAGGLER", 35.5),
        named=(0, 1),
        naps="late0",
    ),
    RankScenario(
        *("one stall of 3 s", ("--stall-at", "30", "--stall-in", "input", "--stall-ms", "3000"), "STALL"),
        *(3000, "input"),
        measure="extra_ms",
        naps="stall",
    ),
    RankScenario(
        *("validation on one rank", ("--validate-every", "10", "--validate-ms", "400"), "WAIT-HEAVY"),
        phase="validation",
    ),
    RankScenario("uneven steps", ("--no-ddp", "--extra-steps", "20", "--base", "80"), "COMPUTE-BOUND"),
)


def run(
    folder: Path, ranks: int, *words: str, command: TracemlCommand = traceml
) -> tuple[dict[str, Any], subprocess.CompletedProcess[str]]:
    """The summary of a torchrun run of the DDP script."""
    done = command("run", DDP, "--run-name", "r", "--nproc-per-node", str(ranks), "--", *words, cwd=folder)
    return json.loads((folder / "logs" / "r" / "final_summary.json").read_text()), done


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_slow_rank_is_named_with_its_phase_and_cost(
    scenario: RankScenario, tmp_path: Path, preloaded: PreloadedTraceml
) -> None:
    """A rank that holds the others up is named with its phase, and the cost is right within 20 %."""
    culprit = scenario.ranks // 2
    command = traceml if scenario.cold else preloaded
    words = (*scenario.words, "--rank", str(culprit))
    summary, done = run(tmp_path, scenario.ranks, *words, command=command)
    assert done.returncode == 0, done.stderr
    primary = summary["primary_diagnosis"]
    assert not scenario.problems(primary), done.stderr
    assert summary["run"]["world_size"] == scenario.ranks
    assert summary["run"]["ranks"]["used"] == list(range(scenario.ranks))
    assert summary["run"]["steps"]["total"] == 60
    if scenario.injected_ms is not None:
        slept = really(tmp_path, scenario.injected_ms, summary, scenario.naps)
        assert primary["evidence"][scenario.measure] == pytest.approx(slept, rel=0.2)


def test_ranks_that_take_turns_at_being_slow_are_not_blamed_one_by_one(
    tmp_path: Path, preloaded: PreloadedTraceml
) -> None:
    """When another of four ranks is slow in each step, the cost is given and no single rank is named."""
    summary, done = run(tmp_path, 4, "--forward", "30", "--rotate", command=preloaded)
    primary = summary["primary_diagnosis"]
    assert (primary["status"], primary["ranks"]) == ("COMPUTE STRAGGLER", []), done.stderr
    assert primary["phase"] == "forward"
    assert "take turns" in primary["summary"]
    assert primary["evidence"]["excess_ms"] == pytest.approx(really(tmp_path, 30, summary, "fault"), rel=0.2)


def test_slow_rank_that_changes_is_reported_with_its_steps(
    tmp_path: Path, preloaded: PreloadedTraceml
) -> None:
    """r1 is slow first, later r0: one after the other, not in turns."""
    words = ("--forward", "40", "--moves-at", "30", "--steps", "60")
    summary, done = run(tmp_path, 2, *words, command=preloaded)
    primary = summary["primary_diagnosis"]
    assert (primary["status"], primary["ranks"]) == ("COMPUTE STRAGGLER", [1, 0]), done.stderr
    first = summary["step_time"]["window"]["start_step"]  # after the warm-up
    assert first < 6
    assert f"r1 in steps {first} to 30, r0 in steps 31 to 60" in primary["summary"]


@pytest.mark.parametrize(
    ("place", "after", "phase"),
    [
        ("input", 30, "input"),
        ("start", 30, "wait"),
        ("backward", 59, "backward"),
        ("optimizer", 2, "optimizer"),
    ],
)
def test_one_stall_of_one_rank_is_the_verdict(
    tmp_path: Path, preloaded: PreloadedTraceml, place: str, after: int, phase: str
) -> None:
    """One step of several seconds among 60 of 20 ms: the step, the rank, the phase and what it cost."""
    words = ("--stall-at", str(after), "--stall-in", place, "--stall-ms", "3000")
    summary, done = run(tmp_path, 3, *words, command=preloaded)
    primary = summary["primary_diagnosis"]
    assert (primary["status"], primary["ranks"], primary["phase"]) == ("STALL", [1], phase), done.stderr
    assert primary["evidence"]["step"] == after + 1
    assert primary["evidence"]["extra_ms"] == pytest.approx(
        really(tmp_path, 3000, summary, "stall"), rel=0.05
    )


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_late_for_different_reasons_are_both_named(
    tmp_path: Path, preloaded: PreloadedTraceml, ranks: int
) -> None:
    """r0 loses as much in input as r1 in forward, so neither waits: both are named, with the common gain."""
    words = ("--base", "25", "--late", "0:input:36", "--late", "1:forward:35", "--rank", "9")
    summary, done = run(tmp_path, ranks, *words, command=preloaded)
    primary = summary["primary_diagnosis"]
    assert (primary["status"], primary["ranks"]) == ("STRAGGLER", [0, 1]), done.stderr
    slept = (really(tmp_path, 36, summary, "late0") + really(tmp_path, 35, summary, "late1")) / 2
    assert primary["evidence"]["excess_ms"] == pytest.approx(slept, rel=0.2)
    assert primary["potential_speedup"] > 1.4


def test_waiting_for_the_validation_of_one_rank_is_said(tmp_path: Path, preloaded: PreloadedTraceml) -> None:
    """r0 validates while the others wait for it in sync: the verdict names both, and a remark the waiting."""
    words = ("--rank", "0", "--validate-every", "10", "--validate-ms", "400")
    summary, done = run(tmp_path, 2, *words, command=preloaded)
    primary = summary["primary_diagnosis"]
    assert (primary["status"], primary["phase"], primary["ranks"]) == ("WAIT-HEAVY", "validation", [0])
    said = [f["summary"] for f in summary["step_time"]["issues"] if f["kind"] == "WAIT_FOR_RANK"]
    assert "wait for r0 in sync while it is in validation" in "".join(said), done.stderr


def test_explicit_all_reduce_is_communication(tmp_path: Path, preloaded: PreloadedTraceml) -> None:
    """Many explicit all-reduces per step: they are sync on every rank, and the run is COMM-BOUND. No gain is
    promised: the time to start them is in other phases."""
    summary, done = run(tmp_path, 2, "--all-reduce", "30", "--base", "5", command=preloaded)
    sync = summary["step_time"]["metrics"]["sync_ms"]["median"]["value"]
    assert sync > 0.3 * summary["step_time"]["metrics"]["step_ms"]["median"]["value"], done.stderr
    found = {f["kind"]: f for f in summary["step_time"]["issues"]}
    assert "COMM_BOUND" in found, done.stderr
    assert found["COMM_BOUND"]["evidence"]["saves_ms"] is None
    assert "Combine exchanges" in found["COMM_BOUND"]["action"]


def test_rank_with_more_memory_is_named(tmp_path: Path, preloaded: PreloadedTraceml) -> None:
    """A rank with 400 MB more than the others: IMBALANCE, that rank."""
    summary, done = run(tmp_path, 2, "--memory-mb", "400", command=preloaded)
    diagnosis = summary["step_memory"]["diagnosis"]
    assert diagnosis["status"] == "IMBALANCE", done.stderr
    assert diagnosis["ranks"] == [1]
