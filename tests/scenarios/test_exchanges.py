"""Whatever way ranks exchange data, waiting for the slow one is `sync`; work of one rank alone is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.preloaded import PreloadedTraceml
from tests.scenarios.scenario import SCRIPTS, really

pytestmark = [pytest.mark.scenario, pytest.mark.timed]
EXCHANGES = str(SCRIPTS / "exchanges.py")


def summary_of(preloaded: PreloadedTraceml, folder: Path, *words: str) -> dict[str, Any]:
    """The summary of two ranks that exchange data in this way."""
    done = preloaded("run", EXCHANGES, "--run-name", "r", "--nproc-per-node", "2", "--", *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((folder / "logs" / "r" / "final_summary.json").read_text())
    return found


@pytest.mark.parametrize(
    ("way", "phase", "rank", "injected_ms"),
    [
        ("buffers", "input", 0, 30),
        ("two models", "backward", 1, 60),
        ("futures", "backward", 1, 30),
        ("functional", "backward", 1, 30),
        ("tensor", "forward", 1, 30),
        ("two trainings", "forward", 1, 30),
    ],
)
def test_waiting_in_any_exchange_is_sync(
    tmp_path: Path, preloaded: PreloadedTraceml, way: str, phase: str, rank: int, injected_ms: float
) -> None:
    """DDP's buffers, futures, functional collectives, tensor parallel, several models: the right rank, phase
    and milliseconds, because the waiting of the others does not count as their work."""
    summary = summary_of(preloaded, tmp_path, way, phase, str(rank))
    primary = summary["primary_diagnosis"]
    status = "INPUT STRAGGLER" if phase == "input" else "COMPUTE STRAGGLER"
    assert (primary["status"], primary["ranks"], primary["phase"]) == (status, [rank], phase)
    assert primary["evidence"]["excess_ms"] == pytest.approx(
        really(tmp_path, injected_ms, summary, "fault"), rel=0.2
    )


@pytest.mark.parametrize(
    ("way", "phase", "status"),
    [("checkpoint", "checkpoint", "STRAGGLER"), ("evaluation", "validation", "WAIT-HEAVY")],
)
def test_work_that_only_rank_0_does_is_named(
    tmp_path: Path, preloaded: PreloadedTraceml, way: str, phase: str, status: str
) -> None:
    """Rank 0 saves in each step and is always the last one, or it evaluates its own copy every ten steps;
    the others wait for it."""
    summary = summary_of(preloaded, tmp_path, way, "none", "0", str(tmp_path / "big.pt"))
    primary = summary["primary_diagnosis"]
    assert (primary["status"], primary["ranks"], primary["phase"]) == (status, [0], phase)
    assert phase in primary["summary"]
    own = summary["step_time"]["ranks"]
    assert own["0"]["metrics"][f"{phase}_ms"] > 5 > own["1"]["metrics"][f"{phase}_ms"]


def test_healthy_exchanges_name_no_rank(tmp_path: Path, preloaded: PreloadedTraceml) -> None:
    """The same script without a fault: no straggler, however slow this machine's exchanges are just now."""
    found = summary_of(preloaded, tmp_path, "buffers", "none", "0")["step_time"]
    assert not [i["summary"] for i in found["issues"] if "STRAGGLER" in i["kind"]]
    assert found["window"]["num_steps"] > 30
