"""Runs to look at, made by hand: no training, no clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.unit import made
from traceml.analyze.summarize import summarize
from traceml.schema.live import CRASHED, LIVE, STALE, WAITING, Live
from traceml.schema.recorded import RunFacts, RunRecording

FACTS = RunFacts("resnet50-imagenet", "running", begin_ns=0, end_ns=30_000_000_000, mode="cli", cores=64)
GPU = {"type": "cuda", "name": "NVIDIA H100", "capacity_bytes": 80e9}
OUTPUT = [
    "epoch 1 of 90, learning rate 0.1",
    "step 100  loss 6.2411  top-1 0.9 %",
    "step 200  loss 5.9170  top-1 2.1 %",
    "epoch 1:  16%|█▌        | 200/1251 [00:24<02:07,  8.25it/s]",
]


def _rows(rank: int, count: int, random: np.random.Generator) -> NDArray[np.void]:
    late = 18.0 if rank == 5 else 0.0
    own = {"input": 6.0 + late, "h2d": 1.2, "forward": 30.0, "backward": 55.0, "optimizer": 5.0}
    times: dict[str, Any] = {k: value + random.normal(0, 0.01 * value, count) for k, value in own.items()}
    times |= {"sync": 20.0 - late, "user0": 2.0, "wait": 1.5, "measured": (*own, "sync")}
    return made.steps(count, allocated=30e9 + 1e8 * rank, reserved=34e9 + 1e8 * rank, **times)


@cache
def eight_gpus(ranks: int = 8, count: int = 200, final: bool = False) -> Live:
    """Rank 5 waits for its input, the others for rank 5; and a phase that the user named."""
    random = np.random.default_rng(1)
    rows = [_rows(rank, count, random) for rank in range(8)]
    found = [
        made.rank(rows[rank if rank < 8 else 0], rank, world_size=ranks, user_names=["augment"], device=GPU)
        for rank in range(ranks)
    ]
    system = made.system(
        gpu_util_percent=88.0, gpu_mem_bytes=36e9, gpu_mem_percent=45.0, gpu_temp_c=64.0, gpu_power_w=2400.0
    )
    process = np.concatenate(
        [made.process(pid=100 + rank, cpu_percent=90.0, gpu_mem_used_bytes=36e9) for rank in range(ranks)]
    )
    recording = made.run(*found, system_rows=system, process_rows=process)
    summary = summarize(recording, FACTS, final=final)
    return Live(summary, LIVE, quiet_s=0.3, since_step=42, steps_per_s=8.3)


def one_cpu() -> Live:
    """A single rank that waits for its input; no accelerator, no other ranks."""
    rows = made.steps(120, input=40.0, forward=30.0, backward=25.0, optimizer=4.0, wait=1.0)
    recording = made.run(made.rank(rows), system_rows=made.system(), process_rows=made.process())
    return Live(summarize(recording, FACTS, final=False), LIVE, 1.2, since_step=39, since_start=True)


def nothing_yet() -> Live:
    """Before the first step."""
    recording = RunRecording(ranks=[], nodes=made.run().nodes)
    return Live(summarize(recording, FACTS, final=False), WAITING, quiet_s=12.0)


def crashed() -> Live:
    """Ended by an exception."""
    live = one_cpu()
    run = replace(live.summary.run, status="failed", exit_code=1, reason="ValueError: NaN loss")
    return replace(live, summary=replace(live.summary, run=run, final=True), state=CRASHED)


def silent() -> Live:
    """No step for a long time."""
    return replace(one_cpu(), state=STALE, quiet_s=95.0)


LIVES: dict[str, Callable[[], Live]] = {
    "eight_gpus": eight_gpus,
    "one_cpu": one_cpu,
    "nothing_yet": nothing_yet,
    "crashed": crashed,
    "silent": silent,
}
