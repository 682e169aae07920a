"""Many ranks through the command line: the right label, rank and milliseconds, after faults too."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.scenario import SCRIPTS, SRC, traceml

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


@pytest.mark.parametrize(("fault", "says"), [("--kill-at", ""), ("--raise-at", "had enough")])
def test_a_rank_that_dies_is_named_with_its_last_step(tmp_path: Path, fault: str, says: str) -> None:
    """One rank killed or raising: the summary comes, names the rank, its last step and where it was."""
    summary, done = run(tmp_path, 2, fault, "25")
    assert done.returncode != 0
    assert summary["run"]["status"] == "failed"
    assert summary["run"]["steps"]["total"] >= 24
    first = summary["run"]["ranks"]["ended_first"]
    assert first["rank"] == 1
    assert first["step"] in (24, 25)
    assert first["phase"]
    assert says in (summary["run"]["reason"] or "")


def test_a_rank_that_hangs_is_noticed_live(tmp_path: Path) -> None:
    """A stall is reported while it lasts, with the phase of each rank; the summary has it too."""
    command = [sys.executable, "-m", "traceml", "run", "--run-name", "r", "--stall-after", "3", DDP]
    running = subprocess.Popen(
        [*command, "--nproc-per-node", "2", "--", "--hang-at", "20"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SRC)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert running.stderr is not None
    stalled = ""
    for line in running.stderr:
        if "no step completed for" in line:
            stalled = line
            break
    assert "r0 in sync after step 20" in stalled
    assert "r1 in wait" in stalled
    os.kill(running.pid, signal.SIGTERM)
    running.communicate(timeout=60)
    summary = json.loads((tmp_path / "logs" / "r" / "final_summary.json").read_text())
    assert {e["rank"] for e in summary["events"] if e["kind"] == "stall"} == {0, 1}
    assert summary["run"]["status"] == "interrupted"


def test_any_launcher_will_do(tmp_path: Path) -> None:
    """torchrun as the command, and mp.spawn from a script: the ranks are found, never configured."""
    words = ("--standalone", "--nproc-per-node=2", DDP, "--steps", "12")
    done = traceml(
        "run", "--run-name", "t", sys.executable, "-m", "torch.distributed.run", *words, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "logs" / "t" / "final_summary.json").read_text())
    assert summary["run"]["ranks"]["used"] == [0, 1]
    (tmp_path / "spawn.py").write_text(SPAWN)
    done = traceml("run", "spawn.py", "--run-name", "s", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "logs" / "s" / "final_summary.json").read_text())
    assert summary["run"]["ranks"]["used"] == [0, 1]
    assert summary["run"]["steps"]["total"] == 8


SPAWN = """
import os, tempfile
import torch, torch.distributed as dist, torch.multiprocessing as mp
def work(rank, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(8):
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
    dist.destroy_process_group()
if __name__ == "__main__":
    mp.spawn(work, args=(tempfile.mktemp(),), nprocs=2)
"""


FSDP = """
import sys, time
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
torch.set_num_threads(1)
dist.init_process_group("gloo")
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)
    def forward(self, x):
        time.sleep(0.03 if dist.get_rank() == 1 else 0.005)
        return torch.relu(self.linear(x))
model = nn.Sequential(Block(), nn.Linear(64, 1))
fully_shard(model[0])
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(40):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""


def test_fsdp_waits_inside_its_collectives(tmp_path: Path) -> None:
    """FSDP on gloo: waiting for the slow rank is sync, and the rank that is slow in forward is named."""
    (tmp_path / "fsdp.py").write_text(FSDP)
    done = traceml("run", "fsdp.py", "--run-name", "f", "--nproc-per-node", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "logs" / "f" / "final_summary.json").read_text())
    assert summary["step_time"]["metrics"]["sync_ms"]["worst"]["rank"] == 0
    primary = summary["primary_diagnosis"]
    assert (primary["status"], primary["ranks"], primary["phase"]) == ("COMPUTE STRAGGLER", [1], "forward")
    assert primary["evidence"]["excess_ms"] == pytest.approx(25, rel=0.2)


def test_weights_are_bit_for_bit_those_of_plain_training(tmp_path: Path) -> None:
    """DDP with and without TraceML gives exactly the same weights on every rank."""
    script = tmp_path / "weights.py"
    script.write_text(
        SPAWN.replace(
            "    dist.destroy",
            "    torch.save(model.state_dict(), f'{os.environ[\"OUT\"]}.{rank}')\n    dist.destroy",
        ).replace("def work(rank, store):", "def work(rank, store):\n    torch.manual_seed(7)")
    )
    import torch

    for name, words in (("plain", ["--disable-traceml"]), ("traced", ["--run-name", "w"])):
        done = traceml("run", *words, "weights.py", cwd=tmp_path, env={"OUT": name})
        assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        plain, traced = (torch.load(tmp_path / f"{n}.{rank}") for n in ("plain", "traced"))
        assert all(torch.equal(plain[k], traced[k]) for k in plain)
