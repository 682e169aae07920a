"""What a reader should know about a run besides its numbers, one sentence each."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from traceml.analyze import endings, totals
from traceml.analyze.attempts import Attempts
from traceml.analyze.window import LABELS, PHASE_KEYS, SYNC, Window
from traceml.schema import WATCH_ONLY, fmt
from traceml.schema.recorded import RankRecording, RecordedEvent, RunFacts, RunRecording
from traceml.schema.summary import Attempt

NOTABLE_CPU_DELAY: Final = 0.05
NOTABLE_WAIT: Final = 0.1
"""Of the time from the first to the last step."""
MOST_UNEVEN: Final = 1
"""A rank that was killed may be one step behind the others."""
MOST_LISTED: Final = 8
SAME_STALL_NS: Final = 1_000_000_000

Ranks = dict[int, RankRecording]


def notes_of(
    recording: RunRecording, facts: RunFacts, attempts: Attempts, window: Window, earlier: Sequence[Attempt]
) -> list[str]:
    """`summary.run.notes`."""
    ranks = attempts.chosen
    notes = [*recording.problems, *facts.notes]
    notes += _about_the_window(window)
    notes += _from_capture(ranks, recording.early_events)
    notes += _not_measured(ranks)
    notes += _without_c_switch(ranks, window)
    if facts.status != "running":
        notes += _uneven(ranks) + _late_in_warmup(ranks, len(window.warmup))
    notes += _absent(ranks, window) if facts.mode != WATCH_ONLY else []
    notes += _stalled(ranks, recording.monitor_events)
    notes += _doubles(attempts)
    return notes + _restarts(earlier, len(attempts.before) + 1)


def _from_capture(ranks: Ranks, early: Sequence[RecordedEvent]) -> list[str]:
    """What the training processes say about their own recording."""
    failed = [(rank, e) for rank, r in ranks.items() for e in r.events if e.kind == "capture_failed"]
    notes = [f"On r{rank}, at step {e.step}: {e.message}." for rank, e in failed[:MOST_LISTED]]
    before = [e for e in early if e.kind == "capture_failed"]
    notes += [f"In process {e.pid}, before its first step: {e.message}." for e in before[:MOST_LISTED]]
    lost = {rank for rank, r in ranks.items() if r.lost_rows}
    if lost - {rank for rank, _ in failed}:
        notes.append("The disk was full: steps after that point are missing.")
    elif lost:
        notes.append("Recording stopped there: later steps are missing.")
    said = (e.message for r in ranks.values() for e in r.events if e.kind == "optimizers" and e.message)
    notes += list(said)[:1]
    if steps := max((r.other_steps for r in ranks.values()), default=0):
        notes.append(f"{fmt.count(steps)} optimizer steps ran on other threads. They are counted, not timed.")
    return notes


def _without_c_switch(ranks: Ranks, window: Window) -> list[str]:
    """That recording could be cheaper, with what it cost the ranks without the C switch in this run."""
    without = [rank for rank, r in ranks.items() if r.header.get("overhead", {}).get("in_c") is False]
    if not without:
        return []
    where = "" if len(without) == len(ranks) else f" on {_first_of([f'r{rank}' for rank in without])}"
    cost = ""
    rows = [row for row, rank in enumerate(window.ranks) if rank in without]
    if rows and window.count:
        own_ms = float(window.overhead_ns[rows].mean()) / 1e6
        cost = f", at about {fmt.ms(own_ms)} per step"
    return [
        f"The C phase switch is not in use{where}: the slower Python version recorded this run{cost}. "
        "TraceML's wheels for Linux include the C version, except for free-threaded Python."
    ]


def _not_measured(ranks: Ranks) -> list[str]:
    """That this version of torch lacks something that capture needs."""
    missing = sorted({str(name) for r in ranks.values() for name in r.header.get("missing") or ()})
    if not missing:
        return []
    return [f"Not measured, because the installed version does not have it: {_first_of(missing)}."]


def _about_the_window(window: Window) -> list[str]:
    notes = []
    typical_ms = float(np.median(window.typical_ms["step_ms"])) if window.count else 0.0
    if window.count and window.warmup and window.warmup[0] > 2 * typical_ms:
        together = f", {fmt.ms(sum(window.warmup))} together" if len(window.warmup) > 1 else ""
        notes.append(
            f"Left out as warm-up: {fmt.steps(len(window.warmup))}{together}. The first step took "
            f"{fmt.ms(window.warmup[0])}, a typical step takes {fmt.ms(typical_ms)}."
        )
    if window.cpu_delay_share >= NOTABLE_CPU_DELAY:
        notes.append(
            f"The training threads waited for a CPU core {fmt.share(window.cpu_delay_share)} of the time"
            + (f": {rival}." if (rival := window.core_use.rival) else _BECAUSE_OF_OTHERS)
        )
    if window.steps_inferred:
        notes.append(
            "Steps are inferred, because no optimizer of torch.optim was seen to step. A step ends at the "
            "next batch or forward pass after a backward pass; optimizer time is not measured."
        )
    if window.input_inferred:
        notes.append("Input time is inferred, because no data loader was seen.")
    if window.earlier_steps:
        notes.append(
            f"The diagnosis covers the newest {fmt.count(window.count)} steps; "
            f"{fmt.count(window.earlier_steps)} earlier steps count only in the run's totals."
        )
    return notes


def _late_in_warmup(ranks: Ranks, count: int) -> list[str]:
    """That the others waited long for one rank in the first steps, which no diagnosis looks at."""
    rows = {rank: r.rows[:count] for rank, r in ranks.items() if r.earlier is None and len(r.rows) >= count}
    if not count or len(rows) < 2:
        return []
    waits = {rank: int(first["sync"].sum()) for rank, first in rows.items()}
    last = min(waits, key=lambda rank: waits[rank])
    waited_ns = max(waits.values()) - waits[last]
    whole_ns = max((r.end_ns or 0) - (r.begin_ns or 0) for r in ranks.values())
    if waited_ns < NOTABLE_WAIT * whole_ns:
        return []
    own = {LABELS[key]: int(rows[last][key].sum()) for key in PHASE_KEYS}
    took_ns = int((rows[last]["end_ns"] - rows[last]["begin_ns"]).sum())
    own["unattributed work"] = took_ns - sum(own.values())
    most = max(own, key=lambda name: own[name])
    spent = f"spent {fmt.seconds(own[most] / 1e9)} in {most}"
    why = spent if own[most] >= waited_ns / 2 else "began to train later than they did"
    return [f"During warm-up other ranks waited {fmt.seconds(waited_ns / 1e9)} for r{last}, which {why}."]


def _absent(ranks: Ranks, window: Window) -> list[str]:
    """Expected ranks that are not in these numbers."""
    expected = max(((r.identity.world_size or 1) for r in ranks.values()), default=0)
    missing = [f"r{rank}" for rank in range(expected) if rank not in ranks]
    steps = {f"r{r}": totals.steps_of(ranks[r]) for r in window.ranks_without_steps if r in ranks}
    none, short = [r for r in steps if not steps[r]], [r for r in steps if steps[r]]
    notes = []
    if none:
        notes.append(f"No step was completed by {_first_of(none)}.")
    if short:
        most = fmt.count(max(steps.values()))
        notes.append(f"Left out because of too few steps (at most {most}): {_first_of(short)}.")
    if missing:
        notes.append(f"Nothing was recorded for {_first_of(missing)} ({expected} ranks were expected).")
    return notes


def _first_of(words: Sequence[str]) -> str:
    more = f" and {len(words) - MOST_LISTED} more" if len(words) > MOST_LISTED else ""
    return ", ".join(words[:MOST_LISTED]) + more


def _stalled(ranks: Ranks, noticed: Sequence[RecordedEvent]) -> list[str]:
    """The last time ranks stalled and where each of them was; those that did not wait for others first."""
    stalls = [e for e in noticed if e.kind == "stall" and e.rank in ranks]
    if not stalls:
        return []
    last = max(endings.when(e) for e in stalls)
    then = [e for e in stalls if last - endings.when(e) < SAME_STALL_NS]
    then.sort(key=lambda e: (e.phase == SYNC, e.rank))
    seconds = max(e.duration_ns for e in then) / 1e9
    places = [
        f"r{e.rank} in {e.phase} " + (f"after step {e.step}" if e.step else "of its first step") for e in then
    ]
    all_stalled = all(e.together for e in then)
    who = "No rank completed a step" if all_stalled else "While other ranks continued, no step was completed"
    return [f"{who} for at least {seconds:.0f} s: {_first_of(places)}."]


def _uneven(ranks: Ranks) -> list[str]:
    counts = sorted((totals.steps_of(r), rank) for rank, r in ranks.items() if len(r.rows))
    if not counts or counts[-1][0] - counts[0][0] <= MOST_UNEVEN:
        return []
    (few, slow), (many, fast) = counts[0], counts[-1]
    return [
        f"The ranks completed different numbers of steps: r{slow} {fmt.count(few)}, r{fast} "
        f"{fmt.count(many)}. Only steps that all of them completed are analyzed."
    ]


def _doubles(attempts: Attempts) -> list[str]:
    """That several processes trained as the same rank at the same time."""
    found = []
    for rank in sorted({r.rank for r in attempts.doubles})[:MOST_LISTED]:
        shown, others = attempts.chosen[rank], sum(r.rank == rank for r in attempts.doubles)
        who = f"as r{rank}" if (shown.identity.world_size or 1) > 1 else "without ranks"
        found.append(
            f"{others + 1} processes trained {who} at the same time. The tables are about pid {shown.pid}; "
            "the list of trainings has all of them."
        )
    return found


def _restarts(earlier: Sequence[Attempt], times: int) -> list[str]:
    if not earlier:
        return []
    last = earlier[-1]
    why = f": {last.reason}" if last.reason else ""
    end = "" if why.endswith((".", "!", "?")) else "."
    return [
        f"The same ranks ran {fmt.count(times)} times; these numbers cover the last time only. The time "
        f"before, they completed {fmt.steps(last.steps)}{why}{end}"
    ]


_BECAUSE_OF_OTHERS: Final = ", because of other work on this machine or its host, or a CPU quota."
