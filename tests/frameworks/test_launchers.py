"""Frameworks whose loops are plain: with their launchers, under `traceml run` and after `traceml.init()`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.frameworks.recorded import EXAMPLES, SCRIPTS, Recorded, only_summary, python
from tests.scenarios.scenario import traceml

BIN = Path(sys.executable).parent
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
pytestmark = pytest.mark.framework


def test_ranks_of_one_launcher_share_a_run(tmp_path: Path) -> None:
    """`torchrun train.py` with traceml.init(): one run, one summary, both ranks until their ends."""
    done = python(tmp_path, *TORCHRUN, "2", str(SCRIPTS / "accelerate_loop.py"), "init")
    assert done.returncode == 0, done.stderr[-3000:]
    found = only_summary(tmp_path)
    assert (found["run"]["status"], found["run"]["world_size"]) == ("completed", 2)
    assert found["run"]["steps"]["total"] == 9
    assert done.stderr.count("recording in") == 1
    for rank in (0, 1):
        assert Recorded(tmp_path, "direct", rank).column("micro_batches") == [4, 4, 2] * 3


@pytest.mark.long
def test_deepspeed_step_is_one_update_of_the_engine(tmp_path: Path) -> None:
    """A ZeRO optimizer steps once for each of two groups of parameters: still one step per engine update,
    with 2 micro-batches."""
    done = traceml(
        "run", str(SCRIPTS / "deepspeed_engine.py"), "--run-name", "r", "--", "2", "8", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "global steps 8" in done.stdout
    found = Recorded(tmp_path, "r")
    assert found.column("micro_batches") == [2] * 8
    found.check_phases("forward")
    assert [e["step"] for e in found.events if e["kind"] == "checkpoint"] == [5]
    (model,) = (e for e in found.events if e["kind"] == "model")
    assert model["parameters"] == 81


@pytest.mark.parametrize(
    ("launcher", "script", "ranks"),
    [
        (("accelerate", "launch", "--cpu", "--num_processes=1"), "accelerate_loop.py", 1),
        (("torchrun", "--standalone", "--nproc-per-node=1"), "deepspeed_engine.py", 1),
        (("torchrun", "--standalone", "--nproc-per-node=2"), "fsdp2.py", 2),
    ],
)
def test_example_under_a_launcher(tmp_path: Path, launcher: tuple[str, ...], script: str, ranks: int) -> None:
    """`traceml run accelerate launch ...` and the like: 30 steps on every rank, and `init()` adds no run."""
    environment = {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    done = traceml("run", *launcher, str(EXAMPLES / script), cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    found = only_summary(tmp_path)
    assert (found["run"]["world_size"], found["run"]["steps"]["total"]) == (ranks, 30)
    if ranks > 1:
        assert found["step_time"]["metrics"]["sync_ms"]["average"] > 0
