"""The training loops that overhead.py measures: `loops.py KIND SECONDS [alternate]` prints one line of JSON.

With `alternate`, under `traceml run`, recording is switched off and on every few steps within the process, so
that noise of the machine meets both alike. A pair is a block of steps with recording and one without.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

KIND, SECONDS, ALTERNATES = sys.argv[1], float(sys.argv[2]), len(sys.argv) > 3
WARM_UP = 300
BLOCK, SKIPPED = 8, 2
"""Steps of a block that count, and steps after each switch that do not."""
clock = time.perf_counter_ns


class Batches(IterableDataset[torch.Tensor]):
    """The same few batches again and again."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        batches = [torch.randn(16, 64) for _ in range(64)]
        while True:
            yield from batches


def model(width: int) -> nn.Module:
    """A small model, or one whose weights fill the caches."""
    deep = [nn.Linear(width, width), nn.Linear(width, width)] if width > 64 else []
    return nn.Sequential(nn.Linear(64, width), nn.Tanh(), *deep, nn.Linear(width, 1))


def passing(call: Callable[..., Any]) -> Callable[..., Any]:
    """The least that a wrapper in Python can do: a unit to compare with."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    return wrapper


class Loop:
    """One step of each kind."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.model: Any = model(384 if KIND == "large" else 64)
        if KIND == "ddp":
            torch.distributed.init_process_group("gloo")
            self.model = nn.parallel.DistributedDataParallel(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.batches = iter(DataLoader(Batches(), batch_size=None))
        self.block: Callable[[], Any] = contextlib.nullcontext
        self.wrap: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda call: call

    def update(self, x: torch.Tensor) -> None:
        """A plain training step."""
        self.wrap(self.optimizer.zero_grad)()
        loss = self.wrap(self.model)(x).pow(2).mean()
        self.wrap(loss.backward)()
        self.wrap(self.optimizer.step)()

    def step(self) -> None:
        """One step of the kind that was asked for."""
        if KIND == "rollouts":
            with torch.no_grad():
                for _ in range(100):
                    self.model(torch.ones(1, 64))
            self.update(torch.ones(16, 64))
        elif KIND == "accumulation":
            for _ in range(4):
                self.model(next(self.batches)).pow(2).mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        else:
            x = self.wrap(next)(self.batches)
            with self.block():
                self.update(x)

    def timed(self, steps: int) -> list[int]:
        """How long each of the next steps takes."""
        took = []
        for _ in range(steps):
            began = clock()
            self.step()
            took.append(clock() - began)
        return took


def alternate(loop: Loop) -> dict[str, object]:
    """Blocks with recording, blocks without, and for the plain loop blocks with an empty Python wrapper."""
    from traceml.capture import install

    session = install.active()
    assert session is not None
    switch, thread = session.switch, session.switch.thread
    traced_block, order = loop.block, random.Random(0)
    arms = ["on", "off", "wrapped"] if KIND == "plain" else ["on", "off"]
    rounds: list[dict[str, float]] = []
    fastest: list[dict[str, float]] = []
    steps: list[int] = []
    # Ranks that exchange gradients must do the same number of steps.
    first = statistics.median(loop.timed(20))
    for _ in range(max(20, int(SECONDS * 1e9 / (first * len(arms) * (BLOCK + SKIPPED))))):
        order.shuffle(arms)
        took, least = {}, {}
        for arm in arms:
            switch.thread = thread if arm == "on" else -1
            loop.block = traced_block if arm == "on" else contextlib.nullcontext
            loop.wrap = passing if arm == "wrapped" else lambda call: call
            switch.restart(clock())
            block = loop.timed(SKIPPED + BLOCK)[SKIPPED:]
            steps += block if arm == "off" else []
            took[arm], least[arm] = statistics.median(block) / 1e3, min(block) / 1e3
        rounds.append(took)
        fastest.append(least)
    switch.thread = thread
    added = sorted(r["on"] - r["off"] for r in rounds)
    middle, half = len(added) // 2, int(0.98 * math.sqrt(len(added)))
    wrapper = statistics.median(r["wrapped"] - r["off"] for r in rounds) if KIND == "plain" else None
    return {
        "step_us": statistics.median(steps) / 1e3,
        "added_us": statistics.median(added),
        "interval_us": [added[max(0, middle - half)], added[min(len(added) - 1, middle + half)]],
        "fastest_us": statistics.median(r["on"] - r["off"] for r in fastest),
        "wrapper_us": wrapper,
        "pairs": len(added),
    }


def main() -> None:
    """Warm up, measure, print."""
    loop = Loop()
    if KIND == "trace_step" and "TRACEML_RUN_DIR" in os.environ:
        import traceml

        loop.block = lambda: traceml.trace_step(loop.model)
    loop.timed(WARM_UP if KIND != "rollouts" else 60)
    if ALTERNATES:
        found = alternate(loop)
    else:
        steps = max(20, int(SECONDS * 1e9 / statistics.median(loop.timed(20))))
        took = sorted(loop.timed(steps))
        found = {"fastest_tenth_us": took[len(took) // 10] / 1e3, "median_us": statistics.median(took) / 1e3}
    is_first = KIND != "ddp" or torch.distributed.get_rank() == 0
    if KIND == "ddp":
        torch.distributed.barrier()
        loop.model = None  # gloo may hang if the model is freed after its group
        torch.distributed.destroy_process_group()
    if is_first:
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
