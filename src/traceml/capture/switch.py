"""The phase switch: at every instant the training thread is in exactly one slot.

Entering a phase charges the time since the last switch to the slot that was current; leaving restores
the outer one. Nested phases are therefore exclusive and the slots of a step add up to its wall time by
construction. No torch here, no files: integers and one clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from traceml.schema import catalog as c

AFTER_VALIDATION: Final = c.RECORDED_SLOTS
"""Between two validation phases: still validation; anywhere else: wait."""
SLOTS: Final = c.RECORDED_SLOTS + 3

# These two are indices from the end, hence negative: like every real phase they are below
# FIRST_USER, so that "is the thread inside a phase" stays one comparison on the hot path.
PENDING_EVAL: Final = -1
"""A forward pass in eval mode with gradients on: training if a backward follows, else validation."""
PENDING_FETCH: Final = -2
"""A batch whose loader's role is not known yet: the forward pass that uses it tells."""

SHORT_GAP_NS: Final = 100_000
CPU_WATCH_STEPS: Final = 256
_ZEROS: Final = [0] * SLOTS


def is_wait(slot: int) -> bool:
    """Whether this slot is the thread doing nothing that we know."""
    return c.FIRST_WAIT <= slot < c.RECORDED_SLOTS or slot == AFTER_VALIDATION


def _place_after(slot: int) -> int:
    if slot in (c.INPUT, c.H2D, SLOTS + PENDING_FETCH):
        return c.WAIT_INPUT
    if slot in (c.FORWARD, SLOTS + PENDING_EVAL):
        return c.WAIT_FORWARD
    if slot in (c.BACKWARD, c.SYNC):
        return c.WAIT_BACKWARD
    return AFTER_VALIDATION if slot == c.VALIDATION else c.WAIT_OTHER


_AFTER: Final = [_place_after(slot) for slot in range(SLOTS)]
_IS_WAIT: Final = [is_wait(slot) for slot in range(SLOTS)]


class Switch:
    """Where the training thread is, since when, and what each slot of the step has cost so far."""

    __slots__ = (
        "begin",
        "clock",
        "cpu_clock",
        "cpu_since",
        "cpu_watch",
        "current",
        "live",
        "live_at",
        "mark",
        "since",
        "switches",
        "thread",
        "totals",
    )

    def __init__(
        self,
        clock: Callable[[], int] = time.perf_counter_ns,
        cpu_clock: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        self.clock = clock
        self.cpu_clock = cpu_clock
        self.thread = -1  # nobody: every patch passes straight through
        self.live: bytearray | memoryview = bytearray(1)
        self.live_at = 0
        self.mark: Callable[[int], None] | None = None  # device clock: told which slot just ended
        self.totals = _ZEROS.copy()
        self.current = c.WAIT_START
        self.begin = self.since = clock()
        self.cpu_watch = 0
        self.cpu_since = 0
        self.switches = 0

    def enter(self, slot: int) -> int:
        """Start `slot`; returns the outer slot, to be handed to `leave`."""
        now = self.clock()
        outer = self.current
        self.totals[outer] += now - self.since
        self.since = now
        self.current = slot
        self.live[self.live_at] = slot & 255
        self.switches += 1
        if self.mark is not None:
            self.mark(outer)
        return outer

    def leave(self, outer: int) -> int:
        """End the current slot; returns the time, so that a step can end at this very instant."""
        now = self.clock()
        slot = self.current
        self.totals[slot] += now - self.since
        self.since = now
        if _IS_WAIT[outer]:
            # zero_grad and the like say nothing about where in the step we are.
            outer = outer if slot == c.OPTIMIZER else _AFTER[slot]
            if self.cpu_watch:
                self.cpu_since = self.cpu_clock()
        self.current = outer
        self.live[self.live_at] = outer
        if self.mark is not None:
            self.mark(slot)
        return now

    def enter_compute(self, slot: int) -> int:
        """Like `enter`, for what follows a loss: the gap since the forward pass was the loss.

        A functional loss has no hook. A gap of up to 0.1 ms is taken as loss; of a longer one the
        thread's CPU time is, so that a sleep or a blocking write in the same place stays `wait`.
        """
        outer = self.current
        if outer != c.WAIT_FORWARD and not (slot == c.BACKWARD and _IS_WAIT[outer]):
            return self.enter(slot)
        now = self.clock()
        gap = now - self.since
        if gap <= SHORT_GAP_NS:
            loss = gap
            if self.cpu_watch:
                self.cpu_watch -= 1
        elif self.cpu_watch:
            loss = min(gap, self.cpu_clock() - self.cpu_since)
            self.cpu_watch = CPU_WATCH_STEPS
        else:
            loss = 0  # not observed this time; watch from now on
            self.cpu_watch = CPU_WATCH_STEPS
        self.totals[c.FORWARD] += loss
        self.totals[outer] += gap - loss
        self.since = now
        self.current = slot
        self.live[self.live_at] = slot & 255
        self.switches += 1
        if self.mark is not None:
            self.mark(c.FORWARD if 2 * loss >= gap else outer)
        return outer

    def enter_validation(self) -> int:
        """Like `enter`; the time since the previous validation phase belongs to validation too."""
        if self.current == AFTER_VALIDATION:
            self.current = c.VALIDATION
            outer = self.enter(c.VALIDATION)
            return AFTER_VALIDATION if outer == c.VALIDATION else outer
        return self.enter(c.VALIDATION)

    def flush(self, now: int) -> None:
        """Charge the running slot up to `now` without leaving it."""
        self.totals[self.current] += now - self.since
        self.since = now

    def move(self, source: int, target: int) -> None:
        """What was charged to `source` turns out to have been `target`."""
        self.totals[target] += self.totals[source]
        self.totals[source] = 0

    def restart(self, now: int) -> None:
        """Begin a new step at `now`."""
        self.totals = _ZEROS.copy()
        self.begin = self.since = now
        self.switches = 0
        if _IS_WAIT[self.current]:
            self.current = c.WAIT_START
