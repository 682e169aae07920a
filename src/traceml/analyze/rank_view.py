"""What the rules that compare ranks look at: how late each one is, and for whom the others wait."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from traceml.analyze import window as w
from traceml.analyze.patterns import find_runs
from traceml.analyze.rules.rule import CRIT_SHARE, EXPLAINED_SHARE, TYPICAL_PART, WARN_SHARE, judged_share
from traceml.analyze.window import Floats, RankSeries

COUPLED_SPREAD: Final = 0.05
"""Ranks that wait for each other finish together: their mean step times differ by less than this."""
COUPLED_PART: Final = 0.5
KNOWN_SYNC_SHARE: Final = 0.002
FIXED_SHARE: Final = 0.6
"""A rank behind this share of all waiting is always the culprit."""
CERTAIN_ERRORS: Final = 4.0
"""An excess of fewer standard errors than this may be chance."""
ALWAYS_LATE_SHARE: Final = 0.75
"""A rank that is late in this share of the steps is always late; ranks that take turns are not."""
STEPS_TO_NAME: Final = 40
"""With fewer steps, which of many ranks take turns is chance."""
MOST_BURDENED: Final = 64
MOST_NAMED: Final = 4
"""If more ranks than this, or more than half of them, take turns at being last, none is named."""


@dataclass(frozen=True, slots=True)
class Excess:
    """How much more time one rank spends on something than the other ranks typically do."""

    at: int  # index of the rank
    ns: float
    rank_ns: float
    others_ns: float
    is_late: NDArray[np.bool_]  # in each step


@dataclass(frozen=True, slots=True)
class Burden:
    """What a rank spends on a phase in nearly every step, and most ranks do not."""

    at: int  # index of the rank
    phase: str
    ns: float


@dataclass(frozen=True, slots=True)
class LateRanks:
    """Several ranks that hold the others up, together or in turns."""

    at: tuple[int, ...]  # indexes of the ranks behind most of the waiting; none if nearly all ranks are
    rotates: bool  # False: they are late in every step
    level: float  # share of a typical step, without what ordinary spread or a lack of cores explains
    share: float  # of all time
    cost_ms: float
    runs: tuple[tuple[int, int, int], ...] = ()  # (rank, first and last step) if each was last for long


@dataclass(frozen=True)
class RankView:
    """The ranks compared. Only for two ranks or more."""

    window: w.Window

    @cached_property
    def typical_step_ns(self) -> float:
        return float(np.median(self.window.step_ns.mean(axis=1)))

    @cached_property
    def slowest_step_ms(self) -> float:
        """The mean step of the slowest rank, which the others cannot outrun."""
        return float(self.window.step_ns.mean(axis=1).max()) / 1e6

    @cached_property
    def coupled(self) -> bool:
        """Whether the ranks wait for each other: their steps take equally long, or at least differ far less
        than their own work. They may exchange only every few steps, and not after the last of them."""
        means, own = (v.mean(axis=1) for v in (self.window.step_ns, self.window.own_work.values))
        return bool(np.ptp(means) < max(COUPLED_SPREAD * np.median(means), COUPLED_PART * np.ptp(own)))

    @cached_property
    def sync_is_known(self) -> bool:
        """Without sync times, waiting is part of backward, and no rank may be blamed for it."""
        return not self.coupled or self.window.median_share(self.window.of(w.SYNC)) > KNOWN_SYNC_SHARE

    @property
    def waiting_is_known(self) -> bool:
        """Whether the ranks wait for each other, and for how long."""
        return self.coupled and self.window.measured(w.SYNC) and self.sync_is_known

    @property
    def compute_phases(self) -> tuple[str, ...]:
        return w.MODEL if self.sync_is_known else (w.FORWARD, w.NO_GRAD, w.OPTIMIZER)

    @cached_property
    def compute(self) -> RankSeries:
        all_measured = self.sync_is_known and all(self.window.measured(k) for k in w.COMPUTE)
        if all_measured and not self.window.of(w.NO_GRAD).any():
            return self.window.compute
        return RankSeries(self.window.of(*self.compute_phases))

    @cached_property
    def culprit(self) -> int:
        """The index of the rank with the most own work."""
        return int(np.argmax(self.window.own_work.rank_means))

    @cached_property
    def uneven_in_both(self) -> bool:
        """The culprit waits longer for input and computes longer: neither alone is the cause."""
        parts = (self.window.series(w.INPUT), self.compute)
        return all(self.excess(s, self.culprit).ns >= WARN_SHARE * self.typical_step_ns for s in parts)

    def excess(self, series: RankSeries, at: int | None = None) -> Excess:
        """The rank `at` (without it, the one that spends most) against the median of the others. Extreme
        steps do not count, nor do rare late steps: those are jitter."""
        at = int(np.argmax(series.rank_means)) if at is None else at
        late = series.behind(at)[0]
        used = _frequent(late)
        ns, rank_ns = float(late[used].mean()), float(series.values[at][used].mean())
        others_ns = rank_ns - ns
        if len(used) < 2 or ns < CERTAIN_ERRORS * float(late[used].std(ddof=1)) / len(used) ** 0.5:
            ns = 0.0
        return Excess(at, ns, rank_ns, others_ns, late >= ns / 2)

    @cached_property
    def burdens(self) -> tuple[Burden, ...]:
        """What some ranks, at most half of them, spend on a phase beyond the typical rank. It counts even if
        nobody waits for them: ranks that are equally late for different reasons hide each other."""
        least_ns = WARN_SHARE * self.typical_step_ns
        found = []
        for key in (w.INPUT, w.H2D, *self.compute_phases, *w.OUTSIDE, *self.window.user_keys, w.WAIT):
            series = self.window.series(key)
            means = series.values.mean(axis=1)
            candidates = np.flatnonzero(means - w.median_low(means) >= least_ns)[:MOST_BURDENED].tolist()
            found += [Burden(at, key, self.excess(series, at).ns) for at in candidates]
        return tuple(sorted((b for b in found if b.ns >= least_ns), key=lambda b: (b.at, -b.ns)))

    @cached_property
    def late_ranks(self) -> LateRanks | None:
        """Set if ranks wait for each other, but not always for the same one, and that costs enough. One of
        several equal ranks is always last, too. So their ordinary spread (how early the first one is) does
        not count, and neither does a lack of cores."""
        if not self.waiting_is_known:
            return None
        own = self.window.own_work
        latest = own.values.max(axis=0)
        others = own.medians_without(latest)
        late, early = latest - others, others - own.values.min(axis=0)
        blamed_ns = np.bincount(self.window.last_rank, weights=late, minlength=len(own.values))
        blame = blamed_ns / max(float(late.sum()), 1.0)
        group = self._always_late(blame)
        if group:
            cost_ms = self.saving_ms(*group)
            share = 1e6 * cost_ms / float(self.window.step_ns.mean())
            level = share - self.window.cpu_delay_share
            return LateRanks(group, False, level, share, cost_ms) if level >= WARN_SHARE else None
        return self._late_in_turns(blame, late - early) if blame.max() < FIXED_SHARE else None

    def _always_late(self, blame: Floats) -> tuple[int, ...]:
        """Two or more ranks that are about equally late, in most steps, and behind most of the waiting."""
        means = self.window.own_work.rank_means
        late = means - w.median_low(means)
        group = np.flatnonzero(late >= EXPLAINED_SHARE * late.max())
        if not 2 <= len(group) <= len(late) // 2 or blame[group].sum() < EXPLAINED_SHARE:
            return ()
        found = tuple(group.tolist())
        behind = self.window.own_work.behind(*found)
        mean = behind.mean(axis=1, keepdims=True)
        always = np.mean(behind >= mean / 2, axis=1) >= ALWAYS_LATE_SHARE
        return found if always.all() and (mean > 0).all() else ()

    def _late_in_turns(self, blame: Floats, lost: Floats) -> LateRanks | None:
        steps = self.window.step_ns.mean(axis=0)
        share = float(lost.mean() / steps.mean())
        level = judged_share(share, float(w.frequent_level(lost / steps)))
        level -= self.window.cpu_delay_share
        if level < (WARN_SHARE if len(blame) > 2 else CRIT_SHARE):  # noise of two ranks looks like turns
            return None
        worst = np.argsort(-blame)
        count = int(np.searchsorted(np.cumsum(blame[worst]), EXPLAINED_SHARE)) + 1
        named: tuple[int, ...] = ()
        runs: list[tuple[int, int, int]] = []
        if self.window.count >= STEPS_TO_NAME:
            few = count <= min(MOST_NAMED, len(blame) // 2)
            runs = find_runs(self.window.last_rank, MOST_NAMED)
            named = tuple(
                dict.fromkeys(at for at, *_ in runs) or (sorted(worst[:count].tolist()) if few else ())
            )
        ranks, at_steps = self.window.ranks, self.window.steps
        said = tuple((ranks[at], int(at_steps[first]), int(at_steps[last])) for at, first, last in runs)
        return LateRanks(named, True, level, share, float(lost.mean()) / 1e6, said)

    def lateness_ns(self, late: LateRanks, series: RankSeries) -> Floats:
        """How much more each late rank spends on this than the others; in turns, the last of each step."""
        if not late.rotates:
            return np.asarray(series.behind(*late.at).mean(axis=1))
        last = series.values[self.window.last_rank, np.arange(self.window.count)]
        return np.array([np.mean(last - series.medians_without(last))])

    def most_uneven(self, phases: tuple[str, ...], whole: RankSeries) -> str:
        """The phase in which the rank that spends most on `whole`, or the late ranks, exceed the others."""
        late, at, series = self.late_ranks, int(np.argmax(whole.rank_means)), self.window.series
        if late is None:
            used = _frequent(whole.behind(at)[0])
            return max(phases, key=lambda key: float(series(key).behind(at)[0][used].mean()))
        return max(phases, key=lambda key: float(self.lateness_ns(late, series(key)).mean()))

    def saving_ms(self, *at: int) -> float:
        """What a step would save if these ranks were no slower than the slowest of the others."""
        own = self.window.own_work
        return float(np.mean(own.values.max(axis=0) - own.most_without(*at))) / 1e6

    def saving_in_ms(self, series: RankSeries, at: int) -> float:
        """What a step would save if this rank spent no more on this than the others do. Other work that only
        this rank does, such as validation, stays."""
        own = self.window.own_work
        slowest = own.values.max(axis=0)
        too_much = series.values[at] - series.most_without(at)
        mended = np.maximum(own.most_without(at), own.values[at] - np.maximum(too_much, 0.0))
        return float(np.mean(slowest - np.minimum(mended, slowest))) / 1e6

    def name(self, at: int) -> str:
        rank, hosts = f"r{self.window.ranks[at]}", self.window.hosts
        return f"{rank} on {hosts[at]}" if len(set(hosts)) > 1 and hosts[at] else rank


def _frequent(late: Floats) -> NDArray[np.intp]:
    """The steps that count in an excess: neither extreme ones, nor late ones that are rare."""
    order = np.argsort(late)
    cut = int(w.TRIMMED_SHARE * len(late))
    used = order[cut : len(late) - cut]
    frequent = float(w.frequent_level(late))
    are_rare = frequent < TYPICAL_PART * late[used].mean()
    return order[: int(np.searchsorted(late[order], frequent, side="right"))] if are_rare else used
