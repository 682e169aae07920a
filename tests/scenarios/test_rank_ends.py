"""Ranks that end badly: the summary still comes and says which rank ended first, when and where."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.preloaded import PreloadedTraceml
from tests.scenarios.scenario import PYTHONPATH, traceml
from tests.scenarios.test_ranks import DDP, run

pytestmark = pytest.mark.scenario
CGROUPS = (
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
    ("/sys/fs/cgroup", "memory.max"),
)
OOM_BYTES = 300 * 2**20


@dataclass(frozen=True)
class End:
    """A rank that ends, and how the reason of the run begins."""

    name: str
    words: tuple[str, ...]
    says: str
    ranks: int = 2


KILLED = "r1 ended first: it was killed by SIGKILL after step 25, in "
ENDS = (
    *(
        End(f"killed in {place}", ("--kill-at", "25", "--kill-in", place), f"{KILLED}{place}")
        for place in ("input", "forward", "backward", "optimizer")
    ),
    End(
        "killed in its first step",
        # Not at once: the monitor looks ten times per second, and must have seen the recording.
        ("--kill-in", "backward", "--kill-at", "0", "--backward", "500"),
        "r1 ended first: it was killed by SIGKILL in its first step, in backward",
    ),
    End(
        *("raises between steps", ("--raise-at", "25")),
        "r1 ended first, after step 25, in wait (right after the optimizer step), at ddp.py:",
        ranks=4,
    ),
    End("exits with code 4 when all is done", ("--exit-code", "4"), "r1 ended first: it exited with code 4"),
    End(
        *("hangs until the others give up", ("--hang-at", "25", "--timeout-s", "3")),
        "other ranks gave up waiting for r1 (after step 25",
        ranks=4,
    ),
)


@pytest.mark.parametrize("end", ENDS[4:], ids=lambda end: end.name)
def test_rank_that_ends_is_reported_with_how_it_ended(
    tmp_path: Path, preloaded: PreloadedTraceml, end: End
) -> None:
    """Whether it was killed, raised, exited or hung: its rank, and never one that only suffered from it."""
    summary, done = run(tmp_path, end.ranks, *end.words, command=preloaded)
    assert done.returncode == 1
    assert summary["run"]["reason"].startswith(end.says), summary["run"]["reason"]


@pytest.mark.parametrize(
    ("fault", "says", "cold"),
    [
        ("--kill-at", "after step 25, in wait", True),
        ("--raise-at", "r1: RuntimeError: this rank has had enough", False),
    ],
)
def test_rank_that_dies_is_named_with_its_last_step(
    tmp_path: Path, preloaded: PreloadedTraceml, fault: str, says: str, cold: bool
) -> None:
    """One rank is killed or raises: the summary names the rank, its last step and where it was."""
    summary, done = run(tmp_path, 2, fault, "25", command=traceml if cold else preloaded)
    assert done.returncode == 1
    assert summary["run"]["status"] == "failed"
    assert summary["run"]["steps"]["total"] == 25
    first = summary["run"]["ranks"]["ended_first"]
    assert (first["rank"], first["step"]) == (1, 25)
    assert first["phase"].startswith("wait")
    assert says in summary["run"]["reason"]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("place", ["input", "start", "forward", "backward", "optimizer", "end"])
def test_killed_rank_is_named_wherever_it_was(
    tmp_path: Path, preloaded: PreloadedTraceml, place: str, ranks: int
) -> None:
    """SIGKILL at any place of a step: the killed rank, its last step and the signal, never a survivor."""
    killed = ranks // 2
    words = ("--rank", str(killed), "--kill-at", "25", "--kill-in", place)
    summary, done = run(tmp_path, ranks, *words, command=preloaded)
    assert done.returncode == 1
    first = summary["run"]["ranks"]["ended_first"]
    assert (first["rank"], first["step"]) == (killed, 25), summary["run"]["reason"]
    assert first["phase"].split()[0] == (place if place not in ("start", "end") else "wait")
    # Before Linux 6.15 the signal is known only until the launcher asks for it.
    says = {
        "SIGKILL": f"r{killed} ended first: it was killed by SIGKILL after step 25",
        None: "killed or crashed",
    }
    assert says[first["signal"]] in summary["run"]["reason"]


def test_rank_that_others_gave_up_waiting_for_is_named(tmp_path: Path, preloaded: PreloadedTraceml) -> None:
    """r1 hangs and the exchange times out on r0: r0's error does not make it the rank to look at."""
    words = ("--hang-at", "25", "--timeout-s", "3")
    summary, done = run(tmp_path, 2, *words, command=preloaded)
    assert done.returncode == 1
    first = summary["run"]["ranks"]["ended_first"]
    assert (first["rank"], first["step"]) == (1, 25), summary["run"]["reason"]
    assert summary["run"]["reason"].startswith("other ranks gave up waiting for r1 (after step 25")


def test_killed_rank_is_named_when_survivors_raise_in_forward(
    tmp_path: Path, preloaded: PreloadedTraceml
) -> None:
    """DDP exchanges buffers at the start of a forward: that exchange fails, not the survivor's own work."""
    summary, done = run(tmp_path, 2, "--kill-at", "25", "--rank", "0", "--buffers", command=preloaded)
    assert done.returncode == 1
    first = summary["run"]["ranks"]["ended_first"]
    assert (first["rank"], first["step"]) == (0, 25), summary["run"]["reason"]


def test_rank_that_hangs_is_reported_while_it_hangs(tmp_path: Path) -> None:
    """A stall is reported while it lasts, with the phase of each rank, and it is in the summary."""
    command = [sys.executable, "-m", "traceml", "run", "--run-name", "r", "--stall-after", "3", DDP]
    running = subprocess.Popen(
        [*command, "--nproc-per-node", "2", "--", "--hang-at", "20"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
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
    running.communicate(timeout=180)
    summary = json.loads((tmp_path / "logs" / "r" / "final_summary.json").read_text())
    assert {e["rank"] for e in summary["events"] if e["kind"] == "stall"} == {0, 1}
    assert summary["run"]["status"] == "interrupted"


def test_no_step_is_lost_when_all_ranks_are_killed_at_once(
    tmp_path: Path, preloaded: PreloadedTraceml
) -> None:
    """Every rank is killed after the same step: all of them, that step and the phase are in the summary."""
    summary, done = run(tmp_path, 2, "--kill-all-at", "25", "--base", "40", command=preloaded)
    assert done.returncode == 1
    assert summary["run"]["status"] == "failed"
    assert summary["run"]["steps"]["total"] == 25
    assert summary["run"]["ranks"]["used"] == [0, 1]
    first = summary["run"]["ranks"]["ended_first"]
    assert first["step"] == 25
    assert first["phase"].startswith("wait")
    # On a busy machine the kernel may end one well before the other: then that one is named, with its signal.
    reasons = ("killed or crashed at the same time", "ended first: it was killed by SIGKILL")
    assert any(reason in summary["run"]["reason"] for reason in reasons)
    assert "after step 25, in wait" in summary["run"]["reason"]
    assert "lack of memory" not in summary["run"]["reason"]


@pytest.fixture
def starved() -> Iterator[str]:
    """Memory cgroups `<name>0` and `<name>1` whose limit is little more than a training needs."""
    for root, limit in CGROUPS:
        name = f"{root}/traceml-test-{os.getpid()}-"
        try:
            for rank in range(2):
                Path(f"{name}{rank}").mkdir()
                Path(f"{name}{rank}/{limit}").write_text(str(OOM_BYTES))
        except OSError:
            _remove(name)
            continue
        yield name
        _remove(name)
        return
    pytest.skip("no memory cgroup can be made here: needs root and the memory controller")


def _remove(name: str) -> None:
    for rank in range(2):
        if Path(f"{name}{rank}").is_dir():
            Path(f"{name}{rank}").rmdir()


def test_lack_of_memory_is_named_when_the_kernel_kills_all_ranks(
    tmp_path: Path, starved: str, preloaded: PreloadedTraceml
) -> None:
    """A real out-of-memory kill of every rank: all completed steps are there, and memory is named."""
    words = ("--starve", starved, "--steps", "2000", "--base", "5")
    summary, done = run(tmp_path, 2, *words, command=preloaded)
    assert done.returncode == 1
    ranks = summary["run"]["ranks"]
    assert ranks["used"] == [0, 1]
    assert 20 < summary["run"]["steps"]["total"] < 200
    assert abs(ranks["ended_first"]["step"] - summary["run"]["steps"]["total"]) <= 1
    assert ranks["ended_first"]["phase"]
    assert "the kernel's OOM killer" in summary["run"]["reason"], done.stderr


WORKERS = """
import sys, time
import torch, torch.distributed as dist, torch.multiprocessing as mp
def work(rank, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, 41):
        time.sleep(0.02)
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if (rank, step) == (1, 15):
            raise ValueError("a worker's own")
if __name__ == "__main__":
    mp.start_processes(work, args=(sys.argv[2],), nprocs=2, start_method=sys.argv[1])
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_exception_in_a_worker_is_reported_with_its_rank(
    tmp_path: Path, preloaded: PreloadedTraceml, method: str
) -> None:
    """multiprocessing catches what its workers raise, and forked ones end without running `atexit`."""
    (tmp_path / "workers.py").write_text(WORKERS)
    words = ("workers.py", "--run-name", "w", "--", method, str(tmp_path / "store"))
    command = preloaded if method == "fork" else traceml
    assert command("run", *words, cwd=tmp_path).returncode == 1
    run = json.loads((tmp_path / "logs" / "w" / "final_summary.json").read_text())["run"]
    assert run["ranks"]["ended_first"]["rank"] == 1
    assert "r1: ValueError: a worker's own" in run["reason"]


UNWOUND = """
import os, signal, sys
import torch
class Breaks(torch.autograd.Function):
    forward = staticmethod(lambda ctx, x: x.sum())
    @staticmethod
    def backward(ctx, gradient):
        raise ValueError("broken")
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1, 30):
    try:
        loss = model(torch.randn(4, 8))
        (Breaks.apply(loss) if step in (5, 20) else loss.sum()).backward()
    except ValueError:
        if step == int(sys.argv[1]):
            os.kill(os.getpid(), signal.SIGKILL)
        continue
    optimizer.step()
    optimizer.zero_grad()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("at", "steps", "phase"), [("20", 18, "backward"), ("0", 27, "wait")])
def test_phase_of_an_exception_is_known_after_a_kill(
    tmp_path: Path, preloaded: PreloadedTraceml, at: str, steps: int, phase: str
) -> None:
    """Killed before it could report its exception: the phase that raised is given, unless it was caught."""
    (tmp_path / "unwound.py").write_text(UNWOUND)
    preloaded("run", "unwound.py", "--run-name", "u", "--", at, cwd=tmp_path)
    run = json.loads((tmp_path / "logs" / "u" / "final_summary.json").read_text())["run"]
    assert run["steps"]["total"] == steps
    assert run["ranks"]["ended_first"]["phase"].split()[0] == phase


ELASTIC = """
import os, signal, sys, time
import torch, torch.distributed as dist
torch.set_num_threads(1)
attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
# A store for each attempt: with torchrun's own, gloo now and then meets a rank of the attempt before.
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}{attempt}", rank=rank, world_size=2)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1, 41):
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.01)
    if (attempt, rank, step) == (0, 1, 15):
        raise RuntimeError("not yet")
    if (attempt, rank, step) == (1, 1, 20):
        time.sleep(0.3)  # the other rank waits in its next exchange by now
        os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.stack
def test_elastic_restarts_are_one_run_judged_by_its_last_attempt(tmp_path: Path) -> None:
    """torchrun starts all ranks again after an exception, and once more after a kill: the numbers are those
    of the last attempt; the end of each earlier attempt is reported."""
    (tmp_path / "elastic.py").write_text(ELASTIC)
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=2")
    words = ("--nproc-per-node=2", "elastic.py", str(tmp_path / "store"))
    done = traceml("run", "--run-name", "e", *launcher, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads((tmp_path / "logs" / "e" / "final_summary.json").read_text())
    assert summary["run"]["status"] == "completed"
    assert summary["run"]["steps"]["total"] == 40
    assert summary["run"]["ranks"]["used"] == [0, 1]
    raised, killed = summary["run"]["ranks"]["earlier_attempts"]
    assert (raised["steps"], raised["ended_first"]["rank"]) == (15, 1)
    assert "not yet" in raised["reason"]
    assert (killed["steps"], killed["ended_first"]["rank"]) == (20, 1)
    assert "killed" in killed["reason"]
    account = summary["run"]["accounting"]
    assert account["earlier_attempts_s"] > (15 + 20) * 0.01
    assert sum(account.values()) == pytest.approx(summary["run"]["duration_s"], rel=0.01)
    assert "The ranks were started 3 times" in done.stderr
