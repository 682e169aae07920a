"""The phase switch: at every instant the training thread is in exactly one slot.

Entering a phase charges the time since the last switch to the slot that was current; leaving restores
the outer one. Nested phases are therefore exclusive and the slots of a step add up to its wall time by
construction. No torch here, no files: integers and one clock.
"""

from __future__ import annotations

import os
import time
import types
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

from traceml.recording.layout import SEQUENCE, row_struct
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

PASS: Final = -9
"""Answer of `enter`: another thread, or already inside a phase; the call passes straight through."""

SHORT_GAP_NS: Final = 100_000
LONG_GAP_WEIGHT: Final = 16
CPU_WATCH_FROM: Final = 17
CPU_WATCH_MOST: Final = 256
"""Reading the thread's CPU time costs more than all else here, so it is read only while long gaps
are no rarity: each one counts 16, each short one takes 1 back, and from 17 on it is watched."""
_ZEROS: Final = [0] * SLOTS
ROW: Final = row_struct(c.STEP_COLUMNS)
MOST_COUNT: Final = 0xFFFF_FFFF


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


class PythonSwitch:
    """Where the training thread is, since when, and what each slot of the step has cost so far."""

    __slots__ = (
        "allocated",
        "attention",
        "backwards",
        "begin",
        "clock",
        "cpu_clock",
        "cpu_since",
        "cpu_watch",
        "current",
        "fast_end",
        "fetches",
        "flags",
        "gc_ns",
        "gc_wait_ns",
        "leader",
        "live",
        "live_at",
        "mark",
        "no_forward",
        "reading_due",
        "reserved",
        "row_at",
        "row_end",
        "row_map",
        "row_size",
        "rss",
        "samples",
        "sequence",
        "since",
        "step",
        "switches",
        "thread",
        "tokens",
        "totals",
    )

    def __init__(
        self,
        clock: Callable[[], int] = time.perf_counter_ns,
        cpu_clock: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        self.clock = clock
        self.cpu_clock = cpu_clock
        self.thread = -1  # nobody: every call passes straight through
        self.live: Any = bytearray(1)
        self.live_at = 0
        self.mark: Callable[[int], None] | None = None  # device clock: told which slot just ended
        self.totals = _ZEROS.copy()
        self.current = c.WAIT_START
        self.begin = self.since = clock()
        self.cpu_watch = 0
        self.no_forward = False  # no module call in sight: the gap before backward holds the forward pass
        self.cpu_since = 0
        self.switches = 0
        self.step = self.sequence = self.rss = self.allocated = self.reserved = self.flags = 0
        self.attention = 1  # the next calls need more than the fast path
        self.fast_end = self.leader = self.reading_due = 0
        self.row_map: Any = None
        self.row_at = self.row_end = self.row_size = 0
        self.forget_counts()

    def enter(self, slot: int) -> int:
        """Start `slot` unless a phase is running; returns what `leave` wants, or PASS."""
        if self.current < c.FIRST_USER or get_ident() != self.thread:
            return PASS
        return self.enter_inside(slot)

    def enter_inside(self, slot: int) -> int:
        """Start `slot` inside whatever is current; the caller knows that this is the training thread."""
        now = self.clock()
        outer = self.current
        self.totals[outer] += now - self.since
        self.since = now
        self.current = slot
        self.live[self.live_at] = slot & 255
        self.switches += 1
        if slot == c.BACKWARD:
            self.backwards += 1
        if self.mark is not None:
            self.mark(outer)
        return outer

    def leave(self, outer: int) -> int:
        """End the current slot; returns the time, so that a step can end at this very instant."""
        # zero_grad and the like say nothing about where in the step we are.
        stays = self.current == c.OPTIMIZER or not _IS_WAIT[outer]
        return self.return_to(outer if stays else _AFTER[self.current])

    def return_to(self, outer: int) -> int:
        """End the current slot; we are where we were before, as after an exchange in the script."""
        now = self.clock()
        slot = self.current
        self.totals[slot] += now - self.since
        self.since = now
        if _IS_WAIT[outer] and self.cpu_watch >= CPU_WATCH_FROM and (slot == c.FORWARD or self.no_forward):
            self.cpu_since = self.cpu_clock()
        self.current = outer
        self.live[self.live_at] = outer & 255
        if self.mark is not None:
            self.mark(slot)
        return now

    def enter_compute(self, slot: int) -> int:
        """Like `enter`, for what follows a loss: the gap since the forward pass was the loss.

        A functional loss has no hook. A gap of up to 0.1 ms is taken as loss; of a longer one the
        thread's CPU time is, so that a sleep or a blocking write in the same place stays `wait`.
        """
        outer = self.current
        if outer == c.OPTIMIZER and slot != c.OPTIMIZER and get_ident() == self.thread:
            return self.enter_inside(slot)  # a closure: the training code again
        if outer < c.FIRST_USER or get_ident() != self.thread:
            return PASS
        if outer != c.WAIT_FORWARD and not (slot == c.BACKWARD and _IS_WAIT[outer]):
            return self.enter_inside(slot)
        now = self.clock()
        gap = now - self.since
        if gap <= SHORT_GAP_NS:
            loss = gap
            if self.cpu_watch:
                self.cpu_watch -= 1
        else:
            watched = self.cpu_since != 0
            loss = min(gap, self.cpu_clock() - self.cpu_since) if watched else 0
            self.cpu_watch = min(self.cpu_watch + LONG_GAP_WEIGHT, CPU_WATCH_MOST)
            self.no_forward = outer != c.WAIT_FORWARD
        self.cpu_since = 0
        self.totals[c.FORWARD] += loss
        self.totals[outer] += gap - loss
        self.since = now
        self.current = slot
        self.live[self.live_at] = slot & 255
        self.switches += 1
        if slot == c.BACKWARD:
            self.backwards += 1
        if self.mark is not None:
            self.mark(c.FORWARD if 2 * loss >= gap else outer)
        return outer

    def gradients_ready(self) -> None:
        """A local gradient is ready: up to here it was work, what follows the last one is waiting.

        Any thread may say so (on accelerators the autograd thread does): the training thread is inside
        the backward call and the caller holds the interpreter's lock.
        """
        if self.current not in (c.BACKWARD, c.SYNC):
            return
        now = self.clock()
        self.totals[c.BACKWARD] += now - self.since
        self.since = now
        self.current = c.SYNC
        self.live[self.live_at] = c.SYNC
        if self.mark is not None:
            self.mark(c.BACKWARD)

    def enter_optimizer(self) -> int:
        """Like `enter_compute`; an optimizer may also step inside a backward pass, as gradients get ready."""
        if self.current in (c.BACKWARD, c.SYNC) and get_ident() == self.thread:
            return self.enter_inside(c.OPTIMIZER)
        return self.enter_compute(c.OPTIMIZER)

    def enter_validation(self) -> int:
        """Like `enter`; the time since the previous validation phase belongs to validation too."""
        if self.current != AFTER_VALIDATION:
            return self.enter(c.VALIDATION)
        if get_ident() != self.thread:
            return PASS
        self.current = c.VALIDATION
        self.enter_inside(c.VALIDATION)
        return AFTER_VALIDATION

    def charged(self, slot: int) -> int:
        """What this slot of the running step has been charged so far."""
        return self.totals[slot]

    def flush(self, now: int) -> None:
        """Charge the running slot up to `now` without leaving it."""
        self.totals[self.current] += now - self.since
        self.since = now

    def move(self, source: int, target: int) -> None:
        """What was charged to `source` turns out to have been `target`."""
        self.totals[target] += self.totals[source]
        self.totals[source] = 0

    def fetched(self, samples: int, tokens: int) -> None:
        """A batch of this size came in."""
        self.fetches += 1
        self.samples += samples
        self.tokens += tokens

    def forget_counts(self) -> None:
        """What was counted in this step was not of this step."""
        self.fetches = self.backwards = self.samples = self.tokens = 0
        self.gc_ns = self.gc_wait_ns = 0

    def rows_into(self, buffer: Any, offset: int, end: int, size: int, sequence: int) -> None:
        """From now on rows go here: the next one at `offset`, with the number after `sequence`."""
        fits = size >= ROW.size + SEQUENCE.size and 0 <= offset <= end <= len(buffer)
        if not fits or (end - offset) % size or offset % SEQUENCE.size or size % SEQUENCE.size:
            raise ValueError("the rows do not fit")
        self.row_map = buffer
        self.row_at, self.row_end, self.row_size = offset, end, size
        self.sequence = sequence

    def publish(self, now: int, more_flags: int) -> None:
        """End the step at `now`: write its row, the sequence number last, and begin the next one."""
        if self.row_at >= self.row_end:
            raise ValueError("no room for a row")
        self.flush(now)
        self.move(PENDING_FETCH, c.INPUT)
        self.move(PENDING_EVAL, c.VALIDATION)
        self.move(AFTER_VALIDATION, c.WAIT_OTHER)
        self.step += 1
        self.sequence += 1
        ROW.pack_into(
            self.row_map,
            self.row_at,
            self.step,
            self.begin,
            now,
            *self.totals[: c.RECORDED_SLOTS],
            self.gc_ns,
            self.gc_wait_ns,
            self.rss,
            self.allocated,
            self.reserved,
            min(self.samples, MOST_COUNT),
            min(self.tokens, MOST_COUNT),
            self.flags | more_flags,
            min(self.fetches or self.backwards, MOST_COUNT),
            min(self.switches, MOST_COUNT),
            0,
        )
        SEQUENCE.pack_into(self.row_map, self.row_at + self.row_size - SEQUENCE.size, self.sequence)
        self.row_at += self.row_size
        self.restart(now)

    def leave_step(self, outer: int, optimizer: object) -> int:
        """Leave an optimizer's step: 0 if that ended the training step and its row is written, else the time.

        It is written here when nothing needs a closer look: `fast_end` is set, the optimizer is `leader`, and
        `reading_due` has not come.
        """
        now = self.leave(outer)
        ends = (
            self.fast_end and not self.attention and id(optimizer) == self.leader and now < self.reading_due
        )
        if not ends or self.row_at >= self.row_end or not _IS_WAIT[self.current]:
            return now
        self.publish(now, 0)
        return 0

    def show_in(self, buffer: Any, offset: int) -> None:
        """From now on the current slot can be seen in this byte."""
        self.live, self.live_at = (buffer, offset) if buffer is not None else (bytearray(1), 0)

    def restart(self, now: int) -> None:
        """Begin a new step at `now`."""
        self.totals = _ZEROS.copy()
        self.forget_counts()
        self.begin = self.since = now
        self.switches = 0
        if _IS_WAIT[self.current]:
            self.current = c.WAIT_START


def _load_c_module() -> Any:
    """The C module, set up with the constants of this one; None where it is missing."""
    if os.environ.get("TRACEML_PURE_PYTHON", "0") not in ("", "0"):
        return None
    try:
        from traceml.capture import _switch  # type: ignore[attr-defined]
    except ImportError:
        return None
    _switch.configure(
        *(SLOTS, c.RECORDED_SLOTS, c.FIRST_USER, c.FIRST_WAIT),
        *(AFTER_VALIDATION, PENDING_EVAL, PENDING_FETCH),
        *(c.INPUT, c.FORWARD, c.BACKWARD, c.SYNC, c.OPTIMIZER, c.VALIDATION, c.CHECKPOINT),
        *(c.WAIT_START, c.WAIT_FORWARD, c.WAIT_OTHER),
        *(SHORT_GAP_NS, LONG_GAP_WEIGHT, CPU_WATCH_FROM, CPU_WATCH_MOST),
        *(bytes(_IS_WAIT), bytes(_AFTER), types.MethodType),
    )
    return _switch


c_module: Final[Any] = _load_c_module()
if TYPE_CHECKING:
    Switch = PythonSwitch
else:
    Switch = PythonSwitch if c_module is None else c_module.Switch


def is_in_c() -> bool:
    """Whether the C switch is in use."""
    return c_module is not None
