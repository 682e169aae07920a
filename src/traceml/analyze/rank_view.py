"""The window seen across ranks: who waits for whom, by how much, and whether it is always the same rank."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from traceml.analyze.rule import CRIT_SHARE, EXPLAINED, TYPICAL_PART, WARN_SHARE, typical_level
from traceml.analyze.window import (
    COMPUTE,
    FORWARD,
    INPUT,
    OPTIMIZER,
    SYNC,
    TRIMMED_SHARE,
    Across,
    Floats,
    Window,
    middle,
    often,
)

COUPLED_SPREAD: Final = 0.05
"""Synchronized ranks finish their steps together: their mean step times differ by less than this."""
FIXED_SHARE: Final = 0.6
"""A culprit that costs this share of all the waiting is always the same one."""
CERTAIN: Final = 4.0
"""An excess that is not this many standard errors away from nothing is the steps' ordinary unrest."""
MOST_STEPS: Final = 0.75
"""A rank that is late in this share of the steps is always late; one that takes turns is not."""
STEPS_TO_NAME: Final = 40
"""With fewer steps, which ranks of many take turns is chance."""
MOST_NAMED: Final = 4
"""When more ranks than this, or more than half of them, take turns at being last, none is named."""


@dataclass(frozen=True, slots=True)
class Excess:
    """How much more one rank spends on something than the others typically do."""

    at: int  # index of the rank
    ns: float
    rank_ns: float  # what it spends, and what the others do
    others_ns: float
    share: float  # of the steps in which it is late


@dataclass(frozen=True, slots=True)
class Turns:
    """More than one rank holds the others up, together or in turns: by how much, and which ones."""

    last: NDArray[np.intp]  # for each step the index of the rank
    level: float  # share of a typical step, without what is ordinary spread or other work's doing
    share: float  # of all time
    cost_ms: float
    named: tuple[int, ...]  # indexes of the ranks that are behind most of it; none if all of them are
    rotates: bool  # False: the named ones are slow in every step

    def of(self, values: Floats) -> Floats:
        """What the last rank of each step has."""
        found: Floats = values[self.last, np.arange(values.shape[1])]
        return found


@dataclass(frozen=True)
class RankView:
    """The window and what several rules need of it. Only for two ranks or more."""

    window: Window

    @cached_property
    def step_ns(self) -> float:
        """A typical step."""
        return float(np.median(Across(self.window.step_ns).rank_levels))

    @cached_property
    def own(self) -> Across:
        return self.window.own

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
        """The culprit waits longer for input and computes longer: neither alone is the cause."""
        return all(
            self.excess_of(values, self.culprit) >= WARN_SHARE * self.step_ns
            for values in (self.window.across(INPUT), self.compute)
        )

    @cached_property
    def culprit(self) -> int:
        """The rank with the most own work."""
        return int(np.argmax(self.own.rank_levels))

    @cached_property
    def turns(self) -> Turns | None:
        """Set when ranks that wait for each other do not all wait for the same one, and that matters.

        With equal ranks one is last, too: their ordinary spread, by which the first one is early, does not
        count, nor does a lack of cores.
        """
        own = self.own.values
        if not (self.coupled and self.window.measured(SYNC) and self.sync_is_known):
            return None
        last = self.window.last
        latest = own.max(axis=0)
        others = self.own.median_beside(latest)
        late, early = latest - others, others - own.min(axis=0)
        blame = np.bincount(last, weights=late, minlength=len(own)) / max(float(late.sum()), 1.0)
        group = self._late_together(blame)
        if not group and blame.max() >= FIXED_SHARE:
            return None
        lost, steps = late - early, self.window.step_ns.mean(axis=0)
        if group:
            cost_ms = self.replay_ms(*group)
            share = 1e6 * cost_ms / float(steps.mean())
            level = share - self.window.cpu_delay_share
            return Turns(last, level, share, cost_ms, group, rotates=False) if level >= WARN_SHARE else None
        share = float(lost.mean() / steps.mean())
        level = typical_level(share, float(often(np.sort(lost / steps)))) - self.window.cpu_delay_share
        if level < (WARN_SHARE if len(own) > 2 else CRIT_SHARE):  # of two ranks, noise looks like turns
            return None
        worst = np.argsort(-blame)
        count = int(np.searchsorted(np.cumsum(blame[worst]), EXPLAINED)) + 1
        few = count <= min(MOST_NAMED, len(own) // 2) and self.window.count >= STEPS_TO_NAME
        named = sorted(worst[:count].tolist()) if few else []
        return Turns(last, level, share, float(lost.mean()) / 1e6, tuple(named), rotates=True)

    def _late_together(self, blame: Floats) -> tuple[int, ...]:
        """Two ranks or more that are about equally late, in most steps, and behind most of the waiting."""
        levels = self.own.rank_levels
        late = levels - middle(levels)
        group = np.flatnonzero(late >= EXPLAINED * late.max())
        if not 2 <= len(group) <= len(late) // 2 or blame[group].sum() < EXPLAINED:
            return ()
        found = tuple(group.tolist())
        behind = self._behind(self.own, found)
        by_ns = behind.mean(axis=1, keepdims=True)
        always = np.mean(behind >= by_ns / 2, axis=1) >= MOST_STEPS
        return found if always.all() and (by_ns > 0).all() else ()

    @staticmethod
    def _behind(values: Across, group: tuple[int, ...]) -> Floats:
        """How much more each of these ranks spends in each step than the median of all others."""
        found: Floats = values.values[list(group)] - Across(np.delete(values.values, group, axis=0)).median
        return found

    def lateness_ns(self, turns: Turns, values: Across) -> Floats:
        """How much more each late rank spends on this than the others; in turns, the last of each step."""
        if not turns.rotates:
            found: Floats = self._behind(values, turns.named).mean(axis=1)
            return found
        mine = turns.of(values.values)
        return np.array([np.mean(mine - values.median_beside(mine))])

    @cached_property
    def most_are_late(self) -> bool:
        """Most ranks are about as late as the latest: a few are early, and nobody is to blame."""
        levels = self.own.rank_levels
        border = levels.max() - (1 - EXPLAINED) * (levels.max() - levels.min())
        return bool(np.sum(levels >= border) > len(levels) / 2)

    def excess(self, values: Across) -> Excess:
        """The rank that spends most, against the median of the others, step by step."""
        return self.excess_at(values, int(np.argmax(values.rank_levels)))

    def excess_at(self, values: Across, at: int) -> Excess:
        """The same of this rank. Extreme steps do not count; if late ones are rare, they are jitter."""
        mine, others = values.values[at], values.median_without(at)
        late = mine - others
        order = np.argsort(late)
        cut = int(TRIMMED_SHARE * len(late))
        used = order[cut : len(late) - cut]
        common = float(often(late[order]))
        if common < TYPICAL_PART * late[used].mean():
            used = order[: int(np.searchsorted(late[order], common, side="right"))]
        rank_ns, others_ns = float(mine[used].mean()), float(others[used].mean())
        ns = rank_ns - others_ns
        if len(used) < 2 or ns < CERTAIN * float(late[used].std(ddof=1)) / len(used) ** 0.5:
            ns = 0.0
        return Excess(at, ns, rank_ns, others_ns, float(np.mean(late >= ns / 2)))

    def most_uneven(self, phases: tuple[str, ...], whole: Across) -> str:
        """The phase in which the culprit of `whole` spends most beyond the others."""
        turns, at = self.turns, self.excess(whole).at

        def late(key: str) -> float:
            values = self.window.across(key)
            if turns is None:
                return self.excess_of(values, at)
            return float(self.lateness_ns(turns, values).mean())

        return max(phases, key=late)

    @property
    def slowest_step_ms(self) -> float:
        """The mean step of the slowest rank: it sets the pace."""
        return float(self.window.step_ns.mean(axis=1).max()) / 1e6

    def excess_of(self, values: Across, at: int) -> float:
        return self.excess_at(values, at).ns

    def replay_ms(self, *at: int) -> float:
        """What a step would save if these ranks were like the median of the others."""
        own = self.own.values
        return float(np.mean(own.max(axis=0) - np.delete(own, at, axis=0).max(axis=0))) / 1e6

    def name(self, at: int) -> str:
        rank = self.window.ranks[at]
        host = self.window.hosts[at] if at < len(self.window.hosts) else ""
        several = len(set(self.window.hosts)) > 1
        return f"r{rank} on {host}" if host and several else f"r{rank}"
