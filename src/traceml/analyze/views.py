"""What the rules about time look at: the typical rank's time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from traceml.analyze import window as w
from traceml.analyze.patterns import SHIFT_SHARE, STALL_FACTOR, Shift, find_shift, find_stalls
from traceml.analyze.rank_view import RankView
from traceml.analyze.window import Floats
from traceml.schema import catalog as c

CALLS_OF_ANY_STEP: Final = 3
"""Backward, zero_grad, optimizer: a step has them once, however much work it does."""
FIRST_STEPS: Final = 3
"""In them DDP exchanges its order of gradients in the forward pass."""
FEWEST_STEPS: Final = 2
FEWEST_ROLLOUTS: Final = 3
AFTER_NO_GRAD: Final = c.WAIT_NO_GRAD - c.FIRST_WAIT


@dataclass(frozen=True)
class TimeView:
    """The typical rank's time."""

    window: w.Window

    @cached_property
    def step_ms(self) -> float:
        return self.window.mean_ms(self.window.net_step_ns)

    @cached_property
    def outside_work(self) -> Floats:
        """Deliberate work that is not part of training itself: validation, checkpoints, user phases."""
        return self.cost_of(*w.OUTSIDE, *self.window.user_keys)

    def cost_of(self, *keys: str) -> Floats:
        """What these phases cost each rank: its own time, and waiting for a rank that does more of them, in
        the same step, or in the next one if the exchange comes first."""
        mine, sync = self.window.of(*keys), self.window.of(w.SYNC)
        if len(self.window.ranks) < 2 or not mine.any():
            return mine
        more = mine.max(axis=0) - mine
        waited = np.minimum(sync, more)
        waited[:, 1:] += np.minimum(sync - waited, np.roll(more - waited, 1, axis=1))[:, 1:]
        return np.asarray(mine + waited)

    @cached_property
    def net_wait(self) -> Floats:
        """Wait without TraceML's own cost, most of which is recorded as wait."""
        wait: Floats = np.maximum(self.window.of(w.WAIT) - self.window.overhead_ns, 0.0)
        return wait

    @cached_property
    def busy_wait_share(self) -> float:
        """Of the median rank's unattributed time: the part in which its training thread was running."""
        wait = self.window.of(w.WAIT).sum(axis=1)
        return w.median_low(np.minimum(self.window.busy_wait_ns.sum(axis=1) / np.maximum(wait, 1.0), 1.0))

    @cached_property
    def played(self) -> NDArray[np.bool_]:
        """(rank, step): where passes without gradients run now and then: episodes, samples that are drawn."""
        runs = self.window.of(w.NO_GRAD) > 0
        times = np.count_nonzero(runs.any(axis=0))
        return runs & (FEWEST_ROLLOUTS <= times <= w.RARE_SHARE * self.window.count)

    @cached_property
    def between_rollouts(self) -> Floats:
        """What runs between such passes, as the steps of an environment."""
        return np.where(self.played, self.window.wait_places[:, :, AFTER_NO_GRAD], 0.0)

    @cached_property
    def rollouts(self) -> Floats:
        """All time of those passes. They are deliberate, like validation."""
        return np.where(self.played, self.window.of(w.NO_GRAD), 0.0) + self.between_rollouts

    @cached_property
    def typical_steps(self) -> Floats:
        """For each step the median rank's time, without deliberate outside work. If ranks wait for each
        other, the slowest one's: work after the exchange costs the others time in their next step only."""
        window = self.window
        if len(window.ranks) < 2 or not RankView(window).waiting_is_known:
            return w.median_over_ranks(window.net_step_ns - self.outside_work - self.rollouts)
        rest = window.net_step_ns - window.of(w.SYNC, *w.OUTSIDE, *window.user_keys) - self.rollouts
        return np.asarray(rest.max(axis=0) + window.of(w.SYNC).min(axis=0))

    @cached_property
    def work(self) -> dict[str, Floats]:
        """How much each step does, in amounts that a busy machine does not change."""
        calls = np.maximum(self.window.switches - CALLS_OF_ANY_STEP, 0.0)
        amounts = {"samples": self.window.samples, "tokens": self.window.tokens, "model calls": calls}
        known = {name: a for name, a in amounts.items() if a.size and not np.isnan(a).any()}
        return {name: w.median_over_ranks(amount) for name, amount in known.items()}

    @cached_property
    def shift(self) -> Shift | None:
        """Where steps begin to take longer. If noise hides the place, it is where they begin to do more."""
        steps = self.typical_steps
        found = find_shift(steps)
        for rise in () if found is not None else filter(None, map(find_shift, self.work.values())):
            before, after = (float(np.median(part)) for part in (steps[: rise.at], steps[rise.at :]))
            if after >= before * (1 + SHIFT_SHARE):
                return Shift(rise.at, before, after)
        return found

    @cached_property
    def slowest_steps(self) -> Floats:
        """For each step, the work of the slowest rank without deliberate outside work, plus the exchange. It
        is not the longest step, because a rank that stops after an exchange makes the others wait in their
        next step. A validation or checkpoint that takes far longer than the others does count."""
        window = self.window
        own = window.own_work.values - window.overhead_ns
        deliberate = (window.of(key) for key in (*w.OUTSIDE, *window.user_keys))
        for mine in (*deliberate, self.rollouts):
            if mine.any():
                longest = mine.max(axis=0)
                usual = w.median_low(longest[longest > 0])
                own = own - np.where(mine < STALL_FACTOR * usual, mine, usual)
        found: Floats = own.max(axis=0) + window.of(w.SYNC).min(axis=0)
        return found

    @cached_property
    def skipping(self) -> NDArray[np.int64]:
        """Steps in which a batch was fetched but not trained on: they took more batches than usual, but no
        longer in backward. In uneven accumulation, every batch has a backward pass. A loop that fetches ahead
        takes one more batch where an epoch begins, so such steps tell nothing. Steps with as many batches are
        judged together."""
        window, skips = self.window, np.zeros(self.window.count, dtype=bool)
        if not window.more_batches.any():
            return np.flatnonzero(skips)
        batches, backward = window.more_batches + 1, window.of(w.BACKWARD)
        more = batches > np.median(batches, axis=1, keepdims=True)
        more &= ~np.isin(window.steps, list(window.epoch_starts))
        if not 0 < np.count_nonzero(more.any(axis=0)) <= w.RARE_SHARE * window.count:
            return np.flatnonzero(skips)
        usual_backward = max(float(np.median(backward[~more])), 1.0)
        for many in np.unique(batches[more]):
            alike = more & (batches == many)
            grown = float(np.median(backward[alike])) / usual_backward
            expected = float(many / np.median(batches[~more]))
            skips |= alike.any(axis=0) & (0 < grown < (1 + expected) / 2)
        return np.flatnonzero(skips)

    @cached_property
    def skipped_ns(self) -> Floats:
        """(rank, step): what batches cost that were not trained on."""
        steps, at = self.window.net_step_ns, self.skipping
        found = np.zeros(steps.shape)
        if len(at):
            usual = np.median(np.delete(steps, at, axis=1), axis=1, keepdims=True)
            found[:, at] = np.maximum(steps[:, at] - usual, 0.0)
        return found

    @cached_property
    def stalls(self) -> NDArray[np.int64]:
        steps = self.slowest_steps.copy()
        steps[self.skipping] = np.median(steps)
        found, last = find_stalls(steps), self.window.last_rank
        # In the first steps, ranks that wait for the one that stopped in the step before do so in a pass.
        waited = [at > 0 and self.window.steps[at] <= FIRST_STEPS and at - 1 in found for at in found]
        kept: NDArray[np.int64] = found[~(np.array(waited, dtype=bool) & (last[found] != last[found - 1]))]
        return kept

    @cached_property
    def calm(self) -> TimeView:
        """Without single steps that stand out: what is said about all steps must not come from them. Ranks
        that wait for the one that stalled do so in its step, in the next one, or at their next exchange.
        Mostly deliberate steps stay."""
        slowest, stalls, count = self.slowest_steps, self.stalls, self.window.count
        stalls = stalls[2 * slowest[stalls] >= self.window.net_step_ns.max(axis=0)[stalls]]
        outstanding = [*stalls.tolist(), *self.skipping.tolist()]
        waits = self.window.of(w.SYNC).max(axis=0) if len(self.window.ranks) > 1 else np.zeros(0)
        for at in stalls.tolist() if len(waits) else ():
            extra = slowest[at] - np.median(slowest)
            outstanding += [at + 1, *(at + np.flatnonzero(waits[at:] >= extra / 2)[:1]).tolist()]
        places = np.unique([at for at in outstanding if at < count]).astype(np.int64)
        is_enough = 0 < len(places) <= count - FEWEST_STEPS
        return TimeView(self.window.without(places)) if is_enough else self

    @cached_property
    def regular_steps(self) -> Floats:
        """`typical_steps` scaled back after a lasting shift: only jitter is left."""
        levels = np.ones(1) if self.shift is None else self.shift.levels(self.window.count)
        return np.asarray(self.typical_steps * (levels[0] / levels))
