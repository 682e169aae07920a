"""What ran and how it ended: the summary's account of time, its notes, its events."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np

from traceml.analyze import totals
from traceml.analyze.window import Window
from traceml.schema import catalog as c
from traceml.schema import fmt
from traceml.schema.facts import RunFacts
from traceml.schema.recorded import RankRecording, RunRecording
from traceml.schema.summary import Run

MOST_EVENTS = 200
NOTABLE_CPU_DELAY = 0.05
EVENT_FIELDS = ("kind", "rank", "step", "time_ns", "duration_ns")
TOGETHER_NS = 500_000_000
WAITING_FOR_OTHERS = c.PHASES[c.SYNC].key
EXCHANGES = (c.PHASES[c.BACKWARD].key, c.PHASES[c.SYNC].key)


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
        reason=facts.reason or _error_of(recording, ranks, facts),
        started_at=facts.started_at,
        ended_at=facts.ended_at,
        duration_s=seconds,
        command=facts.command,
        nodes=max(len({r.identity.get("node_rank", 0) for r in ranks.values()}), 1),
        world_size=expected,
        ranks={
            "seen": sorted(ranks),
            "used": list(window.ranks),
            "lost": sorted(set(range(expected)).difference(window.ranks)),
            "ended_first": ended_first(recording, ranks, facts),
        },
        steps={
            "total": window.total_steps,
            "analyzed": window.count,
            "warmup": len(window.warmup),
            "first_step_ms": window.warmup[0] if window.warmup else None,
        },
        mode=facts.mode,
        accounting=_accounting(ranks, facts),
        totals=next((totals.run_totals(r) for r in ranks.values() if len(r.rows)), {}),
        notes=_notes(recording, facts, ranks, window),
    )


def _error_of(recording: RunRecording, ranks: dict[int, RankRecording], facts: RunFacts) -> str | None:
    if facts.exit_code in (0, None) and facts.status in ("completed", "running"):
        return None
    error = _first_error(ranks)
    first = ended_first(recording, ranks, facts)
    if len(ranks) < 2 or first is None:
        return error[1] if error is not None else None
    text = f"r{first['rank']} ended first: after step {first['step']}, in {first['phase']}"
    return text + (f"; r{error[0]}: {error[1]}" if error is not None else "")


def _first_error(ranks: dict[int, RankRecording]) -> tuple[int, str] | None:
    """The exception that came first; one out of an exchange may only echo another rank's end."""
    errors = [(_is_echo(e), e.get("time_ns", 0), r, e) for r, x in ranks.items() for e in x.events]
    errors = [found for found in errors if found[3]["kind"] == "error"]
    if not errors:
        return None
    _, _, rank, event = min(errors, key=lambda found: found[:3])
    return rank, str(event.get("message"))


def _is_echo(event: dict[str, Any]) -> bool:
    return event.get("during") in EXCHANGES


def ended_first(
    recording: RunRecording, ranks: dict[int, RankRecording], facts: RunFacts
) -> dict[str, Any] | None:
    """In a run that did not end well: the rank that went first, its last step, and where it was.

    Ranks that end within half a second of the first are taken together. Among them: one that raised outside
    an exchange; else one that was killed while it was not waiting for others; else whoever raised first.
    """
    if facts.status in ("completed", "running"):
        return None
    ended = sorted(
        (e for e in recording.monitor_events if e["kind"] == "rank_ended" and e.get("rank") in ranks),
        key=lambda e: int(e.get("time_ns", 0)),
    )
    if not ended:
        return None
    together = [e for e in ended if e["time_ns"] - ended[0]["time_ns"] < TOGETHER_NS]
    raised = {r for r, x in ranks.items() for e in x.events if e["kind"] == "error" and not _is_echo(e)}
    error = _first_error(ranks)
    guilty = (
        [e for e in together if e["rank"] in raised]
        or [e for e in together if not e.get("closed") and e.get("phase") != WAITING_FOR_OTHERS]
        or [e for e in together if error is not None and e["rank"] == error[0]]
        or together
    )
    return {"rank": guilty[0]["rank"], "step": guilty[0].get("step"), "phase": guilty[0].get("phase")}


def _accounting(ranks: dict[int, RankRecording], facts: RunFacts) -> dict[str, float | None]:
    """How the run's seconds add up on the first rank: start-up, steps, dropped steps, the end."""
    lit = [r for r in ranks.values() if len(r.rows)]
    if not lit or facts.begin_ns is None or facts.end_ns is None:
        return {}
    begin_ns, end_ns = lit[0].begin_ns or 0, lit[0].end_ns or 0
    steps_s = totals.step_ns(lit[0]) / 1e9
    return {
        "startup_s": (begin_ns - facts.begin_ns) / 1e9,
        "steps_s": steps_s,
        "dropped_steps_s": (end_ns - begin_ns) / 1e9 - steps_s,
        "after_last_step_s": (facts.end_ns - end_ns) / 1e9,
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
    if window.earlier_steps:
        notes.append(
            f"{fmt.count(window.earlier_steps)} earlier steps count in the run's totals only: the diagnosis "
            f"looks at the {fmt.count(window.count)} newest."
        )
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


def events_of(
    recording: RunRecording, ranks: dict[int, RankRecording], facts: RunFacts
) -> list[dict[str, Any]]:
    """The longest events, in the order of time, in the summary's units."""
    noticed: dict[int, list[dict[str, Any]]] = {}
    for event in recording.monitor_events:
        if event["kind"] == "stall":
            noticed.setdefault(event.get("rank", -1), []).append(event)
    every = ((e, r, x) for r, x in ranks.items() for e in (*x.events, *noticed.get(r, ())))
    longest = heapq.nlargest(MOST_EVENTS, every, key=lambda found: found[0].get("duration_ns") or 0)
    found = [_event(event, rank, recorded, facts) for event, rank, recorded in longest]
    return sorted(found, key=lambda e: (e["time_s"] is None, e["time_s"] or 0.0))


def _event(event: dict[str, Any], rank: int, recorded: RankRecording, facts: RunFacts) -> dict[str, Any]:
    origin = facts.begin_ns if recorded.node == 0 else None  # another machine's clock
    at = event.get("time_ns")
    return {
        "kind": event["kind"],
        "rank": rank,
        "step": event.get("step"),
        "time_s": (at - origin) / 1e9 if isinstance(at, int) and origin is not None else None,
        "duration_ms": (event.get("duration_ns") or 0) / 1e6,
        **{k: v for k, v in event.items() if k not in EVENT_FIELDS},
    }
