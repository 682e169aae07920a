"""What ran and how it ended: the summary's account of time, its notes, its events."""

from __future__ import annotations

from typing import Any

import numpy as np

from traceml.analyze.window import Window
from traceml.schema import fmt
from traceml.schema.facts import RunFacts
from traceml.schema.recorded import RankRecording, RunRecording
from traceml.schema.summary import Run

MOST_EVENTS = 200
NOTABLE_CPU_DELAY = 0.05


def run_of(recording: RunRecording, facts: RunFacts, ranks: dict[int, RankRecording], window: Window) -> Run:
    """`summary.run`."""
    expected = max((int(r.identity.get("world_size", 1)) for r in ranks.values()), default=1)
    seconds = None
    if facts.begin_ns is not None and facts.end_ns is not None:
        seconds = (facts.end_ns - facts.begin_ns) / 1e9
    return Run(
        name=facts.name,
        status=facts.status,
        exit_code=facts.exit_code,
        reason=facts.reason or _error_of(ranks, facts),
        started_at=facts.started_at,
        ended_at=facts.ended_at,
        duration_s=seconds,
        command=facts.command,
        nodes=max(len({r.identity.get("node_rank", 0) for r in ranks.values()}), 1),
        world_size=expected,
        ranks={
            "seen": sorted(ranks),
            "used": list(window.ranks),
            "lost": [r for r in range(expected) if r not in window.ranks],
        },
        steps={
            "total": window.total_steps,
            "analyzed": window.count,
            "warmup": len(window.warmup),
            "first_step_ms": window.warmup[0] if window.warmup else None,
        },
        mode=facts.mode,
        accounting=_accounting(ranks, facts),
        notes=_notes(recording, facts, ranks, window),
    )


def _error_of(ranks: dict[int, RankRecording], facts: RunFacts) -> str | None:
    if facts.exit_code in (0, None) and facts.status in ("completed", "running"):
        return None
    errors = [e for r in ranks.values() for e in r.events if e["kind"] == "error"]
    return str(errors[-1].get("message")) if errors else None


def _accounting(ranks: dict[int, RankRecording], facts: RunFacts) -> dict[str, float | None]:
    """How the run's seconds add up on the first rank: start-up, steps, dropped steps, the end."""
    lit = [r for r in ranks.values() if len(r.rows)]
    if not lit or facts.begin_ns is None or facts.end_ns is None:
        return {}
    rows = lit[0].rows
    steps = float((rows["end_ns"] - rows["begin_ns"]).sum()) / 1e9
    first, last = int(rows["begin_ns"][0]), int(rows["end_ns"][-1])
    return {
        "startup_s": (first - facts.begin_ns) / 1e9,
        "steps_s": steps,
        "dropped_steps_s": (last - first) / 1e9 - steps,
        "after_last_step_s": (facts.end_ns - last) / 1e9,
    }


def _notes(
    recording: RunRecording, facts: RunFacts, ranks: dict[int, RankRecording], window: Window
) -> list[str]:
    notes = list(recording.problems)
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
            f"Other processes were busy on this machine: the training's threads waited for a core "
            f"{fmt.share(window.cpu_delay_share)} of the time."
        )
    if window.input_inferred:
        notes.append("Input time is inferred: no loader was seen feeding the loop.")
    if any(r.lost_rows for r in ranks.values()):
        notes.append("The disk was full: steps after that point are missing.")
    if window.dark_ranks:
        dark = ", ".join(f"r{r}" for r in window.dark_ranks)
        notes.append(f"No completed step from {dark}.")
    restarts = len(recording.ranks) - len(ranks)
    if restarts > 0:
        notes.append(f"{restarts} earlier recording(s) of the same rank are not in this summary.")
    return notes


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


def events_of(ranks: dict[int, RankRecording], facts: RunFacts) -> list[dict[str, Any]]:
    """The longest events, in the order of time, in the summary's units."""
    origin = facts.begin_ns
    found = []
    for rank, recorded in ranks.items():
        for event in recorded.events:
            at = event.get("time_ns")
            seconds = (at - origin) / 1e9 if isinstance(at, int) and origin is not None else None
            more = {k: v for k, v in event.items() if k not in ("kind", "step", "time_ns", "duration_ns")}
            found.append(
                {
                    "kind": event["kind"],
                    "rank": rank,
                    "step": event.get("step"),
                    "time_s": seconds,
                    "duration_ms": (event.get("duration_ns") or 0) / 1e6,
                    **more,
                }
            )
    found.sort(key=lambda e: e["duration_ms"], reverse=True)
    return sorted(found[:MOST_EVENTS], key=lambda e: (e["time_s"] is None, e["time_s"]))
