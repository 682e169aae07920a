"""No advice promises what no test has followed: it says "try", only looks, or its gain is "at most".

`tests/scenarios/test_advice.py` follows advice on real trainings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.scenarios.test_advice import ADVICE
from tests.unit import made
from tests.unit.made import align, every, window
from tests.unit.test_rules_ranks import USUAL, coupled, in_turn, only, usual
from traceml.analyze.cores import CoreUse
from traceml.analyze.diagnose import (
    all_rules,
    choose_primary,
    diagnose_gauges,
    diagnose_memory,
    diagnose_time,
)
from traceml.analyze.rules.memory import MemoryView
from traceml.analyze.rules.system import GaugeView
from traceml.analyze.window import PHASE_KEYS, OutsideSteps
from traceml.schema.summary import Finding

LOOKS = ("Check", "Compare", "Find out", "Inspect", "Look", "Nothing", "See", "Watch")
COUNT = 100
MODEL: dict[str, Any] = {"forward": 20.0, "backward": 15.0, "optimizer": 2.0}


def once(ms: float) -> Any:
    found = np.zeros(COUNT)
    found[50] = ms
    return found


def rising(count: int = COUNT) -> Any:
    return np.where(np.arange(count) < count // 2, 1.0, 2.0)


def of_time() -> Iterator[Finding]:
    """At least one of each kind, and every way of saying it that depends on numbers."""
    busy = CoreUse(cores=2, run_busy=1.95, others_busy=0.05, wait_share=0.3)
    idle = CoreUse(cores=8, run_busy=1.0, others_busy=0.0)
    starved = CoreUse(cores=2, run_busy=0.5, others_busy=1.5, wait_share=0.5)
    unsure = CoreUse(cores=2, threads=2, run_busy=0.8, others_busy=1.2, wait_share=0.4)
    own = CoreUse(cores=2, processes=2, threads=2, run_busy=2.0, others_busy=0.0, wait_share=0.4)
    starts = frozenset(range(1, 101, 3))
    windows = [
        *(
            window(input=40.0, **MODEL, core_use=use, workers=workers)
            for use in (busy, idle, starved, unsure, own, CoreUse())
            for workers in (0, 2, 4)
        ),
        *(window(input=0.3, forward=0.6, core_use=idle, workers=workers) for workers in (0, 2)),
        *(window(input=20.0, **MODEL, input_inferred=True, loader_on_thread=it) for it in (False, True)),
        window(**MODEL, start=OutsideSteps(60.0, 0.8)),
        window(**MODEL, end=OutsideSteps(60.0, 0.8)),
        window(input=every(3, 90.0, COUNT, otherwise=1.0), **MODEL, workers=2, epoch_starts=starts),
        window(input=every(20, 400.0, COUNT, otherwise=1.0), **MODEL, workers=2, epoch_starts=starts),
        window(h2d=20.0, **MODEL, clock="device", unmeasured=("sync",)),
        *(window(**{**MODEL, key: 20.0}) for key in ("wait", "validation", "checkpoint")),
        *(window(wait=20.0, busy_wait=part, **MODEL) for part in (0.0, 20.0)),
        window(wait=20.0, gc=20.0, gc_wait=20.0, **MODEL),
        window(**MODEL, user={"augment": 20.0}),
        *(window(**MODEL, core_use=use) for use in (busy, idle, starved, own)),
        window(no_grad=60.0, **MODEL),
        window(forward=20.0 * rising(), backward=5.0),
        window(forward=20.0 * rising(), backward=5.0, samples=8.0 * rising()[None, :]),
        window(forward=20.0 + every(10, 100.0, COUNT), backward=5.0),
        window(forward=20.0 + once(5_000.0), backward=5.0),
        window(**MODEL, wait=every(10, 100.0, COUNT), more_batches=every(10, 1.0, COUNT)[None, :]),
    ]
    for one in windows:
        yield from diagnose_time(one)


def of_ranks() -> Iterator[Finding]:
    late = {"input": only(1, 30.0), "forward": only(1, 30.0)}
    summaries = [
        *(coupled(usual(4, **{phase: slow})) for phase, slow in late.items()),
        *(coupled(usual(4, **{phase: in_turn(4, 30.0)})) for phase in late),
        coupled(usual(4, **late)),
        coupled(usual(4, input=only(0, 30.0), forward=only(1, 30.0))),
        coupled(usual(4), comm_ms=20.0),
        *(
            coupled([{**phases, key: 30.0 * (rank == 1)} for rank, phases in enumerate(usual(4))])
            for key in ("wait", "validation", "checkpoint")
        ),
        coupled(noisy()),
    ]
    for summary in summaries:
        yield from summary.step_time.issues
    rows = [
        made.steps(COUNT, measured=PHASE_KEYS, h2d=ms, sync=40.0 - ms, **MODEL) for ms in (1.0, 31.0, 1.0)
    ]
    yield from diagnose_time(align([made.rank(each, rank, world_size=3) for rank, each in enumerate(rows)]))


def noisy() -> list[dict[str, Any]]:
    """Equal ranks whose steps vary."""
    noise = np.random.default_rng(5)
    return [{k: v + noise.exponential(0.15 * v, COUNT) for k, v in USUAL.items()} for _ in range(8)]


def of_resources() -> Iterator[Finding]:
    steps = np.arange(200)
    flat, ramp = np.full((2, 200), 1e9), np.tile(1e9 + 5e6 * steps, (2, 1))
    slow_ramp, apart = np.tile(1e9 + 2.2e5 * steps, (2, 1)), np.stack([flat[0], 2 * flat[0]])
    for values, capacity in ((flat, 1.02e9), (ramp, 1e12), (slow_ramp, 1e12), (apart, 1e12)):
        view = MemoryView((0, 1), steps, "rss", {"rss_bytes": values}, np.full(2, capacity))
        yield from diagnose_memory(view)
    yield from diagnose_memory(replace(view, workers={0: np.linspace(1e9, 1.2e9, 40)}))
    percents = "cpu_throttled_percent gpu_mem_percent gpu_power_percent gpu_util_spread_percent ram_percent"
    high: dict[str, float | None] = dict.fromkeys(percents.split(), 99.0)
    high |= {"gpu_temp_c": 95.0, "cpu_percent": 99.0}
    for busy in (10.0, 50.0):
        gauges = {**high, "gpu_util_percent": busy}
        yield from diagnose_gauges(GaugeView(gauges, gauges, on_cpu=False, samples=9), "system", "")
    held = ("rss_bytes", "gpu_mem_used_bytes", "gpu_mem_reserved_bytes")
    peak: dict[str, float | None] = dict.fromkeys(held, 95e9)
    process = GaugeView(
        {"cpu_percent": 800.0},
        {**peak, "gpu_mem_allocated_bytes": 5e9},
        gpu_used_by_rank={0: 5e9, 1: 5e9, 2: 95e9},
        cores=8,
        ram_total=100e9,
        gpu_capacity=100e9,
        on_cpu=False,
        samples=9,
    )
    yield from diagnose_gauges(process, "process", "")


EXAMPLES = [*of_time(), *of_ranks(), *of_resources()]


def test_there_is_an_example_of_every_diagnosis() -> None:
    """A new rule needs one here, so that its advice is checked, too."""
    rules = {rule.kind for section in all_rules().values() for rule in section}
    assert rules - {finding.kind for finding in EXAMPLES} == set()


@pytest.mark.parametrize("kind", sorted({finding.kind for finding in EXAMPLES}))
def test_advice_that_no_test_follows_promises_nothing(kind: str) -> None:
    """What is promised ("about") is followed. Otherwise the gain is "at most"; if none is given, the advice
    is to look or to try."""
    for finding in (f for f in EXAMPLES if f.kind == kind):
        if "Nothing to do" in finding.action or finding.kind == "BALANCED":
            continue
        primary = choose_primary([finding], [finding], [], 100.0)
        if primary.potential_is_bound is False:
            assert any(advised.says in finding.action for advised in ADVICE), finding.action
        elif primary.potential_is_bound is None:
            says_try = "try " in finding.action.lower()
            assert says_try or finding.action.startswith(LOOKS), finding.action
