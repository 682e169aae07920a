"""Is it like with like: what differs between the sides besides what is being compared, and what
that forbids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from traceml.analyze.compare_crowd import contention
from traceml.schema import fmt
from traceml.schema.comparison import Difference
from traceml.schema.summary import Summary

SAME_WORK: Final = 0.02
"""A last, smaller batch moves the mean by less; a different batch size by more."""
STEP, SAMPLE, TOKEN = "step", "sample", "token"


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that should be the same on both sides."""

    what: str
    of: Callable[[Summary], Any]
    matters: bool = True
    show: Callable[[Any], str] = str


def _environment(key: str) -> Callable[[Summary], Any]:
    return lambda summary: summary.environment.get(key)


def _window(key: str) -> Callable[[Summary], Any]:
    return lambda summary: summary.step_time.window.get(key)


def _package(name: str) -> Callable[[Summary], Any]:
    return lambda summary: (summary.environment.get("packages") or {}).get(name)


def _parameters(summary: Summary) -> Any:
    return summary.environment.get("model_parameters")


def clock(summary: Summary) -> str | None:
    """Which clock the phases are on; unknown is None."""
    found = summary.step_time.window.get("clock")
    return found if found in ("host", "device") else None


def memory_kind(summary: Summary) -> str | None:
    """Device or resident memory."""
    found = summary.step_memory.window.get("memory")
    return found if isinstance(found, str) else None


FACTS: Final[tuple[Fact, ...]] = (
    Fact("batch size", _environment("batch_size")),
    Fact("micro-batches", _environment("micro_batches")),
    Fact("world size", lambda s: s.run.world_size),
    Fact("nodes", lambda s: s.run.nodes),
    Fact("device", _environment("device")),
    Fact("device model", _environment("device_name")),
    Fact("model parameters", _parameters, show=lambda v: f"{v:,}" if isinstance(v, int) else str(v)),
    Fact("torch", _environment("torch")),
    Fact("torch threads", _environment("torch_threads")),
    Fact("loader workers", _window("loader_workers")),
    Fact("cores", _environment("cpu_count")),
    Fact("clock", clock),
    Fact("memory", memory_kind, matters=False),
    Fact("host", _environment("host"), matters=False),
    Fact("Python", _environment("python"), matters=False),
    Fact("numpy", _package("numpy"), matters=False),
    Fact("warm-up steps left out", _window("warmup_steps"), matters=False),
    Fact("git commit", _environment("git_commit"), matters=False, show=lambda v: str(v)[:10]),
    Fact("written as", lambda s: s.schema, matters=False),
)


def differences(a: Sequence[Summary], b: Sequence[Summary]) -> list[Difference]:
    """Every fact that is known on both sides and not the same. An unknown one is no difference."""
    found = []
    for fact in FACTS:
        one, other = _known(a, fact), _known(b, fact)
        if one and other and one != other:
            found.append(Difference(fact.what, ", ".join(one), ", ".join(other), fact.matters))
    return found


def _known(runs: Sequence[Summary], fact: Fact) -> list[str]:
    values = [fact.of(run) for run in runs]
    return sorted({fact.show(v) for v in values if v is not None})


def same_clock(a: Sequence[Summary], b: Sequence[Summary]) -> bool:
    """Whether phases may be compared. Only two clocks that are known to differ forbid it."""
    return len({c for c in (clock(s) for s in (*a, *b)) if c is not None}) <= 1


def work_per_step(summary: Summary, key: str) -> float | None:
    """Samples or tokens that all ranks together process in a step."""
    rate, step = summary.step_time.metrics.get(key), summary.step_time.metrics.get("step_ms")
    if rate is None or step is None or not rate.average or not step.average:
        return None
    return rate.average * step.average / 1000 * max(summary.run.world_size, 1)


def basis(a: Sequence[Summary], b: Sequence[Summary]) -> tuple[str, float]:
    """Per what step times are comparable, and (work of B) / (work of A) in a step."""
    for name, key in ((TOKEN, "tokens_per_s"), (SAMPLE, "samples_per_s")):
        work_a, work_b = _mean_work(a, key), _mean_work(b, key)
        if work_a and work_b and abs(work_b / work_a - 1) > SAME_WORK:
            return name, work_b / work_a
    return STEP, 1.0


def _mean_work(runs: Sequence[Summary], key: str) -> float | None:
    found = [work_per_step(run, key) for run in runs]
    known = [v for v in found if v is not None]
    return sum(known) / len(known) if known and len(known) == len(found) else None


def warnings(a: Sequence[Summary], b: Sequence[Summary]) -> list[str]:
    """What a reader must know before believing the numbers."""
    found: list[str] = []
    for side, runs in (("A", a), ("B", b)):
        for run in runs:
            who = side if len(runs) == 1 else f"{side} ({run.run.name})"
            found += _about(who, run)
    if not same_clock(a, b):
        found.append("The phases of A and B are on different clocks (host, device): they are not compared.")
    if basis(a, b)[0] == STEP and _worlds(a) != _worlds(b):
        found.append("The world sizes differ and the work of a step is unknown: step times are not alike.")
    return found


def _about(who: str, run: Summary) -> list[str]:
    found = []
    if not run.final or run.run.status == "running":
        found.append(f"{who} was still running when its summary was made.")
    elif run.run.status not in ("completed", "unknown", ""):
        found.append(f"{who} did not complete ({run.run.status}); its completed steps are compared.")
    lost = run.run.ranks.get("lost")
    if lost:
        found.append(f"{who} has no steps of " + ", ".join(f"r{r}" for r in lost[:8]) + ".")
    if run.step_time.window.get("input_inferred") is True:
        found.append(f"{who} has inferred input times: no loader was seen feeding the loop.")
    share = contention(run)
    if share:
        cores = run.environment["cpu_count"] * max(run.run.nodes, 1)
        found.append(
            f"{who} shared a full machine: other processes used {share * cores:.1f} of {cores} "
            f"cores ({fmt.share(share)}). The interval allows for it."
        )
    return found


def _worlds(runs: Sequence[Summary]) -> set[int]:
    return {run.run.world_size for run in runs}
