"""Any launcher, and every way to spread a model over ranks: TraceML finds the ranks by itself."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.preloaded import PreloadedTraceml
from tests.scenarios.scenario import TracemlCommand, really, traceml
from tests.scenarios.test_ranks import DDP

pytestmark = [pytest.mark.scenario, pytest.mark.stack]


def summary_of(folder: Path, *words: str, command: TracemlCommand = traceml) -> dict[str, Any]:
    """The summary of `traceml run` with these words."""
    done = command("run", "--run-name", "r", "--overwrite", *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((folder / "logs" / "r" / "final_summary.json").read_text())
    return found


def test_ranks_of_torchrun_are_found(tmp_path: Path) -> None:
    """`traceml run python -m torch.distributed.run ...`: the ranks are found without any flag of ours."""
    words = ("--standalone", "--nproc-per-node=2", DDP, "--steps", "12")
    summary = summary_of(tmp_path, sys.executable, "-m", "torch.distributed.run", *words)
    assert summary["run"]["ranks"]["used"] == [0, 1]
    assert summary["run"]["steps"]["total"] == 12


ACCELERATE = """
import torch
from accelerate import Accelerator
from naps import nap
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
accelerator = Accelerator(cpu=True)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 1)
    def forward(self, x):
        nap(15, "base")
        nap(30 * accelerator.process_index, "fault")
        return self.linear(x)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(640, 32), torch.randn(640, 1)), batch_size=8)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x, y in loader:
    accelerator.backward(nn.functional.mse_loss(model(x), y))
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.timed
def test_ranks_of_accelerate_launch_are_found(tmp_path: Path) -> None:
    """`accelerate launch` of two processes: both ranks, every step, and the one that is slow in forward."""
    (tmp_path / "train.py").write_text(ACCELERATE)
    launcher = (sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2")
    plain = ("--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no")
    summary = summary_of(tmp_path, *launcher, *plain, "train.py")
    assert summary["run"]["steps"]["total"] == 40
    primary = summary["primary_diagnosis"]
    assert (primary["status"], primary["ranks"], primary["phase"]) == ("COMPUTE STRAGGLER", [1], "forward")
    assert primary["evidence"]["excess_ms"] == pytest.approx(really(tmp_path, 30, summary, "fault"), rel=0.2)


SPAWN = """
import sys, tempfile
import torch, torch.distributed as dist, torch.multiprocessing as mp
def work(rank, store, out):
    torch.manual_seed(7)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(8):
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
    torch.save(model.state_dict(), f"{out}.{rank}")
    del model  # gloo can hang at the end if the model outlives the group
    dist.destroy_process_group()
if __name__ == "__main__":
    method, out = sys.argv[1:]
    mp.start_processes(work, args=(tempfile.mktemp(), out), nprocs=2, start_method=method)
"""


FSDP = """
import sys
import torch, torch.distributed as dist
from naps import nap
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
try:
    from torch.distributed.fsdp import fully_shard
except ImportError:  # torch 2.5
    from torch.distributed._composable.fsdp import fully_shard
torch.set_num_threads(1)
dist.init_process_group("gloo")
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)
    def forward(self, x):
        nap(5, "base")
        nap(25 * dist.get_rank(), "fault")
        return torch.relu(self.linear(x))
model = nn.Sequential(Block(), nn.Linear(64, 1))
if sys.argv[1] == "2":
    fully_shard(model[0])
    fully_shard(model)
else:
    model[0] = FullyShardedDataParallel(model[0], device_id=torch.device("cpu"))
    model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(40):
    optimizer.zero_grad()
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
dist.barrier()  # without it FSDP2 on gloo aborts at its exit now and then, also without TraceML
dist.destroy_process_group()
"""


@pytest.mark.timed
@pytest.mark.parametrize("version", ["1", "2"])
def test_waiting_inside_fsdp_is_sync(tmp_path: Path, preloaded: PreloadedTraceml, version: str) -> None:
    """FSDP on gloo: waiting for the slow rank is sync, and the rank that is slow in forward is named."""
    (tmp_path / "fsdp.py").write_text(FSDP)
    words = ("fsdp.py", "--nproc-per-node", "2", "--", version)
    summary = summary_of(tmp_path, *words, command=preloaded)
    assert summary["step_time"]["metrics"]["sync_ms"]["worst"]["rank"] == 0
    primary = summary["primary_diagnosis"]
    assert (primary["status"], primary["ranks"], primary["phase"]) == ("COMPUTE STRAGGLER", [1], "forward")
    assert primary["evidence"]["excess_ms"] == pytest.approx(really(tmp_path, 25, summary, "fault"), rel=0.2)


def test_spawned_ranks_are_found_and_their_weights_are_the_same_without_traceml(
    tmp_path: Path, preloaded: PreloadedTraceml
) -> None:
    """A script spawns its ranks: each spawned process is a rank, the script itself is not, and DDP gives
    exactly the same weights on every rank as without TraceML."""
    (tmp_path / "spawn.py").write_text(SPAWN)
    summary = summary_of(tmp_path, "spawn.py", "--", "spawn", "traced")
    assert summary["run"]["ranks"]["used"] == [0, 1]
    assert summary["run"]["steps"]["total"] == 8
    plain = preloaded("run", "--disable-traceml", "spawn.py", "--", "fork", "plain", cwd=tmp_path)
    assert plain.returncode == 0, plain.stderr
    import torch

    for rank in (0, 1):
        without, traced = (torch.load(tmp_path / f"{name}.{rank}") for name in ("plain", "traced"))
        assert without
        assert all(torch.equal(without[k], traced[k]) for k in without)
