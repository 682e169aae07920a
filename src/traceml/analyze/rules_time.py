"""Step-time diagnoses of the typical rank: where a step's time goes, and whether it stays there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from traceml.analyze.rule import CRIT_SHARE, EXPLAINED, Measured, Rule, typical_level
from traceml.analyze.shape import Shift, find_shift
from traceml.analyze.window import (
    BACKWARD,
    CHECKPOINT,
    COMPUTE,
    FORWARD,
    H2D,
    INPUT,
    LABELS,
    OPTIMIZER,
    SYNC,
    VALIDATION,
    WAIT,
    Floats,
    Window,
    median_of_ranks,
)
from traceml.schema import catalog as c
from traceml.schema import fmt

COMPUTE_SHARE: Final = 0.90


@dataclass(frozen=True)
class TimeView:
    """The window and what several rules need of it."""

    window: Window

    @cached_property
    def step_ms(self) -> float:
        return self.window.mean_ms(self.window.judged_ns)

    @cached_property
    def outside(self) -> Floats:
        """Deliberate work outside the training step proper: validation, checkpoints, user phases."""
        return self.paid(VALIDATION, CHECKPOINT, *self.window.user_keys)

    def paid(self, *keys: str) -> Floats:
        """What these phases cost each rank: its own time, and its waiting for a rank that does more of it."""
        mine = self.window.of(*keys)
        if len(self.window.ranks) < 2 or not mine.any():
            return mine
        paid: Floats = mine + np.minimum(self.window.of(SYNC), mine.max(axis=0) - mine)
        return paid

    def sole_rank(self, key: str) -> int | None:
        """The rank that does nearly all of this while the others wait, if there is one."""
        totals = self.window.of(key).sum(axis=1)
        at = int(np.argmax(totals))
        alone = len(totals) > 1 and totals[at] >= EXPLAINED * totals.sum() > 0
        return self.window.ranks[at] if alone else None

    @cached_property
    def wait(self) -> Floats:
        """Wait without our own cost, which lands there for the most part."""
        wait: Floats = np.maximum(self.window.of(WAIT) - self.window.own_ns, 0.0)
        return wait

    @cached_property
    def pace(self) -> Floats:
        """One series for the run: the median rank's step time without deliberate outside work."""
        return median_of_ranks(self.window.judged_ns - self.outside)

    @cached_property
    def shift(self) -> Shift | None:
        return find_shift(self.pace)

    @cached_property
    def level_pace(self) -> Floats:
        """`pace` with a lasting shift taken out, so that what is left is jitter."""
        if self.shift is None:
            return self.pace
        level: Floats = self.pace.copy()
        level[self.shift.at :] *= self.shift.before / self.shift.after
        return level


def _bound(view: TimeView, values: Floats, phase: str, burst: int = 1) -> Measured:
    window = view.window
    share = window.median_share(values)
    typical = window.typical_share(values, burst)
    cost_ms = window.mean_ms(values)
    return Measured(
        level=typical_level(share, typical),
        score=share,
        words={
            "cost": fmt.ms(cost_ms),
            "share": fmt.share(share),
            "step": fmt.ms(view.step_ms),
        },
        phase=phase,
        evidence={"share": share, "typical_share": typical, "step_ms": view.step_ms},
        cost_ms=cost_ms,
    )


def input_bound(view: TimeView) -> Measured:
    """The training thread waits for its next batch for a large share of the step."""
    window = view.window
    found = _bound(view, window.of(INPUT), INPUT, max(1, window.workers))
    if window.input_inferred:
        how = " (inferred: no loader was seen, so the gap before the forward pass counts as input)"
    else:
        how = f" (loader workers: {window.workers})" if window.workers else ""
    advice = (
        f"the loader has {window.workers} workers: speed up the dataset's work itself, or add workers"
        if window.workers
        else "load batches in the background (DataLoader with num_workers of 2 or more)"
    )
    found.words.update(how=how, advice=advice)
    found.evidence.update(inferred=window.input_inferred, workers=window.workers)
    return found


def h2d_bound(view: TimeView) -> Measured | None:
    """Copies to the device take a large share of the step. Judged on the device's clock only."""
    if view.window.clock != "device":
        return None
    return _bound(view, view.window.of(H2D), H2D)


def wait_heavy(view: TimeView) -> Measured:
    """A large share of the step is neither input nor model work: checkpoints, validation, logging."""
    window = view.window
    values = view.wait + view.outside
    parts = {
        "checkpoint writing": (CHECKPOINT, view.paid(CHECKPOINT)),
        "validation": (VALIDATION, view.paid(VALIDATION)),
        "garbage collection": (WAIT, window.gc_wait_ns),
        **{f"phase {k[5:]!r}": (k, view.paid(k)) for k in window.user_keys},
        "": (WAIT, np.maximum(view.wait - window.gc_wait_ns, 0.0)),
    }
    name, (phase, largest) = max(parts.items(), key=lambda item: float(item[1][1].sum()))
    found = _bound(view, values, phase)
    # Done on purpose, every so many steps: that is no jitter. Of the rest only what the typical step shows.
    steady = window.median_share(view.outside) + _bound(view, view.wait, WAIT).level
    found = replace(found, level=max(found.level, steady))
    total = max(float(values.sum()), 1.0)
    if name:
        alone = view.sole_rank(phase) if phase != WAIT else None
        whose = f"{name} on r{alone}" if alone is not None else name
        text = f"{whose} is {fmt.share(min(1.0, float(largest.sum()) / total))} of it"
        found = replace(found, ranks=(alone,) if alone is not None else ())
    else:
        place, part = _where(window)
        text = f"it is unattributed; {fmt.share(part)} of it sits {place}"
    found.words.update(part=text, advice=_WAIT_ADVICE.get(name, _WAIT_ADVICE_OTHER))
    found.evidence.update(largest_part=name or "unattributed")
    return found


_WAIT_ADVICE: Final = {
    "checkpoint writing": "save less often, or asynchronously (torch.distributed.checkpoint.async_save)",
    "validation": "validate less often or on fewer batches",
    "garbage collection": "collect less often (gc.freeze() after set-up, or gc.disable() and collect rarely)",
    "": "look at logging, .item() calls, sleeps and Python work at that place in the loop",
}
_WAIT_ADVICE_OTHER: Final = "look at what that phase does on the training thread"


def _where(window: Window) -> tuple[str, float]:
    """The place in the step that holds most of the median rank's unattributed time, and its part of it."""
    totals = window.wait_places.sum(axis=1)
    totals = totals[np.argsort(totals.sum(axis=1))[(len(totals) - 1) // 2]]
    at = int(np.argmax(totals))
    return c.WAIT_PLACES[at].where, float(totals[at] / max(totals.sum(), 1.0))


def compute_bound(view: TimeView) -> Measured | None:
    """Forward, backward and optimizer fill the step: the model itself is the cost."""
    window = view.window
    values = window.of(*COMPUTE)
    share = window.median_share(values)
    if share < COMPUTE_SHARE:
        return None
    largest = max(COMPUTE, key=lambda k: window.median_share(window.of(k)))
    part_ms = window.mean_ms(window.of(largest))
    return Measured(
        level=share,
        score=share,
        words={
            "share": fmt.share(share),
            "largest": LABELS[largest],
            "part": fmt.ms(part_ms),
            "step": fmt.ms(view.step_ms),
            "delay": fmt.share(window.cpu_delay_share),
        },
        phase=largest,
        evidence={"share": share, "largest": largest, "largest_ms": part_ms},
        action=_STARVED if window.cpu_delay_share >= CRIT_SHARE else None,
    )


_STARVED: Final = (
    "Give it cores first: it waited for one {delay} of the time (other jobs, a CPU quota). "
    "Then optimize {largest}."
)


BOUNDS: Final[tuple[Rule[TimeView], ...]] = (
    Rule(
        "INPUT_BOUND",
        "INPUT-BOUND",
        input_bound,
        "Waiting for input takes {cost} of a {step} step ({share}){how}.",
        "Inspect the input path first: {advice}.",
        needs=(INPUT,),
    ),
    Rule(
        "H2D_BOUND",
        "H2D-BOUND",
        h2d_bound,
        "Copying data to the device takes {cost} of a {step} step ({share}).",
        "Pin memory in the loader and copy with non_blocking=True; move fewer bytes.",
    ),
    Rule(
        "WAIT_HEAVY",
        "WAIT-HEAVY",
        wait_heavy,
        "{cost} of a {step} step ({share}) is neither input nor model work: {part}.",
        "Inspect that time: {advice}.",
        needs=(FORWARD, BACKWARD, OPTIMIZER),
    ),
)
COMPUTE_RULE: Final[Rule[TimeView]] = Rule(
    "COMPUTE_BOUND",
    "COMPUTE-BOUND",
    compute_bound,
    "Model work is {share} of a {step} step; {largest} is the largest part ({part}).",
    "Optimize {largest}: batch size, precision, kernels; then use an operator-level profiler.",
    warn=None,
)
