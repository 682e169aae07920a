"""The aligned window that rules look at: arrays over (rank, step), one for each phase."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from traceml.analyze.cores import CoreUse
from traceml.schema import catalog as c

Floats = NDArray[np.float64]

WAIT = "wait"
MOST_RANKS_FOR_MEDIAN = 1_024
TRIMMED_SHARE = 0.05
"""This share of a rank's fastest and slowest steps does not count in its mean: one stall is not typical."""
RARE_SHARE = 0.25
"""What happens in at most this share of the steps is rare: jitter, not a bound."""
PHASE_KEYS: tuple[str, ...] = tuple(p.key for p in c.PHASES)
OUTSIDE = tuple(p.key for p in c.PHASES if p.group == "other")
"""Phases that are neither input nor model work: a new phase of this group needs no rule of its own."""
INPUT, H2D, FORWARD, NO_GRAD, BACKWARD, SYNC, OPTIMIZER, VALIDATION, CHECKPOINT, *_ = PHASE_KEYS
COMPUTE = tuple(PHASE_KEYS[i] for i in c.COMPUTE_PHASES)
MODEL = (*COMPUTE, NO_GRAD)
"""What the model does in a step, with and without gradients."""
LABELS = {p.key: p.label.lower() for p in c.PHASES} | {WAIT: "wait", NO_GRAD: "forward without gradients"}


class OutsideSteps(NamedTuple):
    """Time of the run before its first or after its last step."""

    seconds: float = 0.0
    share: float = 0.0  # of the run


NO_TIME = OutsideSteps()


def median_low(values: Floats) -> float:
    """The median rank's value: of two middle ranks the lower, so that it belongs to a real rank."""
    return float(np.sort(values)[(len(values) - 1) // 2])


def frequent_level(values: Floats, rare: float = RARE_SHARE) -> Floats:
    """The level that more than this share of the values reach, along the last axis."""
    count = values.shape[-1]
    found: Floats = np.sort(values)[..., count - 1 - max(1, int(rare * count)) if count > 1 else 0]
    return found


def median_over_ranks(values: Floats) -> Floats:
    """The median over ranks for each step; NaN where a rank has no value."""
    return RankSeries(values).medians


def _every(ranks: int) -> int:
    """The n such that medians over this many ranks use every n-th one. It is odd, so that every place within
    a machine is included."""
    return 2 * (ranks // (2 * MOST_RANKS_FOR_MEDIAN)) + 1


class RankSeries:
    """One quantity over (rank, step), with its statistics over ranks and over steps.

    It is sorted once: sorting is vectorized, so it is faster than selecting, and it also gives the median
    without any one rank.
    """

    def __init__(self, values: Floats) -> None:
        self.values = values
        self._every = _every(len(values))

    @cached_property
    def _sorted_ranks(self) -> Floats:
        chosen = self.values[:: self._every]
        return np.sort(chosen, axis=0) if chosen.any() else chosen  # most windows have many unused phases

    @cached_property
    def medians(self) -> Floats:
        """For each step the median over all ranks."""
        ordered, count = self._sorted_ranks, len(self._sorted_ranks)
        found: Floats = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
        found[np.isnan(ordered[-1])] = np.nan
        return found

    def medians_without(self, values: Floats) -> Floats:
        """For each step the median over the ranks without the one that has this value. Not for NaN."""
        if self._every > 1:
            return self.medians  # one of a thousand ranks does not matter
        others = len(self._sorted_ranks) - 1

        def other(place: int) -> Floats:
            here, after = self._sorted_ranks[place], self._sorted_ranks[place + 1]
            found: Floats = np.where(here < values, here, after)
            return found

        return (other((others - 1) // 2) + other(others // 2)) / 2

    def behind(self, *at: int) -> Floats:
        """How much more each of these ranks spends in each step than the median of all others."""
        mine = self.values[list(at)]
        others = (
            self.medians_without(mine[0])
            if len(at) == 1
            else RankSeries(np.delete(self.values, at, axis=0)).medians
        )
        found: Floats = mine - others
        return found

    def most_without(self, *at: int) -> Floats:
        """In each step, the most that any rank but these spends."""
        parts = (self.values[a + 1 : b] for a, b in pairwise([-1, *sorted(at), len(self.values)]))
        found: Floats = np.max([part.max(axis=0) for part in parts if len(part)], axis=0)
        return found

    @cached_property
    def rank_means(self) -> Floats:
        """For each rank the mean over steps, without the fastest and the slowest ones."""
        cut = int(TRIMMED_SHARE * self.values.shape[1])
        found: Floats = np.sort(self.values, axis=1)[:, cut : self.values.shape[1] - cut].mean(axis=1)
        return found


@dataclass(frozen=True)
class Window:
    """Completed steps that all ranks have, without warm-up. Times in ns, NaN where not measured."""

    ranks: tuple[int, ...]
    steps: NDArray[np.int64]
    keys: tuple[str, ...]  # phases, user phases, "wait"
    phases: Floats  # (rank, step, key)
    step_ns: Floats  # (rank, step), as are the following
    overhead_ns: Floats  # what TraceML itself cost
    gc_ns: Floats
    gc_wait_ns: Floats
    busy_wait_ns: Floats  # of the wait: the training thread was running, as far as that is known
    wait_places: Floats  # (rank, step, place)
    samples: Floats
    tokens: Floats
    clock: str = "host"
    input_inferred: bool = False
    steps_inferred: bool = False  # no optimizer was seen: a step ends where the next one begins
    workers: int = 0  # of the training loader: batches arrive in bursts of this many
    warmup: tuple[float, ...] = ()  # ms of each step that was left out
    total_steps: int = 0
    earlier_steps: int = 0  # part of total_steps whose rows are gone: they count in totals only
    ranks_without_steps: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    memory: dict[str, Floats] = field(default_factory=dict)  # bytes by metric, (rank, step)
    switches: Floats = field(default_factory=lambda: np.zeros((0, 0)))  # phase switches, (rank, step)
    more_batches: Floats = field(default_factory=lambda: np.zeros((0, 0)))  # than one, (rank, step)
    dropped_ns: Floats = field(default_factory=lambda: np.zeros((0, 0)))  # between the step before and this
    cpu_delay_share: float = 0.0  # share of time that other processes kept the ranks' threads from a core
    core_use: CoreUse = field(default_factory=CoreUse)
    batches_per_step: float = 1.0
    loader_on_thread: bool = False  # another thread reads a loader
    early_batch: bool = False  # the next batch is made between the forward and the backward pass
    new_optimizers: tuple[int, ...] = ()  # steps from which on another optimizer ends the steps
    start: OutsideSteps = NO_TIME  # before the first step: see run.around_steps
    end: OutsideSteps = NO_TIME  # after the last step
    epoch_starts: frozenset[int] = frozenset()  # steps in which a loader, and its workers, were started

    @property
    def input_place(self) -> str:
        """Where inferred input was spent."""
        return "between the forward and the backward pass" if self.early_batch else "before the forward pass"

    @property
    def count(self) -> int:
        return len(self.steps)

    def without(self, at: NDArray[np.int64]) -> Window:
        """The same window without the steps at these places."""
        kept = np.setdiff1d(np.arange(self.count), at)

        def thinned(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: thinned(part) for key, part in value.items()}
            if not isinstance(value, np.ndarray) or value.shape[:2] != self.step_ns.shape:
                return value
            return np.moveaxis(np.moveaxis(value, 1, -1)[..., kept], -1, 1)  # steps stay next to each other

        changed = {f.name: thinned(getattr(self, f.name)) for f in fields(self)}
        return replace(self, **{**changed, "steps": self.steps[kept]})

    @cached_property
    def user_keys(self) -> tuple[str, ...]:
        return tuple(k for k in self.keys if k.startswith("user."))

    def plane(self, key: str) -> Floats:
        """One phase, (rank, step); NaN where it was not measured."""
        return self.phases[:, :, self.keys.index(key)]

    def of(self, *keys: str) -> Floats:
        """Sum of these phases, (rank, step), read-only; a phase that was not measured counts as 0."""
        known = [k for k in keys if k in self.keys]
        if len(known) == 1 and self.measured(known[0]):
            return self.plane(known[0])
        total = np.zeros(self.step_ns.shape)
        for key in known:
            plane = self.plane(key)
            total += plane if self.measured(key) else np.nan_to_num(plane)
        return total

    def measured(self, key: str) -> bool:
        """Whether every rank measured this phase."""
        return bool(self.count) and key in self._complete

    @cached_property
    def _complete(self) -> frozenset[str]:
        return frozenset(k for k in self.keys if not np.isnan(self.plane(k)).any())

    @cached_property
    def _series(self) -> dict[str, RankSeries]:
        return {}

    def series(self, key: str) -> RankSeries:
        """One phase, 0 where it was not measured; kept, because several rules need it."""
        if key not in self._series:
            self._series[key] = RankSeries(self.of(key))
        return self._series[key]

    @cached_property
    def typical_ms(self) -> dict[str, Floats]:
        """For each time metric, the median over ranks of each step. Metrics that no rank measured are left
        out."""
        if not self.count:
            return {}
        found = {"step_ms": median_over_ranks(self.step_ns)}
        for key in self.keys:
            if self.measured(key):
                found[f"{key}_ms"] = self.series(key).medians
            elif not np.isnan(self.plane(key)).all():
                found[f"{key}_ms"] = median_over_ranks(self.plane(key))
        found["compute_ms"] = self.compute.medians
        found["gc_ms"] = median_over_ranks(self.gc_ns)
        return {key: values / 1e6 for key, values in found.items() if not np.isnan(values).all()}

    @cached_property
    def compute(self) -> RankSeries:
        """Forward, backward and optimizer together; NaN unless all of them were measured."""
        first, *others = map(self.plane, COMPUTE)
        return RankSeries(sum(others, first))

    @cached_property
    def own_work(self) -> RankSeries:
        """What a rank does itself in a step: everything except waiting for other ranks."""
        return RankSeries(self.step_ns - self.of(SYNC))

    @cached_property
    def last_rank(self) -> NDArray[np.intp]:
        """For each step the index of the rank that the others wait for: the one with the most own work."""
        found: NDArray[np.intp] = np.argmax(self.own_work.values, axis=0)
        return found

    @cached_property
    def net_step_ns(self) -> Floats:
        """Step time without TraceML's own cost: the whole that shares refer to."""
        return np.maximum(self.step_ns - self.overhead_ns, 1.0)

    @cached_property
    def _some(self) -> slice:
        """The ranks among which the median rank is chosen."""
        return slice(None, None, _every(len(self.ranks)))

    @cached_property
    def _some_net_ns(self) -> Floats:
        return self.net_step_ns[self._some]

    def median_share(self, values: Floats) -> float:
        """The median rank's share: the sum of these times over the sum of step times."""
        if not self.count:
            return 0.0
        return median_low(values[self._some].sum(axis=1) / self._some_net_ns.sum(axis=1))

    def typical_share(self, values: Floats, burst: int = 1) -> float:
        """The share that more than a quarter of the steps reach, so that rare steps do not show. With bursts,
        steps are judged in groups of that many; more groups than steps contain a rare one."""
        groups = self.count // burst
        if groups < 1:
            return self.median_share(values)
        part, whole = (
            v[:, : groups * burst].reshape(len(v), groups, burst).sum(axis=2) if burst > 1 else v
            for v in (values[self._some], self._some_net_ns)
        )
        rare = min(0.5, 1 - (1 - RARE_SHARE) ** burst)
        return median_low(frequent_level(part / whole, rare))

    def mean_ms(self, values: Floats) -> float:
        """Mean over steps, median over ranks, in milliseconds."""
        return median_low(values[self._some].mean(axis=1)) / 1e6 if self.count else 0.0
