"""The aligned window that rules look at: an array over (rank, step, phase)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from traceml.schema import catalog as c

Floats = NDArray[np.float64]

WAIT = "wait"
PHASE_KEYS: tuple[str, ...] = tuple(p.key for p in c.PHASES)


def middle(values: Floats) -> float:
    """The median rank's value: a real rank's, the lower of the two middle ones."""
    return float(np.sort(values)[(len(values) - 1) // 2])


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
    dark_ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    cpu_delay_share: float = 0.0  # time that the ranks' threads waited for a core: other work's doing

    @property
    def count(self) -> int:
        return len(self.steps)

    @cached_property
    def user_keys(self) -> tuple[str, ...]:
        return tuple(k for k in self.keys if k.startswith("user."))

    def of(self, *keys: str) -> Floats:
        """Sum of these phases, (rank, step); a phase that was not measured counts nothing."""
        chosen = [self.keys.index(k) for k in keys if k in self.keys]
        total: Floats = np.nansum(self.phases[:, :, chosen], axis=2)
        return total

    def measured(self, key: str) -> bool:
        """Whether every rank measured this phase."""
        at = self.keys.index(key)
        return bool(self.count) and not bool(np.isnan(self.phases[:, :, at]).any())

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
        """Share in the median step (or group of `burst` steps), so that rare slow steps do not show."""
        groups = self.count // burst
        if groups < 1:
            return self.median_share(values)
        cut = groups * burst
        top = values[:, :cut].reshape(len(self.ranks), groups, burst).sum(axis=2)
        bottom = self.judged_ns[:, :cut].reshape(len(self.ranks), groups, burst).sum(axis=2)
        return middle(np.median(top / bottom, axis=1))

    def mean_ms(self, values: Floats) -> float:
        """Mean over steps, median over ranks, in milliseconds."""
        return middle(values.mean(axis=1)) / 1e6 if self.count else 0.0
