"""Diagnoses that compare ranks: who holds the others up, in which phase, and what it costs everyone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from traceml.analyze.rule import EXPLAINED, WARN_SHARE, Measured, Rule
from traceml.analyze.window import PHASE_KEYS, WAIT, Across, Window
from traceml.schema import catalog as c
from traceml.schema import fmt

INPUT, H2D, FORWARD, BACKWARD, SYNC, OPTIMIZER, VALIDATION, CHECKPOINT = PHASE_KEYS
COMPUTE: Final = tuple(PHASE_KEYS[i] for i in c.COMPUTE_PHASES)
LABELS: Final = {p.key: p.label.lower() for p in c.PHASES}

COUPLED_SPREAD: Final = 0.05
"""Synchronized ranks finish their steps together: their mean step times differ by less than this."""
FIXED_SHARE: Final = 0.6
"""A culprit that is last in this share of the steps is always the same one."""


@dataclass(frozen=True, slots=True)
class Excess:
    """How much more one rank spends on something than the others typically do."""

    at: int  # index of the rank
    ns: float  # median over steps


@dataclass(frozen=True)
class RankView:
    """The window and what several rules need of it. Only for two ranks or more."""

    window: Window

    @cached_property
    def step_ns(self) -> float:
        """A typical step."""
        return float(np.median(self.window.step_ns))

    @cached_property
    def own(self) -> Across:
        """A rank's own work in a step: everything but waiting for others."""
        return Across(self.window.step_ns - self.window.of(SYNC))

    @cached_property
    def coupled(self) -> bool:
        """Whether the ranks wait for each other."""
        means = self.window.step_ns.mean(axis=1)
        return bool((means.max() - means.min()) < COUPLED_SPREAD * np.median(means))

    @cached_property
    def sync_is_known(self) -> bool:
        """Without sync times, waiting hides inside backward and nobody may be blamed for it."""
        return not self.coupled or self.window.median_share(self.window.of(SYNC)) > 0.002

    @cached_property
    def compute(self) -> Across:
        if self.sync_is_known and all(self.window.measured(k) for k in COMPUTE):
            return self.window.compute
        return Across(self.window.of(*self.compute_phases))

    @property
    def compute_phases(self) -> tuple[str, ...]:
        return COMPUTE if self.sync_is_known else (FORWARD, OPTIMIZER)

    @cached_property
    def uneven_in_both(self) -> bool:
        """Some rank waits longer for input, and some rank computes longer: neither alone is the cause."""
        return all(
            self.excess(values).ns >= WARN_SHARE * self.step_ns
            for values in (self.window.across(INPUT), self.compute)
        )

    def excess(self, values: Across) -> Excess:
        """The rank that spends most, against the median of the others, step by step."""
        at = int(np.argmax(values.rank_medians))
        return Excess(at, self.excess_of(values, at))

    def excess_of(self, values: Across, at: int) -> float:
        return float(np.median(values.values[at] - values.median_without(at)))

    def replay_ms(self, at: int) -> float:
        """What a step would save if this rank were like the median of the others."""
        own = self.own.values
        others = np.delete(own, at, axis=0).max(axis=0)
        without = np.maximum(others, self.own.median_without(at))
        return float(np.mean(np.maximum(others, own[at]) - without)) / 1e6

    def rhythm(self, at: int) -> str:
        last = np.argmax(self.own.values, axis=0)
        share = float(np.mean(last == at))
        return (
            "in nearly every step" if share >= FIXED_SHARE else f"but only in {fmt.share(share)} of the steps"
        )

    def name(self, at: int) -> str:
        rank = self.window.ranks[at]
        host = self.window.hosts[at] if at < len(self.window.hosts) else ""
        several = len(set(self.window.hosts)) > 1
        return f"r{rank} on {host}" if host and several else f"r{rank}"


def _straggler(view: RankView, values: Across, phase: str, what: str) -> Measured | None:
    found = view.excess(values)
    level = found.ns / view.step_ns
    whole = view.excess_of(view.own, found.at)
    if view.coupled and found.ns < EXPLAINED * whole:
        return None  # it does not explain why the others wait for this rank
    if view.coupled and whole < 0.5 * found.ns:
        return None  # the rank makes up for it elsewhere: nobody waits
    typical = float(np.median(values.median_without(found.at))) / 1e6
    mine = float(np.median(values.values[found.at])) / 1e6
    cost_ms = view.replay_ms(found.at)
    return Measured(
        level=level,
        score=level,
        words={
            "rank": view.name(found.at),
            "mine": fmt.ms(mine),
            "typical": fmt.ms(typical),
            "what": what,
            "extra": fmt.ms(found.ns / 1e6),
            "share": fmt.share(level),
            "rhythm": view.rhythm(found.at),
            "wait": "every step waits for it"
            if view.coupled
            else "the ranks do not keep pace with each other",
        },
        phase=phase,
        ranks=(view.window.ranks[found.at],),
        evidence={
            "excess_ms": found.ns / 1e6,
            "rank_ms": mine,
            "median_ms": typical,
            "share": level,
            "coupled": view.coupled,
            "slowest_step_ms": float(view.window.step_ns.mean(axis=1).max()) / 1e6,
        },
        cost_ms=cost_ms,
    )


def input_straggler(view: RankView) -> Measured | None:
    """One rank waits longer for its batches than the others, and they wait for it."""
    if view.uneven_in_both:
        return None  # both: STRAGGLER
    return _straggler(view, view.window.across(INPUT), INPUT, "input")


def compute_straggler(view: RankView) -> Measured | None:
    """One rank spends longer on its own forward, local backward or optimizer than the others."""
    if view.uneven_in_both:
        return None  # both: STRAGGLER
    at = view.excess(view.compute).at
    phase = max(view.compute_phases, key=lambda k: view.excess_of(view.window.across(k), at))
    return _straggler(view, view.compute, phase, f"compute, most of it in {LABELS[phase]}")


def h2d_straggler(view: RankView) -> Measured | None:
    """One rank spends longer on copies to its device than the others."""
    if not view.window.measured(H2D):
        return None
    return _straggler(view, view.window.across(H2D), H2D, "copies to the device")


def straggler(view: RankView) -> Measured | None:
    """One rank holds the others up in input and compute alike, or in something that no phase explains."""
    together = view.window.of(INPUT) + view.compute.values
    if view.uneven_in_both:
        found = _straggler(view, Across(together), INPUT, "input and compute together")
        if found is not None:
            found.words["advice"] = "inspect its input path, its own work and its machine"
        return found
    rest = Across(view.own.values - together - view.window.of(H2D))
    at = view.excess(rest).at
    parts = (CHECKPOINT, VALIDATION, *view.window.user_keys, WAIT)
    phase = max(parts, key=lambda k: view.excess_of(view.window.across(k), at))
    found = _straggler(view, rest, phase, _outside_words(view, phase, at))
    if found is not None:
        found.words["advice"] = _OUTSIDE_ADVICE.get(phase, _OUTSIDE_ADVICE[WAIT])
    return found


def _outside_words(view: RankView, phase: str, at: int) -> str:
    """What a rank does outside input and model work."""
    if phase != WAIT:
        name = LABELS.get(phase, f"phase {phase[5:]!r}")
        return f"work outside the step itself, most of it in {name}"
    places = view.window.wait_places
    others = np.delete(places, at, axis=0).mean(axis=0)
    place = int(np.argmax((places[at] - others).sum(axis=0)))
    return f"time in no phase, most of it {c.WAIT_PLACES[place].where}"


_OUTSIDE_ADVICE: Final = {
    CHECKPOINT: "save less often, or asynchronously, or share the writing between ranks",
    VALIDATION: "validate less often, or share the batches between ranks",
    WAIT: "look at what only this rank does there: logging, metrics, saving, its machine",
}


def comm_bound(view: RankView) -> Measured | None:
    """Exchanging gradients costs even the rank that arrives last: communication itself, not waiting."""
    paid = view.window.of(SYNC).min(axis=0)
    level = float(paid.sum() / np.median(view.window.judged_ns.sum(axis=1)))
    cost_ms = float(paid.mean()) / 1e6
    return Measured(
        level=level - view.window.cpu_delay_share,  # starved of cores, not of bandwidth
        score=level,
        words={"cost": fmt.ms(cost_ms), "share": fmt.share(level), "step": fmt.ms(view.step_ns / 1e6)},
        phase=SYNC,
        evidence={"share": level, "sync_ms": cost_ms},
        cost_ms=cost_ms,
    )


_SENTENCE = (
    "{rank} spends {mine} on {what}, the median rank {typical}: {extra} more ({share} of a step), {rhythm}; "
    "{wait}."
)
RULES: Final[tuple[Rule[RankView], ...]] = (
    Rule(
        "INPUT_STRAGGLER",
        "INPUT STRAGGLER",
        input_straggler,
        _SENTENCE,
        "Inspect the input path of {rank}: its shard, its storage, its loader workers.",
        needs=(INPUT,),
    ),
    Rule(
        "COMPUTE_STRAGGLER",
        "COMPUTE STRAGGLER",
        compute_straggler,
        _SENTENCE,
        "Compare batch shapes, rank-local work and clocks of {rank} with the others.",
        needs=COMPUTE,
    ),
    Rule(
        "H2D_STRAGGLER",
        "H2D STRAGGLER",
        h2d_straggler,
        _SENTENCE,
        "Check pinned memory, the PCIe link and the NUMA placement of {rank}.",
    ),
    Rule(
        "STRAGGLER",
        "STRAGGLER",
        straggler,
        _SENTENCE,
        "{rank}: {advice}.",
        needs=(INPUT, *COMPUTE),
    ),
    Rule(
        "COMM_BOUND",
        "COMM-BOUND",
        comm_bound,
        "Exchanging data between ranks takes {cost} of a {step} step ({share}), even for the last to arrive.",
        "Exchange less or overlap it: larger batches, accumulation with no_sync, compression, bucket size.",
        needs=(SYNC,),
    ),
)
