"""What a reader should know about a run besides its numbers, one sentence each."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

import numpy as np

from traceml.analyze import endings
from traceml.analyze.recordings import Attempts, Ranks, absent_ranks, expected_ranks, listed, steps_of
from traceml.analyze.rules.rule import MOST_SHARE
from traceml.analyze.window import LABELS, NO_GRAD, OPTIMIZER, PHASE_KEYS, SYNC, Window
from traceml.schema import WATCH_ONLY, fmt
from traceml.schema.recorded import RecordedEvent, RunFacts, RunRecording
from traceml.schema.summary import Attempt

NOTABLE_CPU_DELAY: Final = 0.05
NOTABLE_WAIT: Final = 0.1
"""Of the time from the first to the last step."""
MOST_UNEVEN: Final = 1
"""A rank that was killed may be one step behind the others."""
MOST_LISTED: Final = 8
SAME_STALL_NS: Final = 1_000_000_000


def notes_of(
    recording: RunRecording, facts: RunFacts, attempts: Attempts, window: Window, earlier: Sequence[Attempt]
) -> list[str]:
    """`summary.run.notes`."""
    ranks = attempts.chosen
    is_over = facts.status != "running"
    return [
        *recording.problems,
        *facts.notes,
        *_about_the_window(window),
        *_from_capture(ranks, recording.early_events),
        *_about_versions(ranks, window),
        *(_uneven(ranks) if is_over else ()),
        *(_late_in_warmup(ranks, len(window.warmup)) if is_over else ()),
        *(_absent(ranks, window) if facts.mode != WATCH_ONLY else ()),
        *_stalled(ranks, recording.monitor_events),
        *_several_times(attempts, earlier),
    ]


def _from_capture(ranks: Ranks, early: Sequence[RecordedEvent]) -> Iterator[str]:
    """What the training processes say about their own recording."""
    failed = [(rank, e) for rank, r in ranks.items() for e in r.events if e.kind == "capture_failed"]
    yield from (f"On r{rank}, at step {e.step}: {e.message}." for rank, e in failed[:MOST_LISTED])
    before = [e for e in early if e.kind == "capture_failed"]
    yield from (f"In process {e.pid}, before its first step: {e.message}." for e in before[:MOST_LISTED])
    lost = {rank for rank, r in ranks.items() if r.lost_rows}
    if lost - {rank for rank, _ in failed}:
        yield "The disk was full: steps after that point are missing."
    elif lost:
        yield "Recording stopped there: later steps are missing."
    said = (e.message for r in ranks.values() for e in r.events if e.kind == "optimizers" and e.message)
    yield from islice(said, 1)
    if steps := max((r.other_steps for r in ranks.values()), default=0):
        yield f"{fmt.count(steps)} optimizer steps ran on other threads. They are counted, not timed."


def _about_versions(ranks: Ranks, window: Window) -> Iterator[str]:
    """What this version of torch lacks, and what recording cost the ranks without the C switch."""
    missing = sorted({str(name) for r in ranks.values() for name in r.header.get("missing") or ()})
    if missing:
        yield f"Not measured, because the installed version does not have it: {listed(missing, MOST_LISTED)}."
    without = [rank for rank, r in ranks.items() if r.header.get("overhead", {}).get("in_c") is False]
    if without:
        names = [f"r{rank}" for rank in without]
        where = "" if len(without) == len(ranks) else f" on {listed(names, MOST_LISTED)}"
        rows = [row for row, rank in enumerate(window.ranks) if rank in without]
        cost = ""
        if rows and window.count:
            cost = f", at about {fmt.ms(float(window.overhead_ns[rows].mean()) / 1e6)} per step"
        yield (
            f"The C phase switch is not in use{where}: the slower Python version recorded this run{cost}. "
            "TraceML's wheels for Linux include the C version, except for free-threaded Python."
        )


def _about_the_window(window: Window) -> Iterator[str]:
    typical_ms = float(np.median(window.typical_ms["step_ms"])) if window.count else 0.0
    if window.count and window.warmup and window.warmup[0] > 2 * typical_ms:
        together = f", {fmt.ms(sum(window.warmup))} together" if len(window.warmup) > 1 else ""
        yield (
            f"Left out as warm-up: {fmt.steps(len(window.warmup))}{together}. The first step took "
            f"{fmt.ms(window.warmup[0])}, a typical step takes {fmt.ms(typical_ms)}."
        )
    if window.cpu_delay_share >= NOTABLE_CPU_DELAY:
        rival = window.core_use.rival
        because = ", because of other work on this machine or its host, or a CPU quota"
        yield (
            f"The training threads waited for a CPU core {fmt.share(window.cpu_delay_share)} of the time"
            f"{f': {rival}' if rival else because}."
        )
    if window.steps_inferred:
        yield (
            "Steps are inferred, because no torch.optim optimizer was used. A step ends at the next batch or "
            "forward pass after a backward pass, or with that pass if neither is seen"
            f"{'' if window.measured(OPTIMIZER) else '; optimizer time is not measured'}."
        )
    if window.input_inferred:
        why = "another thread reads the data loader" if window.loader_on_thread else "no data loader was seen"
        yield f"Input time is inferred, because {why}: it is everything that runs {window.input_place}."
    if window.count and (share := window.median_share(window.of(NO_GRAD))) >= MOST_SHARE:
        yield (
            f"Forward passes without gradients (a teacher, target, reference or rollout model, or a metric) "
            f"take {fmt.share(share)} of a step."
        )
    if window.earlier_steps:
        yield (
            f"The diagnosis covers the newest {fmt.count(window.count)} steps; "
            f"{fmt.count(window.earlier_steps)} earlier steps count only in the run's totals."
        )


def _late_in_warmup(ranks: Ranks, count: int) -> Iterator[str]:
    """In the first steps, which no diagnosis looks at, the others waited long for one rank."""
    rows = {rank: r.rows[:count] for rank, r in ranks.items() if r.earlier is None and len(r.rows) >= count}
    if not count or len(rows) < 2:
        return
    waits = {rank: int(first["sync"].sum()) for rank, first in rows.items()}
    last = min(waits, key=lambda rank: waits[rank])
    waited_ns = max(waits.values()) - waits[last]
    if waited_ns < NOTABLE_WAIT * max((r.end_ns or 0) - (r.begin_ns or 0) for r in ranks.values()):
        return
    own = {LABELS[key]: int(rows[last][key].sum()) for key in PHASE_KEYS}
    took_ns = int((rows[last]["end_ns"] - rows[last]["begin_ns"]).sum())
    own["unattributed work"] = took_ns - sum(own.values())
    most = max(own, key=lambda name: own[name])
    spent = f"spent {fmt.seconds(own[most] / 1e9)} in {most}"
    why = spent if own[most] >= waited_ns / 2 else "began to train later than they did"
    yield f"During warm-up other ranks waited {fmt.seconds(waited_ns / 1e9)} for r{last}, which {why}."


def _absent(ranks: Ranks, window: Window) -> Iterator[str]:
    """Expected ranks that are not in these numbers."""
    steps = {f"r{r}": steps_of(ranks[r]) for r in window.ranks_without_steps if r in ranks}
    if none := [r for r in steps if not steps[r]]:
        yield f"No step was completed by {listed(none, MOST_LISTED)}."
    if short := [r for r in steps if steps[r]]:
        most = fmt.count(max(steps.values()))
        yield f"Left out because of too few steps (at most {most}): {listed(short, MOST_LISTED)}."
    if missing := [f"r{rank}" for rank in absent_ranks(ranks)]:
        expected = f"{expected_ranks(ranks)} ranks were expected"
        yield f"Nothing was recorded for {listed(missing, MOST_LISTED)} ({expected})."


def _stalled(ranks: Ranks, noticed: Sequence[RecordedEvent]) -> Iterator[str]:
    """The last stall: where each rank was, starting with ranks that did not wait for others."""
    stalls = [e for e in noticed if e.kind == "stall" and e.rank in ranks]
    if not stalls:
        return
    last = max(endings.when(e) for e in stalls)
    then = [e for e in stalls if last - endings.when(e) < SAME_STALL_NS]
    then.sort(key=lambda e: (e.phase == SYNC, e.rank))
    seconds = max(e.duration_ns for e in then) / 1e9
    places = [
        f"r{e.rank} in {e.phase} " + (f"after step {e.step}" if e.step else "of its first step") for e in then
    ]
    all_stalled = all(e.together for e in then)
    who = "No rank completed a step" if all_stalled else "While other ranks continued, no step was completed"
    yield f"{who} for at least {seconds:.0f} s: {listed(places, MOST_LISTED)}."


def _uneven(ranks: Ranks) -> Iterator[str]:
    counts = sorted((steps_of(r), rank) for rank, r in ranks.items() if len(r.rows))
    if counts and counts[-1][0] - counts[0][0] > MOST_UNEVEN:
        (few, slow), (many, fast) = counts[0], counts[-1]
        yield (
            f"The ranks completed different numbers of steps: r{slow} {fmt.count(few)}, r{fast} "
            f"{fmt.count(many)}. Only steps that all of them completed are analyzed."
        )


def _several_times(attempts: Attempts, earlier: Sequence[Attempt]) -> Iterator[str]:
    """Several processes trained as the same rank, at the same time or one after the other."""
    for rank in sorted({r.rank for r in attempts.doubles}.intersection(attempts.chosen))[:MOST_LISTED]:
        shown, others = attempts.chosen[rank], sum(r.rank == rank for r in attempts.doubles)
        who = f"as r{rank}" if (shown.identity.world_size or 1) > 1 else "without ranks"
        yield (
            f"{others + 1} processes trained {who} at the same time. The tables show pid {shown.pid}; the "
            "list of trainings has all of them."
        )
    if earlier:
        why = f": {earlier[-1].reason}" if earlier[-1].reason else ""
        end = "" if why.endswith((".", "!", "?")) else "."
        yield (
            f"The ranks were started {fmt.count(len(attempts.before) + 1)} times; these numbers cover only "
            f"the last attempt. The attempt before it completed {fmt.steps(earlier[-1].steps)}{why}{end}"
        )
