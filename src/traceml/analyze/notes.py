"""What is to be known about a run besides its numbers, one sentence each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from traceml.analyze import endings, totals
from traceml.analyze.attempts import Attempts
from traceml.analyze.window import Window
from traceml.schema import catalog as c
from traceml.schema import fmt
from traceml.schema.facts import RunFacts
from traceml.schema.recorded import RankRecording, RunRecording

NOTABLE_CPU_DELAY: Final = 0.05
MOST_UNEVEN: Final = 1
"""A rank that was killed may be a step behind the others."""
MOST_LISTED: Final = 8
SAME_STALL_NS: Final = 1_000_000_000

Ranks = dict[int, RankRecording]


def notes_of(
    recording: RunRecording,
    facts: RunFacts,
    attempts: Attempts,
    window: Window,
    earlier: list[dict[str, Any]],
) -> list[str]:
    """`summary.run.notes`."""
    ranks = attempts.chosen
    notes = [*recording.problems, *facts.notes]
    if not ranks and facts.status != "running":
        notes.append(_why_nothing(recording.seen))
    if window.warmup and window.count:
        mean = float(np.median(window.step_ns)) / 1e6
        if window.warmup[0] > 2 * mean:
            notes.append(
                f"Warm-up left out: {len(window.warmup)} step(s); the first took "
                f"{fmt.ms(window.warmup[0])}, a typical one {fmt.ms(mean)}."
            )
    if window.cpu_delay_share >= NOTABLE_CPU_DELAY:
        notes.append(
            f"The training's threads waited for a core {fmt.share(window.cpu_delay_share)} of the time: for "
            "other work on this machine or its host, or because of a CPU quota."
        )
    if window.input_inferred:
        notes.append("Input time is inferred: no loader was seen feeding the loop.")
    if any(r.lost_rows for r in ranks.values()):
        notes.append("The disk was full: steps after that point are missing.")
    if window.earlier_steps:
        notes.append(
            f"{fmt.count(window.earlier_steps)} earlier steps count in the run's totals only: the diagnosis "
            f"looks at the {fmt.count(window.count)} newest."
        )
    notes += _uneven(ranks, facts)
    notes += _absent(ranks, window)
    notes += _stalled(ranks, recording.monitor_events)
    notes += [
        f"r{r.rank} was also recorded by another process at the same time (pid {r.pid}, "
        f"{fmt.count(totals.steps_of(r))} step(s)): left out."
        for r in attempts.doubles[:MOST_LISTED]
    ]
    return notes + _restarts(earlier)


def _absent(ranks: Ranks, window: Window) -> list[str]:
    """Expected ranks that are not in these numbers."""
    expected = max((int(r.identity.get("world_size", 1)) for r in ranks.values()), default=0)
    missing = [rank for rank in range(expected) if rank not in ranks]
    none = [r for r in window.dark_ranks if r in ranks and not totals.steps_of(ranks[r])]
    short = [r for r in window.dark_ranks if r in ranks and totals.steps_of(ranks[r])]
    notes = []
    if none:
        notes.append(f"No completed step from {_listed(none)}.")
    if short:
        most = max(totals.steps_of(ranks[r]) for r in short)
        notes.append(f"{_listed(short)} completed {fmt.count(most)} step(s) at most: left out.")
    if missing and ranks:
        notes.append(f"Nothing was recorded of {_listed(missing)}, of {expected} ranks that were expected.")
    return notes


def _listed(ranks: Sequence[int]) -> str:
    more = f" and {len(ranks) - MOST_LISTED} more" if len(ranks) > MOST_LISTED else ""
    return ", ".join(f"r{r}" for r in ranks[:MOST_LISTED]) + more


def _stalled(ranks: Ranks, noticed: Sequence[dict[str, Any]]) -> list[str]:
    """The last time that ranks did not move: where each of them was, those first that waited for nobody."""
    stalls = [e for e in noticed if e["kind"] == "stall" and e.get("rank") in ranks]
    if not stalls:
        return []
    last = max(endings.when(e) for e in stalls)
    then = [e for e in stalls if last - endings.when(e) < SAME_STALL_NS]
    then.sort(key=lambda e: (e.get("phase") == c.PHASES[c.SYNC].key, e["rank"]))
    seconds = max(int(e.get("duration_ns") or 0) for e in then) / 1e9
    places = [
        f"r{e['rank']} in {e.get('phase')} "
        + (f"after step {e['step']}" if e.get("step") else "of its first step")
        for e in then[:MOST_LISTED]
    ]
    more = f" and {len(then) - MOST_LISTED} more" if len(then) > MOST_LISTED else ""
    if all(e.get("together", True) for e in then):
        return [f"No rank completed a step for at least {seconds:.0f} s: {', '.join(places)}{more}."]
    return [f"While other ranks went on, no step for at least {seconds:.0f} s: {', '.join(places)}{more}."]


def _uneven(ranks: Ranks, facts: RunFacts) -> list[str]:
    """That some ranks completed more steps than others: only what all have is compared."""
    steps = {rank: totals.steps_of(r) for rank, r in ranks.items() if len(r.rows)}
    if facts.status == "running" or not steps:
        return []
    few, many = min(steps, key=lambda r: steps[r]), max(steps, key=lambda r: steps[r])
    if steps[many] - steps[few] <= MOST_UNEVEN:
        return []
    return [
        f"The ranks completed uneven numbers of steps: r{few} {fmt.count(steps[few])}, r{many} "
        f"{fmt.count(steps[many])}. Only steps that all of them completed are analyzed."
    ]


def _restarts(earlier: list[dict[str, Any]]) -> list[str]:
    """That the same ranks ran before: what is said elsewhere is of the last time only."""
    if not earlier:
        return []
    last = earlier[-1]
    why = f": {last['reason']}" if last["reason"] else ""
    return [
        f"The same ranks ran {len(earlier) + 1} times; only the last time is in these numbers. The time "
        f"before, they completed {fmt.count(last['steps'])} step(s){why}"
        + ("" if why.endswith((".", "!", "?")) else ".")
    ]


def _why_nothing(seen: frozenset[str]) -> str:
    if "torch" in seen:
        return "torch was imported, but no backward pass or optimizer step ran: nothing to record."
    if "old-python" in seen:
        return "The command's Python is older than 3.10: nothing was recorded."
    if "python" in seen:
        return "Python ran, but torch was never imported: nothing to record."
    return (
        "No Python process started under TraceML: the command does not run Python, or its Python "
        "ignores the environment (-I, -E, -S). Nothing was recorded."
    )
