"""Step-time diagnoses of the typical rank: where the time of a step goes."""

from dataclasses import replace
from typing import Final

import numpy as np

from traceml.analyze import window as w
from traceml.analyze.rules.input_advice import advise, workers
from traceml.analyze.rules.rule import MOST_SHARE, Measured, Rule, judged_share
from traceml.analyze.views import TimeView
from traceml.schema import fmt

COMPUTE_SHARE: Final = 0.90


def _bound(view: TimeView, values: w.Floats, phase: str, burst: int = 1) -> Measured:
    share = view.window.median_share(values)
    typical = view.window.typical_share(values, burst)
    cost_ms = view.window.mean_ms(values)
    return Measured(
        level=judged_share(share, typical),
        score=share,
        phase=phase,
        evidence={"share": share, "typical_share": typical, "step_ms": view.step_ms},
        cost_ms=cost_ms,
    )


def input_bound(view: TimeView) -> Measured:
    """The training thread waits for its next batch for a large share of the step."""
    count, inferred = view.window.workers, view.window.input_inferred
    found = _bound(view, view.window.of(w.INPUT), w.INPUT, max(1, count))
    how = f", {workers(count, 'loader worker')}" if count else ""
    if inferred:
        how = ", inferred: no loader was seen, so the time before the forward pass counts as input"
    advice = advise(view, found.cost_ms or 0.0)
    found.words.update(how=how, advice=advice.text)
    found.evidence.update(
        inferred=inferred, workers=count, saves_ms=advice.saves_ms, promised=advice.promised
    )
    return found


def h2d_bound(view: TimeView) -> Measured | None:
    """Copies to the device take a large share of the step. Judged on the device clock only."""
    if view.window.clock != "device":
        return None
    return _bound(view, view.window.of(w.H2D), w.H2D)


def wait_heavy(view: TimeView) -> Measured:
    """A large share of the step is neither input nor model work: checkpoints, validation, logging."""
    window = view.window
    values = view.net_wait + view.outside_work
    parts = {
        **{_OUTSIDE_WORDS.get(k, w.LABELS[k]): (k, view.cost_of(k)) for k in w.OUTSIDE},
        "garbage collection": (w.WAIT, window.gc_wait_ns),
        **{f"phase {k[5:]!r}": (k, view.cost_of(k)) for k in window.user_keys},
        UNATTRIBUTED: (w.WAIT, np.maximum(view.net_wait - window.gc_wait_ns, 0.0)),
    }
    whole = max(float(values.sum()), 1.0)
    shares = {name: min(1.0, float(part.sum()) / whole) for name, (_, part) in parts.items()}
    name = max(shares, key=lambda n: shares[n])
    phase = parts[name][0]
    # Outside work is deliberate, not jitter, so all of it counts; of the rest only what typical steps show.
    found = _bound(view, values, phase)
    steady = window.median_share(view.outside_work) + _bound(view, view.net_wait, w.WAIT).level
    alone = view.only_rank_in(phase) if phase != w.WAIT else None
    advice = _WAIT_ADVICE.get(name, "look at what that phase does on the training thread")
    if name == UNATTRIBUTED:
        advice = _UNATTRIBUTED_ADVICE[_activity(view)]
    but = "" if window.measured(w.OPTIMIZER) else " that was seen (the optimizer was not)"
    found.words.update(part=_parts_in_words(view, shares, name, alone), advice=advice, but=but)
    found.evidence.update(largest_part=name, busy_wait_share=view.busy_wait_share)
    return replace(found, level=max(found.level, steady), ranks=() if alone is None else (alone,))


def _parts_in_words(view: TimeView, shares: dict[str, float], largest: str, alone: int | None) -> str:
    """The largest part first, then every other part worth a word; unattributed time with its place."""
    first = f"{largest} on r{alone}" if alone is not None else largest
    others = [
        n for n in sorted(shares, key=lambda n: -shares[n]) if n != largest and shares[n] >= WORTH_A_WORD
    ]
    words = [] if largest == UNATTRIBUTED else [f"{first} is {fmt.share(shares[largest])} of it"]
    words += [f"{fmt.share(shares[n])} {n}" for n in others if n != UNATTRIBUTED]
    if largest != UNATTRIBUTED and UNATTRIBUTED not in others:
        return ", ".join(words)
    where, share = view.main_wait_place
    rest = f"{fmt.share(share)} of it is {where}{_ACTIVITY_WORDS[_activity(view)]}"
    if not words:
        return f"it is unattributed; {rest}"
    unattributed = f"{fmt.share(shares[UNATTRIBUTED])} is unattributed, {rest}"
    return "; ".join([", ".join(words), unattributed] if largest != UNATTRIBUTED else [unattributed, *words])


def _activity(view: TimeView) -> str:
    """What the training thread did while it waited, if that is certain. Waiting for a device keeps the thread
    running; on a busy machine, a thread that wants to run may not."""
    share, window = view.busy_wait_share, view.window
    if window.clock != "device" and share >= MOSTLY_BUSY:
        return "busy"
    return "idle" if share <= MOSTLY_IDLE and window.cpu_delay_share < NOTABLE_DELAY else ""


UNATTRIBUTED: Final = "unattributed"
WORTH_A_WORD: Final = 0.1
MOSTLY_BUSY, MOSTLY_IDLE, NOTABLE_DELAY = 0.7, 0.3, 0.05
_OUTSIDE_WORDS: Final = {w.CHECKPOINT: "checkpoint writing"}
_ACTIVITY_WORDS: Final = {
    "busy": ", where the training thread was busy",
    "idle": ", where the training thread was idle",
    "": "",
}
_UNATTRIBUTED_ADVICE: Final = {
    "busy": "profile the Python or tensor code at that place in the loop, and make it cheaper",
    "idle": "look for sleeps, blocking writes, locks and network calls at that place in the loop",
    "": "look for logging, .item() calls, sleeps and Python work at that place in the loop",
}
_WAIT_ADVICE: Final = {
    "checkpoint writing": "save less often, or asynchronously (torch.distributed.checkpoint.async_save)",
    "validation": "validate less often or on fewer batches",
    "garbage collection": "collect less often (gc.freeze() after setup, or gc.disable() and collect rarely)",
}


def compute_bound(view: TimeView) -> Measured | None:
    """The model fills the step: forward, backward, optimizer, and forward passes without gradients."""
    window = view.window
    share = window.median_share(window.of(*w.MODEL))
    shares = {key: window.median_share(window.of(key)) for key in w.MODEL}
    largest = max(shares, key=lambda key: shares[key])
    if share < COMPUTE_SHARE and shares[largest] < MOST_SHARE:
        return None
    return Measured(
        level=share,
        score=share,
        words={
            "step": fmt.ms(view.step_ms),
            "what": w.LABELS[largest],
            "how": _COMPUTE_ADVICE.get(largest, "batch size, precision, kernels"),
        },
        phase=largest,
        evidence={"share": share, "largest": largest, "largest_ms": window.mean_ms(window.of(largest))},
    )


_COMPUTE_ADVICE: Final = {
    w.OPTIMIZER: "fused=True or foreach=True, fewer steps with larger batches",
    w.NO_GRAD: "keep what a teacher or reference model computes, run it in lower precision, batch rollouts",
}
RULES: Final[tuple[Rule[TimeView], ...]] = (
    Rule(
        "INPUT_BOUND",
        input_bound,
        "Waiting for input takes {cost_ms} of a {step_ms} step ({share}{how}).",
        "Inspect the input path: {advice}.",
        status="INPUT-BOUND",
        needs=(w.INPUT,),
    ),
    Rule(
        "H2D_BOUND",
        h2d_bound,
        "Copying data to the device takes {cost_ms} of a {step_ms} step ({share}).",
        "Try pinned memory in the loader and copies with non_blocking=True, or copy fewer bytes.",
        status="H2D-BOUND",
    ),
    Rule(
        "WAIT_HEAVY",
        wait_heavy,
        "{cost_ms} of a {step_ms} step ({share}) is neither input nor model work{but}: {part}.",
        "Inspect that time: {advice}.",
        status="WAIT-HEAVY",
        needs=(w.FORWARD, w.BACKWARD),
    ),
    Rule(
        "COMPUTE_BOUND",
        compute_bound,
        "Model work is {share} of a {step} step; {what} is the largest part ({largest_ms}).",
        "Try to make {what} cheaper: {how}. An operator-level profiler shows where it spends its time.",
        thresholds=None,
        status="COMPUTE-BOUND",
        needs=w.COMPUTE,
        only_if_nothing_else=True,
    ),
)
