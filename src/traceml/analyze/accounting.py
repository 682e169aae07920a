"""How the run's seconds add up on its first rank: start-up, steps, named gaps between them, the end."""

from typing import Final

from traceml.analyze import totals
from traceml.analyze.attempts import Attempts
from traceml.analyze.window import CHECKPOINT, LABELS, PHASE_KEYS, VALIDATION, Window
from traceml.schema import fmt
from traceml.schema.recorded import RankRecording, RunFacts
from traceml.schema.summary import RunPart

OUTSIDE_STEPS: Final = (VALIDATION, CHECKPOINT)
"""What a rank reports as events when it happens before its first or after its last step."""
NOTABLE_SHARE: Final = 0.1
MOST_NAMED: Final = 2
LEAST_SHARE: Final = 0.0005
"""Parts that would be shown as 0.0 % of the run are left out."""
_LABELS: Final = {
    "startup_s": "Start-up",
    **{f"{kind}_before_s": f"{LABELS[kind].capitalize()} before" for kind in OUTSIDE_STEPS},
    "earlier_attempts_s": "Earlier attempts",
    "warmup_s": "Warm-up steps",
    "steps_s": "Steps",
    "dropped_steps_s": "Dropped steps",
    **{f"{kind}_after_s": f"{LABELS[kind].capitalize()} after" for kind in OUTSIDE_STEPS},
    "after_last_step_s": "End",
}
_ALWAYS: Final = ("startup_s", "steps_s", "after_last_step_s")
_ABOUT: Final = {
    "startup_s": "before the first step",
    "dropped_steps_s": "between steps: not completed",
    "after_last_step_s": "after the last step",
}


def accounting_of(attempts: Attempts, facts: RunFacts) -> dict[str, float | None]:
    """`run.accounting`: seconds that add up to the run's duration."""
    first = _first(attempts)
    if first is None or facts.begin_ns is None or facts.end_ns is None:
        return {}
    begin_ns, end_ns = first.begin_ns or 0, first.end_ns or 0
    steps_s = totals.step_ns(first) / 1e9
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


def _first(attempts: Attempts) -> RankRecording | None:
    return next((r for r in attempts.chosen.values() if len(r.rows)), None)


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
    accounting: dict[str, float | None], attempts: Attempts, window: Window, duration_s: float | None
) -> list[RunPart]:
    """`run.parts`: the same seconds in their order, with shares; warm-up steps apart from the others."""
    first = _first(attempts)
    if first is None or not duration_s:
        return []
    seconds = {key: value or 0.0 for key, value in accounting.items()}
    warmup, warmup_s = _warmup(first, len(window.warmup))
    about = {
        **_ABOUT,
        "warmup_s": warmup,
        "steps_s": _steps(totals.steps_of(first) - len(window.warmup)),
    }
    seconds |= {"warmup_s": warmup_s, "steps_s": seconds["steps_s"] - warmup_s}
    return [
        RunPart(label, seconds[key], seconds[key] / duration_s, about.get(key, ""))
        for key, label in _LABELS.items()
        if key in _ALWAYS or seconds.get(key, 0.0) >= LEAST_SHARE * duration_s
    ]


def _warmup(first: RankRecording, count: int) -> tuple[str, float]:
    """(how many warm-up steps and what they did, their seconds)."""
    rows = (first.head if first.head is not None else first.rows)[:count]
    took_ns = int((rows["end_ns"] - rows["begin_ns"]).sum())
    told = _steps(count)
    if first.head is None and took_ns:
        spent = {LABELS[key]: int(rows[key].sum()) for key in PHASE_KEYS}
        parts = [
            f"{name} {fmt.seconds(ns / 1e9)}"
            for name, ns in sorted(spent.items(), key=lambda item: -item[1])
            if ns >= NOTABLE_SHARE * took_ns
        ][:MOST_NAMED]
        told = ": ".join([told, ", ".join(parts)]) if parts else told
    return told, took_ns / 1e9


def _steps(count: int) -> str:
    return f"{fmt.count(count)} step{'s' * (count != 1)}"
