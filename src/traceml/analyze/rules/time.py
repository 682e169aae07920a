"""Step-time diagnoses of the typical rank: where the time of a step goes."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from traceml.analyze import window as w
from traceml.analyze.rules.input_advice import advise, workers
from traceml.analyze.rules.rule import Measured, Rule, judged_share
from traceml.analyze.views import TimeView
from traceml.schema import catalog as c
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
        "": (w.WAIT, np.maximum(view.net_wait - window.gc_wait_ns, 0.0)),
    }
    name, (phase, largest) = max(parts.items(), key=lambda item: float(item[1][1].sum()))
    # Outside work is deliberate, not jitter, so all of it counts; of the rest only what typical steps show.
    found = _bound(view, values, phase)
    steady = window.median_share(view.outside_work) + _bound(view, view.net_wait, w.WAIT).level
    alone = view.only_rank_in(phase) if phase != w.WAIT else None
    if name:
        whose = f"{name} on r{alone}" if alone is not None else name
        share = min(1.0, float(largest.sum()) / max(float(values.sum()), 1.0))
        part = f"{whose} is {fmt.share(share)} of it"
    else:
        # The place in the step where the median rank spends most of its unattributed time.
        totals = window.wait_places.sum(axis=1)
        totals = totals[np.argsort(totals.sum(axis=1))[(len(totals) - 1) // 2]]
        at = int(np.argmax(totals))
        share = float(totals[at] / max(totals.sum(), 1.0))
        part = f"it is unattributed; {fmt.share(share)} of it is {c.WAIT_PLACES[at].where}"
    advice = _WAIT_ADVICE.get(name, "look at what that phase does on the training thread")
    found.words.update(part=part, advice=advice)
    found.evidence.update(largest_part=name or "unattributed")
    return replace(found, level=max(found.level, steady), ranks=() if alone is None else (alone,))


_OUTSIDE_WORDS: Final = {w.CHECKPOINT: "checkpoint writing"}
_WAIT_ADVICE: Final = {
    "checkpoint writing": "save less often, or asynchronously (torch.distributed.checkpoint.async_save)",
    "validation": "validate less often or on fewer batches",
    "garbage collection": "collect less often (gc.freeze() after setup, or gc.disable() and collect rarely)",
    "": "look for logging, .item() calls, sleeps and Python work at that place in the loop",
}


def compute_bound(view: TimeView) -> Measured | None:
    """Forward, backward and optimizer fill the step: the model itself is the cost."""
    window = view.window
    share = window.median_share(window.of(*w.COMPUTE))
    if share < COMPUTE_SHARE:
        return None
    largest = max(w.COMPUTE, key=lambda k: window.median_share(window.of(k)))
    return Measured(
        level=share,
        score=share,
        words={"step": fmt.ms(view.step_ms)},
        phase=largest,
        evidence={"share": share, "largest": largest, "largest_ms": window.mean_ms(window.of(largest))},
    )


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
        "{cost_ms} of a {step_ms} step ({share}) is neither input nor model work: {part}.",
        "Inspect that time: {advice}.",
        status="WAIT-HEAVY",
        needs=w.COMPUTE,
    ),
    Rule(
        "COMPUTE_BOUND",
        compute_bound,
        "Model work is {share} of a {step} step; {largest} is the largest part ({largest_ms}).",
        "Optimize {largest}: batch size, precision, kernels. Then use an operator-level profiler.",
        thresholds=None,
        status="COMPUTE-BOUND",
        only_if_nothing_else=True,
    ),
)
