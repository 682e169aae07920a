"""Hand-made summaries: a run is its step blocks, its phases and its environment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from traceml.schema.comparison import Comparison, RunRef
from traceml.schema.summary import (
    Blocks,
    Environment,
    Finding,
    Identity,
    Member,
    MetricStat,
    Primary,
    RankValue,
    Run,
    Section,
    SectionWindow,
    Summary,
)

DATA = Path(__file__).resolve().parents[1] / "data"
RELEASED = DATA / "released"


def blocks(step_ms: float, noise: float = 0.01, count: int = 40, seed: int = 0) -> list[float]:
    """Independent block means around a step time."""
    random = np.random.default_rng(seed)
    return [float(v) for v in step_ms * np.exp(random.normal(0, noise, count))]


def finding(kind: str, severity: str = "info") -> Finding:
    """A diagnosis."""
    return Finding(kind, kind.replace("_", "-"), severity, "why", "do this")


def stat(value: float | None, share: float | None = None) -> MetricStat:
    """A metric of a run with one rank."""
    return MetricStat(value, RankValue(value, 0), RankValue(value, 0), share=share)


def summary(
    step_ms: float = 100.0,
    phases: dict[str, float] | None = None,
    *,
    means: Sequence[float] | None = None,
    seed: int = 0,
    primary: tuple[str, str] = ("COMPUTE_BOUND", "info"),
    memory: tuple[str, str] = ("BALANCED", "info"),
    peak_bytes: float | None = 4e9,
    memory_kind: str = "device",
    clock: str = "host",
    batch: int | None = 32,
    world: int = 1,
    ranks: dict[int, dict[str, float]] | None = None,
    node_of: dict[int, int] | None = None,
    environment: dict[str, Any] | None = None,
    cpu: tuple[float, float] | None = None,
    **run: Any,
) -> Summary:
    """A run whose step takes `step_ms`; `phases` are its parts in ms, `cpu` is (machine %, own %)."""
    parts = phases or {"input_ms": 0.1 * step_ms, "forward_ms": 0.9 * step_ms, "wait_ms": 0.0}
    metrics = {"step_ms": stat(step_ms, 1.0)}
    metrics |= {key: stat(value, value / step_ms) for key, value in parts.items()}
    if batch:
        metrics["samples_per_s"] = stat(batch * 1000 / step_ms)
    first, full = finding(*primary), finding(*memory)
    calm = finding("NORMAL")
    own = ranks or {0: {"step_ms": step_ms, **parts}}
    members = {
        str(rank): Member(Identity(node_rank=(node_of or {}).get(rank, 0)), dict(values))
        for rank, values in own.items()
    }
    system, process = {}, {}
    if cpu:
        system["cpu_percent"] = stat(cpu[0])
        process["0"] = Member(metrics={"cpu_percent": cpu[1]})
    return Summary(
        run=Run(**{"name": "run", "status": "completed", "world_size": world, **run}),
        primary_diagnosis=Primary(first.kind, first.status, first.severity, action="do this"),
        step_time=Section(
            first, [first], SectionWindow(num_steps=200, clock=clock, warmup_steps=1), metrics, members
        ),
        step_memory=Section(
            full,
            [full],
            SectionWindow(memory=memory_kind),
            {("peak_allocated_bytes" if memory_kind == "device" else "rss_bytes"): stat(peak_bytes)},
        ),
        system=Section(calm, [calm], metrics=system),
        process=Section(calm, [calm], ranks=process),
        blocks=Blocks(metrics={"step_ms": [*means] if means is not None else [*blocks(step_ms, seed=seed)]}),
        environment=Environment(
            **{"batch_size": batch, "cpu_count": 2, "torch": "2.13", **(environment or {})}
        ),
    )


def windowed(run: Summary, **facts: Any) -> Summary:
    """The same run with these facts in its step-time window."""
    section = run.step_time
    return replace(run, step_time=replace(section, window=replace(section.window, **facts)))


def refs(count: int, name: str) -> list[RunRef]:
    """References to files with these names."""
    return [RunRef(f"{name}{i or ''}") for i in range(count)]


def compared(a: Summary | list[Summary], b: Summary | list[Summary]) -> Comparison:
    """Compare A with B."""
    from traceml.compare.compare import compare

    one = a if isinstance(a, list) else [a]
    other = b if isinstance(b, list) else [b]
    return compare(one, other, refs(len(one), "before"), refs(len(other), "after"))
