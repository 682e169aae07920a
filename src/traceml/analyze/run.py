"""What ran and how it ended: how the run's time adds up, its notes, its events."""

import heapq
from collections.abc import Sequence
from typing import Final

from traceml.analyze import endings, totals
from traceml.analyze.accounting import accounting_of, parts_of
from traceml.analyze.attempts import Attempts
from traceml.analyze.no_data import described, early_failure, is_of_launcher
from traceml.analyze.notes import notes_of
from traceml.analyze.trainings import trainings_of
from traceml.analyze.window import Window
from traceml.schema.recorded import RankRecording, RecordedEvent, RunFacts, RunRecording
from traceml.schema.summary import Attempt, Event, Ranks, Run, StepCounts

MOST_EVENTS: Final = 200
MOST_ATTEMPTS: Final = 100
WELL: Final = ("completed", "running")
LONG_BEFORE_NS: Final = 5_000_000_000


def run_of(recording: RunRecording, facts: RunFacts, attempts: Attempts, window: Window) -> Run:
    """`summary.run`."""
    ranks = attempts.chosen
    noticed = recording.monitor_events
    newest = [_attempt(before, noticed) for before in attempts.before[-MOST_ATTEMPTS:]]
    expected, absent = _expected(ranks), _absent(ranks)
    begin_ns, end_ns = facts.begin_ns, facts.end_ns
    duration_s = (end_ns - begin_ns) / 1e9 if begin_ns is not None and end_ns is not None else None
    accounting = accounting_of(attempts, facts)
    other_threads = max((r.other_steps for r in ranks.values()), default=0)
    return Run(
        name=facts.name,
        status=facts.status,
        exit_code=facts.exit_code,
        reason=_reason(recording, ranks, facts),
        started_at=facts.started_at,
        ended_at=facts.ended_at,
        duration_s=duration_s,
        command=facts.command,
        nodes=max(len({r.identity.node_rank for r in ranks.values()}), 1),
        world_size=expected,
        ranks=Ranks(
            seen=sorted(ranks),
            used=list(window.ranks),
            lost=sorted(set(range(expected)).difference(window.ranks)),
            ended_first=endings.ended_first(ranks, noticed, absent) if facts.status not in WELL else None,
            earlier_attempts=newest,
        ),
        steps=StepCounts(
            total=window.total_steps + _before_exec(attempts) + other_threads,
            analyzed=window.count,
            warmup=len(window.warmup),
            first_step_ms=window.warmup[0] if window.warmup else None,
            other_threads=other_threads or None,
        ),
        mode=facts.mode,
        accounting=accounting,
        trainings=trainings_of(attempts, window.core_use),
        parts=parts_of(accounting, attempts, window, duration_s),
        recorded_steps=sum(totals.steps_of(r) for r in recording.ranks),
        totals=next((totals.run_totals(r) for r in ranks.values() if len(r.rows)), {}),
        notes=notes_of(recording, facts, attempts, window, newest),
    )


def _before_exec(attempts: Attempts) -> int:
    """Steps of the same processes before they replaced themselves (exec): one training, not a restart."""
    same = {(r.identity.host, r.pid) for r in attempts.chosen.values()}
    return sum(
        max((totals.steps_of(r) for r in before.values() if (r.identity.host, r.pid) in same), default=0)
        for before in attempts.before
    )


def _reason(recording: RunRecording, ranks: dict[int, RankRecording], facts: RunFacts) -> str | None:
    """What the monitor knows, otherwise how the ranks ended; and a rank that was lost long before."""
    if facts.reason is None:
        well = facts.exit_code in (0, None) and facts.status in WELL
        return None if well else _how_it_failed(recording, ranks)
    end_ns = facts.end_ns or 0
    lost = [
        event
        for event in recording.monitor_events
        if event.kind == "rank_ended" and not event.closed
        if event.rank in ranks and ranks[event.rank].node == 0  # other machines have other clocks
        if end_ns - (event.time_ns or end_ns) >= LONG_BEFORE_NS
    ]
    earlier = endings.describe({e.rank: ranks[e.rank] for e in lost}, lost)
    return f"{facts.reason}; before that, {earlier}" if earlier else facts.reason


def _how_it_failed(recording: RunRecording, ranks: dict[int, RankRecording]) -> str | None:
    """The first exception of a rank, or the one that ended a process before it was a rank."""
    early = early_failure(recording)
    ended = endings.describe(ranks, recording.monitor_events, _absent(ranks))
    if early is None or (ended is not None and is_of_launcher(early)):
        return ended
    errors = [e.time_ns for r in ranks.values() for e in r.events if e.kind == "error"]
    return described(early) if all(early.time_ns < at for at in errors) else ended


def _expected(ranks: dict[int, RankRecording]) -> int:
    return max(((r.identity.world_size or 1) for r in ranks.values()), default=1)


def _absent(ranks: dict[int, RankRecording]) -> list[int]:
    return [rank for rank in range(_expected(ranks)) if rank not in ranks] if ranks else []


def _attempt(ranks: dict[int, RankRecording], noticed: Sequence[RecordedEvent]) -> Attempt:
    """An earlier attempt: how many steps it completed and why it ended."""
    steps = max(totals.steps_of(r) for r in ranks.values())
    if endings.ended_well(ranks, noticed):
        return Attempt(steps)
    absent = _absent(ranks)
    return Attempt(
        steps, endings.ended_first(ranks, noticed, absent), endings.describe(ranks, noticed, absent)
    )


def events_of(recording: RunRecording, ranks: dict[int, RankRecording], facts: RunFacts) -> list[Event]:
    """The longest events by time, in the summary's units."""
    every = [(event, rank) for rank, recorded in ranks.items() for event in recorded.events]
    every += [(e, e.rank) for e in recording.monitor_events if e.kind == "stall" and e.rank in ranks]
    longest = heapq.nlargest(MOST_EVENTS, every, key=lambda found: found[0].duration_ns)
    found = [_event(event, ranks[rank], facts) for event, rank in longest]
    return sorted(found, key=lambda e: (e.time_s is None, e.time_s or 0.0))


def _event(event: RecordedEvent, recorded: RankRecording, facts: RunFacts) -> Event:
    origin = facts.begin_ns if recorded.node == 0 else None  # other machines have other clocks
    return Event(
        kind=event.kind,
        rank=recorded.rank,
        step=event.step,
        time_s=(event.time_ns - origin) / 1e9 if event.time_ns and origin is not None else None,
        duration_ms=event.duration_ns / 1e6,
        message=event.message,
        during=event.during,
        phase=event.phase,
        workers=event.workers,
        parameters=event.parameters,
        together=event.together if event.kind == "stall" else None,
    )
