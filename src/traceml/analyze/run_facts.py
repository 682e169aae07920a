"""What ran and how it ended: the summary's account of time, its notes, its events."""

from __future__ import annotations

import heapq
from typing import Any

from traceml.analyze import endings, totals
from traceml.analyze.attempts import Attempts
from traceml.analyze.notes import notes_of
from traceml.analyze.window import Window
from traceml.schema.facts import RunFacts
from traceml.schema.recorded import RankRecording, RunRecording
from traceml.schema.summary import Run

MOST_EVENTS = 200
EVENT_FIELDS = ("kind", "rank", "step", "time_ns", "duration_ns")
WELL = ("completed", "running")
LONG_BEFORE_NS = 5_000_000_000


def run_of(recording: RunRecording, facts: RunFacts, attempts: Attempts, window: Window) -> Run:
    """`summary.run`."""
    ranks = attempts.chosen
    earlier = [_attempt(before, recording.monitor_events) for before in attempts.before]
    ended_well = facts.status in WELL
    expected = max((int(r.identity.get("world_size", 1)) for r in ranks.values()), default=1)
    seconds = None
    if facts.begin_ns is not None and facts.end_ns is not None:
        seconds = (facts.end_ns - facts.begin_ns) / 1e9
    return Run(
        name=facts.name,
        status=facts.status,
        exit_code=facts.exit_code,
        reason=_reason(recording, ranks, facts),
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
            "ended_first": None if ended_well else endings.ended_first(ranks, recording.monitor_events),
            "earlier_attempts": earlier,
        },
        steps={
            "total": window.total_steps,
            "analyzed": window.count,
            "warmup": len(window.warmup),
            "first_step_ms": window.warmup[0] if window.warmup else None,
        },
        mode=facts.mode,
        accounting=_accounting(attempts, facts),
        totals=next((totals.run_totals(r) for r in ranks.values() if len(r.rows)), {}),
        notes=notes_of(recording, facts, attempts, window, earlier),
    )


def _reason(recording: RunRecording, ranks: dict[int, RankRecording], facts: RunFacts) -> str | None:
    """What the monitor knows, else how the ranks ended; and a rank that was lost long before."""
    if facts.reason is None:
        well = facts.exit_code in (0, None) and facts.status in WELL
        return None if well else endings.describe(ranks, recording.monitor_events)
    end_ns = facts.end_ns or 0
    lost = [e for e in recording.monitor_events if not e.get("closed") and _is_early(e, ranks, end_ns)]
    earlier = endings.describe({e["rank"]: ranks[e["rank"]] for e in lost}, lost)
    return f"{facts.reason}; before that {earlier}" if earlier else facts.reason


def _is_early(event: dict[str, Any], ranks: dict[int, RankRecording], end_ns: int) -> bool:
    """Whether a rank of this machine ended long before the run did, by its own clock."""
    mine = ranks.get(event.get("rank", -1))
    here = event["kind"] == "rank_ended" and mine is not None and mine.node == 0
    return here and end_ns - int(event.get("time_ns") or end_ns) >= LONG_BEFORE_NS


def _attempt(ranks: dict[int, RankRecording], noticed: list[dict[str, Any]]) -> dict[str, Any]:
    """An attempt that was given up: how far it came and why it ended."""
    went_well = endings.ended_well(ranks, noticed)
    return {
        "steps": max(totals.steps_of(r) for r in ranks.values()),
        "ended_first": None if went_well else endings.ended_first(ranks, noticed),
        "reason": None if went_well else endings.describe(ranks, noticed),
    }


def _accounting(attempts: Attempts, facts: RunFacts) -> dict[str, float | None]:
    """How the run's seconds add up on the first rank: start-up, attempts, steps, dropped steps, the end."""
    lit = [r for r in attempts.chosen.values() if len(r.rows)]
    if not lit or facts.begin_ns is None or facts.end_ns is None:
        return {}
    begin_ns, end_ns = lit[0].begin_ns or 0, lit[0].end_ns or 0
    steps_s = totals.step_ns(lit[0]) / 1e9
    before = [r.begin_ns for attempt in attempts.before for r in attempt.values() if r.node == lit[0].node]
    first_ns = min((at for at in before if at is not None), default=begin_ns)
    return {
        "startup_s": (first_ns - facts.begin_ns) / 1e9,
        **({"earlier_attempts_s": (begin_ns - first_ns) / 1e9} if attempts.before else {}),
        "steps_s": steps_s,
        "dropped_steps_s": (end_ns - begin_ns) / 1e9 - steps_s,
        "after_last_step_s": (facts.end_ns - end_ns) / 1e9,
    }


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
