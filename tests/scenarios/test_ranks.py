"""Many ranks through the command line: the right label, rank and milliseconds, after faults too."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.scenario import SCRIPTS, traceml

pytestmark = pytest.mark.scenario
DDP = str(SCRIPTS / "ddp.py")


@dataclass(frozen=True)
class RankScenario:
    """A fault on one rank, and what must be said about it."""

    name: str
    words: tuple[str, ...]
    status: tuple[str, ...]
    ranks: int = 2
    culprit: int | None = None
    phase: str | None = None
    injected_ms: float | None = None
    steps: int = 60


SCENARIOS = (
    RankScenario("healthy", ("--base", "60"), ("COMPUTE-BOUND", "BALANCED")),
    RankScenario(
        "healthy, 4 ranks", ("--base", "80", "--steps", "40"), ("COMPUTE-BOUND", "BALANCED"), 4, steps=40
    ),
    RankScenario(
        "slow input", ("--input", "30"), ("INPUT STRAGGLER",), culprit=1, phase="input", injected_ms=30
    ),
    RankScenario(
        "slow forward",
        ("--forward", "30"),
        ("COMPUTE STRAGGLER",),
        culprit=1,
        phase="forward",
        injected_ms=30,
    ),
    RankScenario(
        "slow backward",
        ("--backward", "30"),
        ("COMPUTE STRAGGLER",),
        culprit=1,
        phase="backward",
        injected_ms=30,
    ),
    RankScenario(
        "slow backward of 4",
        ("--backward", "40", "--rank", "2"),
        ("COMPUTE STRAGGLER",),
        4,
        2,
        "backward",
        40,
    ),
    RankScenario(
        "slow optimizer",
        ("--optimizer", "30"),
        ("COMPUTE STRAGGLER",),
        culprit=1,
        phase="optimizer",
        injected_ms=30,
    ),
    RankScenario(
        "slow input and forward",
        ("--input", "25", "--forward", "25"),
        ("STRAGGLER",),
        culprit=1,
        injected_ms=50,
    ),
    RankScenario(
        "uncoupled",
        ("--no-ddp", "--forward", "30"),
        ("COMPUTE STRAGGLER",),
        culprit=1,
        phase="forward",
        injected_ms=30,
    ),
    RankScenario(
        "accumulation with no_sync",
        ("--accumulate", "3", "--forward", "15"),
        ("COMPUTE STRAGGLER",),
        culprit=1,
        phase="forward",
        injected_ms=45,
    ),
    RankScenario(
        "uneven steps", ("--no-ddp", "--extra-steps", "20", "--base", "30"), ("COMPUTE-BOUND", "BALANCED")
    ),
)


def run(folder: Path, ranks: int, *words: str) -> tuple[dict[str, Any], subprocess.CompletedProcess[str]]:
    """The summary of a torchrun run of the DDP script."""
    done = traceml("run", DDP, "--run-name", "r", "--nproc-per-node", str(ranks), "--", *words, cwd=folder)
    return json.loads((folder / "logs" / "r" / "final_summary.json").read_text()), done


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_the_rank_the_phase_and_the_cost_are_named(scenario: RankScenario, tmp_path: Path) -> None:
    """A rank that holds the others up is named with its phase, and the cost is right within 20 %."""
    summary, done = run(tmp_path, scenario.ranks, *scenario.words)
    assert done.returncode == 0, done.stderr
    primary = summary["primary_diagnosis"]
    assert primary["status"] in scenario.status, done.stderr
    assert summary["run"]["world_size"] == scenario.ranks
    assert summary["run"]["ranks"]["used"] == list(range(scenario.ranks))
    assert summary["run"]["steps"]["total"] == scenario.steps
    if scenario.culprit is not None:
        assert primary["ranks"] == [scenario.culprit]
    if scenario.phase is not None:
        assert primary["phase"] == scenario.phase
    if scenario.injected_ms is not None:
        assert primary["evidence"]["excess_ms"] == pytest.approx(scenario.injected_ms, rel=0.2)


def test_a_rotating_culprit_is_said_to_rotate(tmp_path: Path) -> None:
    """When another rank is slow in each step, no rank is blamed as if it were always the same."""
    summary, _ = run(tmp_path, 2, "--forward", "30", "--rotate")
    primary = summary["primary_diagnosis"]
    assert "STRAGGLER" not in primary["status"] or "only in" in primary["summary"]


def test_an_explicit_all_reduce_is_communication(tmp_path: Path) -> None:
    """Many explicit all-reduces: sync on every rank, COMM-BOUND unless the cores were starved."""
    summary, done = run(tmp_path, 2, "--all-reduce", "30", "--base", "5")
    sync = summary["step_time"]["metrics"]["sync_ms"]["median"]["value"]
    assert sync > 0.3 * summary["step_time"]["metrics"]["step_ms"]["median"]["value"], done.stderr
    kinds = [f["kind"] for f in summary["step_time"]["issues"]]
    starved = summary["process"]["metrics"]["cpu_delay_percent"]["worst"]["value"] or 0
    assert "COMM_BOUND" in kinds or starved > 20


def test_memory_imbalance_names_the_rank(tmp_path: Path) -> None:
    """A rank with 400 MB more than the others: IMBALANCE, that rank."""
    summary, done = run(tmp_path, 2, "--memory-mb", "400")
    diagnosis = summary["step_memory"]["diagnosis"]
    assert diagnosis["status"] == "IMBALANCE", done.stderr
    assert diagnosis["ranks"] == [1]
