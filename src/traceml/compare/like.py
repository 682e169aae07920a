"""Compare like with like: what else differs between A and B, and what that rules out."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from traceml.compare.side import Runs, contention, means, memory_kind, work_per_step
from traceml.schema import fmt
from traceml.schema.comparison import Difference
from traceml.schema.summary import Summary

SAME_WORK: Final = 0.02
"""A smaller last batch changes the mean work per step by less than this, another batch size by more."""
STEP, SAMPLE, TOKEN = "step", "sample", "token"


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that should be the same on both sides."""

    what: str
    of: Callable[[Summary], Any]
    matters: bool = True
    show: Callable[[Any], str] = str
    is_task: bool = False  # what is trained, and on what; unlike a setting that one changes to be faster


def clock(run: Summary) -> str | None:
    """The clock that the phases were measured on, if known."""
    found = run.step_time.window.clock
    return found if found in ("host", "device") else None


def world_size(run: Summary) -> int | None:
    """The number of ranks; unknown if none of them came to train."""
    return run.run.world_size if run.run.steps.total != 0 else None


FACTS: Final[tuple[Fact, ...]] = (
    Fact("batch size", lambda s: s.environment.batch_size, is_task=True),
    Fact("micro-batches", lambda s: s.environment.micro_batches, is_task=True),
    Fact("world size", world_size, is_task=True),
    Fact("nodes", lambda s: s.run.nodes, is_task=True),
    Fact("device", lambda s: s.environment.device, is_task=True),
    Fact("device model", lambda s: s.environment.device_name, is_task=True),
    Fact("model parameters", lambda s: s.environment.model_parameters, show="{:,}".format, is_task=True),
    Fact("torch", lambda s: s.environment.torch),
    Fact("torch threads", lambda s: s.environment.torch_threads),
    Fact("loader workers", lambda s: s.step_time.window.loader_workers),
    Fact("cores", lambda s: s.environment.cpu_count, is_task=True),
    Fact("clock", clock),
    Fact("memory", memory_kind, matters=False),
    Fact("host", lambda s: s.environment.host, matters=False),
    Fact("Python", lambda s: s.environment.python, matters=False),
    Fact("numpy", lambda s: s.environment.packages.get("numpy"), matters=False),
    Fact("warm-up steps left out", lambda s: s.step_time.window.warmup_steps, matters=False),
    Fact("git commit", lambda s: s.environment.git_commit, matters=False, show=lambda v: str(v)[:10]),
    Fact("file format", lambda s: s.schema, matters=False),
)
TASK: Final = frozenset(fact.what for fact in FACTS if fact.is_task)
WORK: Final = frozenset({"batch size", "micro-batches", "world size"})


def differences(a: Runs, b: Runs) -> list[Difference]:
    """Every fact that is known on both sides and differs."""
    found = []
    for fact in FACTS:
        one, other = (
            sorted({fact.show(value) for run in side if (value := fact.of(run)) is not None})
            for side in (a, b)
        )
        if one and other and one != other:
            found.append(Difference(fact.what, ", ".join(one), ", ".join(other), fact.matters))
    per = basis(a, b)[0]
    if per != STEP and not {d.what for d in found} & WORK:  # for a reason that is not known: longer sequences
        one_work, other_work = means(a, b, partial(work_per_step, rate=f"{per}s_per_s"))
        found.append(Difference(f"{per}s per step", fmt.count(one_work), fmt.count(other_work), True))
    return found


def unlike(found: list[Difference]) -> list[Difference]:
    """Those that make A and B different trainings, or the same one on different hardware."""
    return [d for d in found if d.what in TASK or d.what.endswith(" per step")]


def same_clock(a: Runs, b: Runs) -> bool:
    """Whether phases may be compared. Only two clocks that are known to differ rule it out."""
    return len({clock(run) for run in (*a, *b)} - {None}) <= 1


def basis(a: Runs, b: Runs) -> tuple[str, float]:
    """Whether to compare the time per step, sample or token; and (work of B) / (work of A) per step."""
    for name in (TOKEN, SAMPLE):
        work_a, work_b = means(a, b, partial(work_per_step, rate=f"{name}s_per_s"))
        if work_a and work_b and abs(work_b / work_a - 1) > SAME_WORK:
            return name, work_b / work_a
    return STEP, 1.0


def warnings(a: Runs, b: Runs) -> list[str]:
    """What a reader must know before trusting the numbers."""
    found: list[str] = []
    for side, runs in (("A", a), ("B", b)):
        for run in runs:
            found += _run_warnings(side if len(runs) == 1 else f"{side} ({run.run.name})", run)
    if not same_clock(a, b):
        found.append(
            "A and B measured phases on different clocks (host, device), so phases are not compared."
        )
    world_a, world_b = ({run.run.world_size for run in side} for side in (a, b))
    if basis(a, b)[0] == STEP and world_a != world_b:
        found.append(
            "The world sizes differ and the work per step is unknown: step times may not be comparable."
        )
    return found


def _run_warnings(who: str, run: Summary) -> list[str]:
    found = []
    if not run.final or run.run.status == "running":
        found.append(f"{who} was still running when its summary was written.")
    elif run.run.status not in ("completed", "unknown", ""):
        found.append(f"{who} did not complete ({run.run.status}); only its completed steps are compared.")
    if run.run.ranks.lost:
        found.append(f"{who} has no steps from {', '.join(map(fmt.rank, run.run.ranks.lost[:8]))}.")
    if run.step_time.window.input_inferred:
        found.append(f"{who}: input time is an estimate, because no loader was seen feeding the loop.")
    if share := contention(run):
        cores = (run.environment.cpu_count or 1) * max(run.run.nodes, 1)
        found.append(
            f"{who} ran on a busy machine: other processes used {share * cores:.1f} of {cores} cores "
            f"({fmt.share(share)}). The interval is widened to allow for this."
        )
    return found
