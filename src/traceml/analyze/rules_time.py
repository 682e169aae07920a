"""Step-time diagnoses of the typical rank: where a step's time goes, and whether it stays there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from traceml.analyze.rank_view import FIXED_SHARE
from traceml.analyze.rule import CRIT_SHARE, EXPLAINED, WARN_SHARE, Measured, Rule, typical_level
from traceml.analyze.shape import Shift, find_period, find_shift, slow_steps
from traceml.analyze.window import PHASE_KEYS, WAIT, Floats, Window, median_of_ranks
from traceml.schema import catalog as c
from traceml.schema import fmt

INPUT, H2D, FORWARD, BACKWARD, SYNC, OPTIMIZER, VALIDATION, CHECKPOINT = PHASE_KEYS
COMPUTE: Final = tuple(PHASE_KEYS[i] for i in c.COMPUTE_PHASES)
LABELS: Final = {p.key: p.label.lower() for p in c.PHASES} | {WAIT: "wait"}
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

    def excess(self, chosen: Any, others: Any, level: Callable[[Floats], Any]) -> dict[str, float]:
        """How much more each phase takes in the chosen steps than in the others (medians over ranks), ms.

        `level` is what a phase takes in the chosen steps: the mean of slow steps, which are slow each in its
        own way; the median after a shift, which is a shift of the typical step.
        """
        window = self.window
        typical = {k: window.across(k).median for k in (*COMPUTE, INPUT, H2D, SYNC)}
        typical[WAIT] = median_of_ranks(self.wait)
        typical["garbage collection"] = median_of_ranks(window.gc_ns)
        return {k: float(level(v[chosen]) - np.median(v[others])) / 1e6 for k, v in typical.items()}

    def late_excess(
        self, chosen: Any, others: Any, level: Callable[[Floats], Any]
    ) -> tuple[dict[str, float], tuple[int, ...]]:
        """The same of the rank that the others wait for in each of the chosen steps, and which one it is."""
        window = self.window
        own = window.step_ns - window.of(SYNC)
        last = np.argmax(own[:, chosen], axis=0)
        found = {}
        for key in (*COMPUTE, INPUT, H2D, VALIDATION, CHECKPOINT, WAIT):
            mine = window.of(key)[:, chosen][last, np.arange(len(last))]
            found[key] = float(level(mine) - np.median(window.across(key).median[others])) / 1e6
        at, times = np.unique(last, return_counts=True)
        fixed = times.max() >= FIXED_SHARE * len(last)
        return found, (window.ranks[int(at[times.argmax()])],) if fixed else ()


def _blame(
    view: TimeView, chosen: Any, others: Any, level: Callable[[Floats], Any], whole_ms: float
) -> tuple[str, float, tuple[int, ...]]:
    """The phase that explains the excess, its part of it, and the rank if it is one rank's doing."""
    name, part = _explains(view.excess(chosen, others, level), whole_ms)
    if name not in ("", SYNC) or len(view.window.ranks) < 2:
        return name, part, ()
    # The others wait: what they wait for is in the rank that comes last.
    late, ranks = view.late_excess(chosen, others, level)
    cause, share = _explains(late, whole_ms)
    return (cause, share, ranks) if cause else (name, part, ())


def _words_of(name: str, part: float, ranks: tuple[int, ...]) -> tuple[str, str]:
    """(where the excess is, the place to look at)."""
    if not name:
        return "spread over phases", "several phases"
    place = LABELS.get(name, name) + "".join(f" on r{rank}" for rank in ranks)
    return f"{fmt.share(part)} of it in {place}", place


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
    """The place in the step that holds most of the unattributed time, and its part of it."""
    totals = window.wait_places.sum(axis=(0, 1))
    at = int(np.argmax(totals))
    return c.WAIT_PLACES[at].where, float(totals[at] / max(totals.sum(), 1.0))


def jitter(view: TimeView) -> Measured | None:
    """The typical step is healthy, but slow steps in between cost a good part of all time."""
    pace = view.level_pace
    slow = slow_steps(pace)
    if not len(slow):
        return None
    others = np.setdiff1d(np.arange(len(pace)), slow)
    typical = float(np.median(pace[others]))
    lost = float((pace[slow] - typical).sum())
    share = lost / float(np.median(view.window.judged_ns.sum(axis=1)))
    per_slow_ms = lost / len(slow) / 1e6
    period = find_period(slow)
    name, part, ranks = _blame(view, slow, others, np.mean, per_slow_ms)
    where, place = _words_of(name, part, ranks)
    rhythm = f"every {period} steps" if period else f"{len(slow)} of {len(pace)} steps, no rhythm"
    return Measured(
        level=_jitter_level(share - view.window.cpu_delay_share, bool(name or period)),
        score=share,
        words={
            "rhythm": rhythm,
            "share": fmt.share(share),
            "extra": fmt.ms(per_slow_ms),
            "typical": fmt.ms(typical / 1e6),
            "where": where,
            "place": place,
        },
        phase=name if name in LABELS else None,
        ranks=ranks,
        evidence={
            "slow_steps": len(slow),
            "period": period,
            "cpu_delay_share": view.window.cpu_delay_share,
            "extra_ms": per_slow_ms,
            "typical_ms": typical / 1e6,
            "where": name,
        },
        cost_ms=lost / len(pace) / 1e6,
    )


def _jitter_level(share: float, has_shape: bool) -> float:
    """What other processes took from us has been taken out: that is the machine's unrest, not the
    training's. Slow steps without a rhythm or a phase of their own are never more than a warning."""
    return share if has_shape else min(share, WARN_SHARE + 0.5 * (CRIT_SHARE - WARN_SHARE))


def _explains(excess: dict[str, float], whole_ms: float) -> tuple[str, float]:
    """The phase that explains the excess, and its part; an empty name when none reaches 80 %."""
    gc = excess.pop("garbage collection", 0.0)
    if whole_ms > 0 and gc >= EXPLAINED * whole_ms:
        return "garbage collection", gc / whole_ms
    name = max(excess, key=lambda k: excess[k])
    if whole_ms <= 0 or excess[name] < EXPLAINED * whole_ms:
        return "", 0.0
    return name, min(1.0, excess[name] / whole_ms)


def slowdown(view: TimeView) -> Measured | None:
    """Step time rose at some step and never came back."""
    shift = view.shift
    if shift is None:
        return None
    window = view.window
    index = np.arange(window.count)
    extra_ms = (shift.after - shift.before) / 1e6
    after = index >= shift.at
    name, part, ranks = _blame(view, after, ~after, np.median, extra_ms)
    where, _ = _words_of(name, part, ranks)
    late = 1 - shift.at / window.count
    share = extra_ms * late / max(window.mean_ms(window.judged_ns), 1e-9)
    step = int(window.steps[shift.at])
    return Measured(
        level=shift.after / shift.before - 1 - window.cpu_delay_share,
        score=share,
        words={
            "step": f"{step}",
            "before": fmt.ms(shift.before / 1e6),
            "after": fmt.ms(shift.after / 1e6),
            "rise": fmt.share(shift.after / shift.before - 1),
            "where": where,
        },
        phase=name if name in LABELS else None,
        ranks=ranks,
        evidence={
            "since_step": step,
            "before_ms": shift.before / 1e6,
            "after_ms": shift.after / 1e6,
            "where": name,
        },
        cost_ms=extra_ms * late,
    )


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
        },
        phase=largest,
        evidence={"share": share, "largest": largest, "largest_ms": part_ms},
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
CHANGES: Final[tuple[Rule[TimeView], ...]] = (
    Rule(
        "SLOWDOWN",
        "SLOWDOWN",
        slowdown,
        "Since step {step} a step takes {after} instead of {before} (+{rise}), {where}.",
        "Look at what changed at step {step}: data, sequence length, a growing structure, a noisy neighbour.",
        warn=0.15,
        crit=0.30,
    ),
    Rule(
        "JITTER",
        "JITTER",
        jitter,
        "Slow steps ({rhythm}) take {extra} more than the typical {typical} and cost {share} of all "
        "time, {where}.",
        "Find what happens in those steps, in {place}.",
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
