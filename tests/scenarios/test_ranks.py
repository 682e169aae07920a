"""Many ranks through the command line: the right label, rank and milliseconds, after faults too."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.scenario import SCRIPTS, really, traceml

pytestmark = pytest.mark.scenario
DDP = str(SCRIPTS / "ddp.py")


@dataclass(frozen=True)
class RankScenario:
    """A fault on one rank, and what must be said about it; `injected_ms` a step if it is a straggler."""

    name: str
    words: tuple[str, ...]
    status: tuple[str, ...]
    injected_ms: float | None = None
    phase: str | None = None


HEALTHY = ("COMPUTE-BOUND", "BALANCED")
SLOW = ("COMPUTE STRAGGLER",)
SCENARIOS = (
    RankScenario("healthy", ("--base", "80"), HEALTHY),
    RankScenario("slow input", ("--input", "30"), ("INPUT STRAGGLER",), 30, "input"),
    RankScenario("slow forward", ("--forward", "30"), SLOW, 30, "forward"),
    RankScenario("slow backward", ("--backward", "30"), SLOW, 30, "backward"),
    RankScenario("slow optimizer", ("--optimizer", "30"), SLOW, 30, "optimizer"),
    RankScenario("slow input and forward", ("--input", "25", "--forward", "25"), ("STRAGGLER",), 50),
    RankScenario("uncoupled", ("--no-ddp", "--forward", "30"), SLOW, 30, "forward"),
    RankScenario("accumulation with no_sync", ("--accumulate", "3", "--forward", "15"), SLOW, 45, "forward"),
    RankScenario("uneven steps", ("--no-ddp", "--extra-steps", "20", "--base", "30"), HEALTHY),
)


def run(folder: Path, ranks: int, *words: str) -> tuple[dict[str, Any], subprocess.CompletedProcess[str]]:
    """The summary of a torchrun run of the DDP script."""
    done = traceml("run", DDP, "--run-name", "r", "--nproc-per-node", str(ranks), "--", *words, cwd=folder)
    return json.loads((folder / "logs" / "r" / "final_summary.json").read_text()), done


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_the_rank_the_phase_and_the_cost_are_named(
    scenario: RankScenario, ranks: int, tmp_path: Path
) -> None:
    """A rank that holds the others up is named with its phase, and the cost is right within 20 %."""
    culprit = ranks // 2
    summary, done = run(tmp_path, ranks, *scenario.words, "--rank", str(culprit))
    assert done.returncode == 0, done.stderr
    primary = summary["primary_diagnosis"]
    assert primary["status"] in scenario.status, done.stderr
    assert summary["run"]["world_size"] == ranks
    assert summary["run"]["ranks"]["used"] == list(range(ranks))
    assert summary["run"]["steps"]["total"] == 60
    if scenario.injected_ms is not None:
        assert primary["ranks"] == [culprit]
        slept = really(tmp_path, scenario.injected_ms, summary, "fault")
        assert primary["evidence"]["excess_ms"] == pytest.approx(slept, rel=0.2)
    if scenario.phase is not None:
        assert primary["phase"] == scenario.phase


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rotating_culprit_is_said_to_rotate(tmp_path: Path, ranks: int) -> None:
    """When another rank is slow in each step, the cost is named, and no rank as if it were always it."""
    summary, done = run(tmp_path, ranks, "--forward", "30", "--rotate")
    primary = summary["primary_diagnosis"]
    assert (primary["status"], primary["ranks"]) == ("COMPUTE STRAGGLER", []), done.stderr
    assert primary["phase"] == "forward"
    assert "take turns" in primary["summary"]
    assert primary["evidence"]["excess_ms"] == pytest.approx(really(tmp_path, 30, summary, "fault"), rel=0.2)


@pytest.mark.parametrize("ranks", [2, 4])
def test_an_explicit_all_reduce_is_communication(tmp_path: Path, ranks: int) -> None:
    """Many explicit all-reduces: sync on every rank, COMM-BOUND unless the cores were starved."""
    summary, done = run(tmp_path, ranks, "--all-reduce", "30", "--base", "5")
    sync = summary["step_time"]["metrics"]["sync_ms"]["median"]["value"]
    assert sync > 0.3 * summary["step_time"]["metrics"]["step_ms"]["median"]["value"], done.stderr
    kinds = [f["kind"] for f in summary["step_time"]["issues"]]
    starved = summary["process"]["metrics"]["cpu_delay_percent"]["worst"]["value"] or 0
    assert "COMM_BOUND" in kinds or starved > 20


@pytest.mark.parametrize("ranks", [2, 4])
def test_memory_imbalance_names_the_rank(tmp_path: Path, ranks: int) -> None:
    """A rank with 400 MB more than the others: IMBALANCE, that rank."""
    summary, done = run(tmp_path, ranks, "--memory-mb", "400")
    diagnosis = summary["step_memory"]["diagnosis"]
    assert diagnosis["status"] == "IMBALANCE", done.stderr
    assert diagnosis["ranks"] == [1]
