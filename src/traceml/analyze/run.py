"""What ran and how it ended: how the run's seconds add up on its first rank, its trainings, its events."""

import heapq
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Final

from traceml.analyze import endings
from traceml.analyze import window as w
from traceml.analyze.align import align_ranks
from traceml.analyze.cores import CoreUse
from traceml.analyze.diagnose import diagnose_time
from traceml.analyze.notes import notes_of
from traceml.analyze.recordings import (
    Attempts,
    absent_ranks,
    expected_ranks,
    run_totals,
    step_ns,
    steps_of,
)
from traceml.schema import fmt
from traceml.schema.recorded import RankRecording, RecordedEvent, RunFacts, RunRecording
from traceml.schema.summary import Attempt, Event, Ranks, Run, RunPart, StepCounts, Training

MOST_EVENTS: Final = 200
MOST_ATTEMPTS: Final = 100
WELL: Final = ("completed", "running")
LONG_BEFORE_NS: Final = 5_000_000_000
NOTABLE_SHARE: Final = 0.1
MOST_NAMED: Final = 2
LEAST_SHARE: Final = 0.0005
"""Parts that would be shown as 0.0 % of the run are left out."""
OUTSIDE_STEPS: Final = (w.VALIDATION, w.CHECKPOINT)
"""What a rank reports as events when it happens before its first or after its last step."""
PARTS: Final = {
    "startup_s": ("Start-up", "before the first step"),
    **{f"{kind}_before_s": (f"{w.LABELS[kind].capitalize()} before", "") for kind in OUTSIDE_STEPS},
    "earlier_attempts_s": ("Earlier attempts", ""),
    "warmup_s": ("Warm-up steps", ""),
    "steps_s": ("Steps", ""),
    "dropped_steps_s": ("Dropped steps", "between steps: not completed"),
    **{f"{kind}_after_s": (f"{w.LABELS[kind].capitalize()} after", "") for kind in OUTSIDE_STEPS},
    "after_last_step_s": ("End", "after the last step"),
}
"""What each of them is called, and what is said about it."""
ALWAYS: Final = ("startup_s", "steps_s", "after_last_step_s")


def run_of(recording: RunRecording, facts: RunFacts, attempts: Attempts, window: w.Window) -> Run:
    """`summary.run`."""
    ranks, noticed = attempts.chosen, endings.with_exit_code(recording, attempts.chosen, facts)
    newest = [_attempt(before, noticed) for before in attempts.before[-MOST_ATTEMPTS:]]
    expected, absent = expected_ranks(ranks), absent_ranks(ranks)
    begin_ns, end_ns = facts.begin_ns, facts.end_ns
    duration_s = (end_ns - begin_ns) / 1e9 if begin_ns is not None and end_ns is not None else None
    first = next((r for r in ranks.values() if len(r.rows)), None)
    accounting = accounting_of(first, attempts, facts) if first is not None else {}
    other_threads = max((r.other_steps for r in ranks.values()), default=0)
    # Steps of the same processes before they replaced themselves (exec) are of one training, not a restart.
    same = {(r.identity.host, r.pid) for r in ranks.values()}
    before_exec = sum(
        max((steps_of(r) for r in before.values() if (r.identity.host, r.pid) in same), default=0)
        for before in attempts.before
    )
    return Run(
        name=facts.name,
        status=facts.status,
        exit_code=facts.exit_code,
        reason=_reason(replace(recording, monitor_events=noticed), ranks, facts),
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
            total=window.total_steps + before_exec + other_threads,
            analyzed=window.count,
            warmup=len(window.warmup),
            first_step_ms=window.warmup[0] if window.warmup else None,
            other_threads=other_threads or None,
        ),
        mode=facts.mode,
        accounting={**accounting},
        trainings=trainings_of(attempts, window.core_use),
        parts=parts_of(accounting, first, len(window.warmup), duration_s) if first and duration_s else [],
        recorded_steps=sum(steps_of(r) for r in recording.ranks),
        totals=run_totals(first) if first is not None else {},
        notes=notes_of(recording, facts, attempts, window, newest),
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
    """The first exception of a rank, or the one that ended a process before it became a rank."""
    early = endings.early_failure(recording)
    ended = endings.describe(ranks, recording.monitor_events, absent_ranks(ranks))
    if early is None or (ended is not None and endings.is_of_launcher(early)):
        return ended
    errors = [e.time_ns for r in ranks.values() for e in r.events if e.kind == "error"]
    return endings.described(early) if all(early.time_ns < at for at in errors) else ended


def _attempt(ranks: dict[int, RankRecording], noticed: Sequence[RecordedEvent]) -> Attempt:
    """An earlier attempt: how many steps it completed and why it ended."""
    steps = max(steps_of(r) for r in ranks.values())
    if endings.ended_well(ranks, noticed):
        return Attempt(steps)
    how = (ranks, noticed, absent_ranks(ranks))
    return Attempt(steps, endings.ended_first(*how), endings.describe(*how))


def trainings_of(attempts: Attempts, use: CoreUse) -> list[Training]:
    """`run.trainings`, if several processes claimed the same rank, together (hogwild) or one after the other:
    a line for each, those of the tables first. Ranks that a launcher restarted are no other trainings."""
    alone = all((r.identity.world_size or 1) == 1 for r in attempts.chosen.values())
    before = [r for attempt in attempts.before for r in attempt.values()] if alone else []
    others = sorted((*attempts.doubles, *before), key=attrgetter("pid"))
    shown = [r for r in attempts.chosen.values() if r.rank in {other.rank for other in others}]
    return [*(_training(r, use, True) for r in shown), *(_training(r, use, False) for r in others)]


def _training(recorded: RankRecording, use: CoreUse, is_shown: bool) -> Training:
    window = replace(align_ranks({recorded.rank: recorded}), core_use=use)
    first, known = diagnose_time(window)[0], window.count > 0
    return Training(
        pid=recorded.pid,
        rank=recorded.rank,
        steps=steps_of(recorded),
        step_ms=window.mean_ms(window.step_ns) if known else None,
        input_share=window.median_share(window.of(w.INPUT)) if known else None,
        compute_share=window.median_share(window.of(*w.COMPUTE)) if known else None,
        status=first.status,
        severity=first.severity,
        summary=first.summary,
        in_tables=is_shown,
    )


# ---- how the seconds add up ----------------------------------------------------------------------


def accounting_of(first: RankRecording, attempts: Attempts, facts: RunFacts) -> dict[str, float]:
    """`run.accounting`: seconds that add up to the run's duration."""
    if facts.begin_ns is None or facts.end_ns is None:
        return {}
    begin_ns, end_ns = first.begin_ns or 0, first.end_ns or 0
    steps_s = step_ns(first) / 1e9
    earlier = [r.begin_ns for attempt in attempts.before for r in attempt.values() if r.node == first.node]
    first_ns = min((at for at in earlier if at is not None), default=begin_ns)
    before = _outside(first, facts.begin_ns, first_ns, "before")
    after = _outside(first, end_ns, facts.end_ns, "after")
    return {
        "startup_s": (first_ns - facts.begin_ns) / 1e9 - sum(before.values()),
        **before,
        **({"earlier_attempts_s": (begin_ns - first_ns) / 1e9} if attempts.before else {}),
        "steps_s": steps_s,
        "dropped_steps_s": (end_ns - begin_ns) / 1e9 - steps_s,
        **after,
        "after_last_step_s": (facts.end_ns - end_ns) / 1e9 - sum(after.values()),
    }


def around_steps(attempts: Attempts, facts: RunFacts) -> tuple[w.OutsideSteps, w.OutsideSteps]:
    """What a completed run spent before its first and after its last step, without validation and
    checkpoints."""
    first = next((r for r in attempts.chosen.values() if len(r.rows)), None)
    parts = accounting_of(first, attempts, facts) if first is not None else {}
    if facts.status != "completed" or not parts:
        return w.NO_TIME, w.NO_TIME
    whole_s = max(sum(parts.values()), 1e-9)
    start_s, end_s = parts["startup_s"], parts["after_last_step_s"]
    return w.OutsideSteps(start_s, start_s / whole_s), w.OutsideSteps(end_s, end_s / whole_s)


def _outside(first: RankRecording, begin_ns: int, end_ns: int, when: str) -> dict[str, float]:
    """Seconds of validation and checkpoints between these times, never more than there are."""
    found, left_ns = {}, max(0, end_ns - begin_ns)
    for kind in OUTSIDE_STEPS:
        spans = ((e.time_ns, e.time_ns + e.duration_ns) for e in first.events if e.kind == kind)
        took_ns = sum(max(0, min(end, end_ns) - max(begin, begin_ns)) for begin, end in spans)
        took_ns = min(took_ns, left_ns)
        if took_ns:
            found[f"{kind}_{when}_s"] = took_ns / 1e9
            left_ns -= took_ns
    return found


def parts_of(
    accounting: dict[str, float], first: RankRecording, warmup: int, duration_s: float
) -> list[RunPart]:
    """`run.parts`: the same seconds in their order, with shares; warm-up steps apart from the others."""
    rows = (first.head if first.head is not None else first.rows)[:warmup]
    warmup_ns = int((rows["end_ns"] - rows["begin_ns"]).sum())
    did = fmt.steps(warmup)
    if first.head is None and warmup_ns:
        spent = {w.LABELS[key]: int(rows[key].sum()) for key in w.PHASE_KEYS}
        most = sorted(spent, key=lambda name: -spent[name])[:MOST_NAMED]
        notable = [name for name in most if spent[name] >= NOTABLE_SHARE * warmup_ns]
        named = [f"{name} {fmt.seconds(spent[name] / 1e9)}" for name in notable]
        did = ": ".join([did, ", ".join(named)]) if named else did
    steps_s = accounting["steps_s"] - warmup_ns / 1e9
    seconds = accounting | {"warmup_s": warmup_ns / 1e9, "steps_s": steps_s}
    about = {"warmup_s": did, "steps_s": fmt.steps(steps_of(first) - warmup)}
    return [
        RunPart(label, seconds[key], seconds[key] / duration_s, about.get(key, usual))
        for key, (label, usual) in PARTS.items()
        if key in ALWAYS or seconds.get(key, 0.0) >= LEAST_SHARE * duration_s
    ]


# ---- events --------------------------------------------------------------------------------------


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
