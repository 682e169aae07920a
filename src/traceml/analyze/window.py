"""The aligned window that rules look at: an array over (rank, step, phase)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from traceml.schema import catalog as c

Floats = NDArray[np.float64]

WAIT = "wait"
MOST_FOR_MEDIAN = 1_024
TRIMMED_SHARE = 0.05
"""The slowest and the fastest steps do not count in a rank's level: a single stall is not how it is."""
RARE_SHARE = 0.25
"""What at most this share of steps shows is rare: jitter, not a bound."""
PHASE_KEYS: tuple[str, ...] = tuple(p.key for p in c.PHASES)
INPUT, H2D, FORWARD, BACKWARD, SYNC, OPTIMIZER, VALIDATION, CHECKPOINT = PHASE_KEYS
COMPUTE = tuple(PHASE_KEYS[i] for i in c.COMPUTE_PHASES)
LABELS = {p.key: p.label.lower() for p in c.PHASES} | {WAIT: "wait"}


def middle(values: Floats) -> float:
    """The median rank's value: a real rank's, the lower of the two middle ones."""
    return float(np.sort(values)[(len(values) - 1) // 2])


def median_of_ranks(values: Floats) -> Floats:
    """For each step the median over ranks; NaN where a rank has none."""
    return Across(values).median


class Across:
    """One quantity over (rank, step), seen across ranks: sorted once, asked often.

    Sorting is faster than selecting here (vectorized), and gives the median without any one rank as well.
    Of very many ranks the median is that of an even choice; an odd distance meets every place in a machine.
    """

    def __init__(self, values: Floats) -> None:
        self.values = values
        self._every = 2 * (len(values) // (2 * MOST_FOR_MEDIAN)) + 1

    @cached_property
    def _sorted(self) -> Floats:
        chosen = self.values[:: self._every]
        return np.sort(chosen, axis=0) if chosen.any() else chosen  # much does not happen in most windows

    @cached_property
    def median(self) -> Floats:
        """Of all ranks, for each step."""
        count = len(self._sorted)
        found: Floats = (self._sorted[(count - 1) // 2] + self._sorted[count // 2]) / 2
        found[np.isnan(self._sorted[-1])] = np.nan
        return found

    def median_without(self, at: int) -> Floats:
        """Of all ranks but this one, for each step. Not for values with NaN."""
        return self.median_beside(self.values[at])

    def median_beside(self, mine: Floats) -> Floats:
        """Of all ranks but the one that has these values, which may be another one in each step."""
        if self._every > 1:
            return self.median  # one of a thousand
        others = len(self._sorted) - 1
        found: Floats = (self._other(mine, (others - 1) // 2) + self._other(mine, others // 2)) / 2
        return found

    def _other(self, mine: Floats, place: int) -> Floats:
        """The value at this place among the sorted others."""
        here, after = self._sorted[place], self._sorted[place + 1]
        found: Floats = np.where(here < mine, here, after)
        return found

    @cached_property
    def _by_rank(self) -> Floats:
        return np.sort(self.values, axis=1)

    @cached_property
    def rank_levels(self) -> Floats:
        """For each rank the mean over steps, without the extreme ones."""
        cut = int(TRIMMED_SHARE * self.values.shape[1])
        found: Floats = self._by_rank[:, cut : self.values.shape[1] - cut].mean(axis=1)
        return found

    def rank_often(self, burst: int = 1) -> Floats:
        """For each rank what more than a quarter of its steps reach; more groups of steps have a rare one."""
        return often(self._by_rank, min(0.5, 1 - (1 - RARE_SHARE) ** burst))


def often(ordered: Floats, rare: float = RARE_SHARE) -> Floats:
    """Of sorted values, what more than the rare ones of them reach."""
    count = ordered.shape[-1]
    found: Floats = ordered[..., count - 1 - max(1, int(rare * count))] if count > 1 else ordered[..., 0]
    return found


@dataclass(frozen=True)
class Window:
    """Completed steps that all ranks have, warm-up left out. Times in ns, NaN where not measured."""

    ranks: tuple[int, ...]
    steps: NDArray[np.int64]
    keys: tuple[str, ...]  # phases, user phases, "wait"
    phases: Floats  # (rank, step, key)
    step_ns: Floats  # (rank, step)
    own_ns: Floats  # (rank, step): what TraceML itself cost
    gc_ns: Floats
    gc_wait_ns: Floats
    wait_places: Floats  # (rank, step, place)
    samples: Floats
    tokens: Floats
    clock: str = "host"
    input_inferred: bool = False
    workers: int = 0  # of the training loader: batches arrive in bursts of this many
    warmup: tuple[float, ...] = field(default=())  # ms of each step that was left out
    total_steps: int = 0
    earlier_steps: int = 0  # of these: before the rows that are there; they count in totals only
    dark_ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    memory: dict[str, Floats] = field(default_factory=dict)  # bytes by metric, (rank, step)
    cpu_delay_share: float = 0.0  # time that the ranks' threads waited for a core: other work's doing

    @property
    def count(self) -> int:
        return len(self.steps)

    @cached_property
    def user_keys(self) -> tuple[str, ...]:
        return tuple(k for k in self.keys if k.startswith("user."))

    def plane(self, key: str) -> Floats:
        """One phase, (rank, step); NaN where it was not measured."""
        return self.phases[:, :, self.keys.index(key)]

    def of(self, *keys: str) -> Floats:
        """Sum of these phases, (rank, step), to be read only; what was not measured counts nothing."""
        known = [k for k in keys if k in self.keys]
        if not known:
            return np.zeros(self.step_ns.shape)
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
    def _across(self) -> dict[str, Across]:
        return {}

    def across(self, key: str) -> Across:
        """One phase across ranks, a phase that was not measured as 0; kept, because several rules ask."""
        if key not in self._across:
            self._across[key] = Across(self.of(key))
        return self._across[key]

    @cached_property
    def typical_ms(self) -> dict[str, Floats]:
        """For each time metric the median over ranks of each step; what nobody measured is not there."""
        found = {"step_ms": median_of_ranks(self.step_ns)} if self.count else {}
        for key in self.keys if self.count else ():
            if self.measured(key):
                found[f"{key}_ms"] = self.across(key).median
            elif not np.isnan(self.plane(key)).all():
                found[f"{key}_ms"] = median_of_ranks(self.plane(key))
        if self.count:
            found["compute_ms"] = self.compute.median
            found["gc_ms"] = median_of_ranks(self.gc_ns)
        return {key: values / 1e6 for key, values in found.items() if not np.isnan(values).all()}

    @cached_property
    def compute(self) -> Across:
        """Forward, backward and optimizer together; NaN unless all of them were measured."""
        first, *others = map(self.plane, COMPUTE)
        total = first.copy()
        for plane in others:
            total += plane
        return Across(total)

    @cached_property
    def own(self) -> Across:
        """A rank's own work in a step: everything but waiting for others."""
        return Across(self.step_ns - self.of(SYNC))

    @cached_property
    def last(self) -> NDArray[np.intp]:
        """For each step the index of the rank that the others wait for: the one with the most own work."""
        found: NDArray[np.intp] = np.argmax(self.own.values, axis=0)
        return found

    @cached_property
    def judged_ns(self) -> Floats:
        """Step time without our own cost: what shares are shares of."""
        return np.maximum(self.step_ns - self.own_ns, 1.0)

    def shares(self, values: Floats) -> Floats:
        """Per rank: the sum of these times over the sum of step times."""
        share: Floats = values.sum(axis=1) / self.judged_ns.sum(axis=1)
        return share

    def median_share(self, values: Floats) -> float:
        """Median of per-rank shares."""
        return middle(self.shares(values)) if self.count else 0.0

    def typical_share(self, values: Floats, burst: int = 1) -> float:
        """Share that more than a quarter of steps (or groups of `burst`) reach: rare ones do not show."""
        groups = self.count // burst
        if groups < 1:
            return self.median_share(values)
        if burst == 1:
            return middle(Across(values / self.judged_ns).rank_often())
        cut = groups * burst
        top = values[:, :cut].reshape(len(self.ranks), groups, burst).sum(axis=2)
        bottom = self.judged_ns[:, :cut].reshape(len(self.ranks), groups, burst).sum(axis=2)
        return middle(Across(top / bottom).rank_often(burst))

    def mean_ms(self, values: Floats) -> float:
        """Mean over steps, median over ranks, in milliseconds."""
        return middle(values.mean(axis=1)) / 1e6 if self.count else 0.0
