"""The phase switch: at every instant the training thread is in exactly one slot.

Entering a phase charges the time since the last switch to the slot that was current; leaving restores
the outer one. So nested phases are exclusive, and the slots of a step add up to its wall time.
"""

from __future__ import annotations

import os
import resource
import struct
import sys
import time
import types
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

from traceml.capture import slots
from traceml.capture.slots import IS_WAIT, PASS, ROW
from traceml.recording.layout import SEQUENCE
from traceml.schema import catalog as c

_ZEROS: Final = [0] * slots.SLOTS


def thread_use() -> tuple[int, int]:
    """CPU time of this thread in ns, and how often it has blocked; -1 where that is not counted."""
    is_counted = hasattr(resource, "RUSAGE_THREAD")  # its CPU time is up to a tick late
    return time.thread_time_ns(), resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw if is_counted else -1


class _Unusual:
    """Rarely used parts of a switch, written here for the one in C, too."""

    __slots__ = ()

    def enter_optimizer(self: Any) -> int:
        """Like `enter_compute`; an optimizer may also step inside a backward pass, as gradients get ready."""
        if self.current in (c.BACKWARD, c.SYNC) and get_ident() == self.thread:
            return self.enter_inside(c.OPTIMIZER)
        return self.enter_compute(c.OPTIMIZER)

    def enter_validation(self: Any) -> int:
        """Like `enter`; the time since the previous validation phase belongs to validation too."""
        return self._enter_after(slots.AFTER_VALIDATION, c.VALIDATION, c.VALIDATION)

    def enter_pending(self: Any) -> int:
        """A forward pass without gradients whose purpose is not known yet."""
        return self._enter_after(slots.AFTER_PENDING, slots.PENDING_GAP, slots.PENDING_NO_GRAD)

    def _enter_after(self: Any, place: int, gap_slot: int, slot: int) -> int:
        if self.current != place:
            return self.enter(slot)
        if get_ident() != self.thread:
            return PASS
        self.current = gap_slot
        self.enter_inside(slot)
        return place


class PythonSwitch(_Unusual):
    """Where the training thread is, since when, and what each slot of the step has cost so far."""

    def __init__(
        self,
        clock: Callable[[], int] = time.perf_counter_ns,
        thread_clock: Callable[[], tuple[int, int]] = thread_use,
    ) -> None:
        self.clock, self.thread_clock = clock, thread_clock
        self.count_nodes: Callable[[], int] | None = None  # operations that autograd has recorded so far
        self.thread = -1  # none: every call passes straight through
        self.show_in(bytearray(1), 0)
        self.mark: Callable[[int], None] | None = None  # device clock: called with the slot that just ended
        self.totals, self.current = _ZEROS.copy(), c.WAIT_START
        self.begin = self.since = clock()
        self.watch = [slots.WATCH_AT_FIRST] * slots.PLACES  # how often each place had long gaps
        self.watching = 0  # places whose gaps are watched
        self.looks = False  # what watched gaps use is read in this step
        self.looks_left = 0  # in this many steps in a row; below 0, in one of slots.LOOK_EVERY
        self.long_ns = self.span_ns = 0  # of the last steps, and in gaps above slots.LOOK_ALWAYS_NS
        # Of the gaps that were read, by place and whether the model follows: time, of it busy, of it work.
        self.uses = [[0.0, 0.0, 0.0] for _ in range(2 * slots.PLACES)]
        self.is_watched = False  # the running gap is, and so it began with these
        self.cpu_since = self.blocked_since = self.nodes_since = 0
        self.phase_slot = 0  # the pass that is timed, to learn what one of its operations takes
        self.phase_began = self.phase_nodes = self.step_nodes = 0
        self.node_forward = self.node_backward = 0.0  # ns of a typical operation of the model
        self.switches = self.step = self.sequence = self.rss = self.allocated = self.reserved = self.flags = 0
        self.attention = 1  # the next calls need more than the fast path
        self.look_first = 0  # so does the first forward pass of each step
        self.loader = self.first_start = 0  # for C: the last training iterator; when a sampled call began
        self.blocks = self.block_depth = 0  # `trace_step` ends the steps, optimizers do not
        self.step_flags = 0  # of the running step
        self.input_from = 0  # the wait place whose time is input, if it is not 0
        self.gradients = 0  # that were ready, of parameters with our hook; set to 0 by whoever asks
        self.fast_end = self.leader = self.reading_due = 0
        self.visit = sys.maxsize  # steps before this one need no Python
        self.layers: Any = None  # in a sampled step of deep mode: (begin, end) of modules, of backward passes
        self.row_map: Any = None
        self.row_at = self.row_end = self.row_size = 0
        self._forget_counts()

    def enter(self, slot: int) -> int:
        """Start `slot` unless a phase is running; returns what `leave` wants, or PASS."""
        if self.current < c.FIRST_USER or get_ident() != self.thread:
            return PASS
        return self.enter_inside(slot)

    def enter_inside(self, slot: int) -> int:
        """Start `slot` inside whatever is current; the caller knows that this is the training thread."""
        now = self.clock()
        outer = self.current
        if IS_WAIT[outer]:
            self._end_gap(now, -1)
        self.totals[outer] += now - self.since
        return self._start(now, slot, outer)

    def _start(self, now: int, slot: int, charged: int) -> int:
        """Begin `slot` at `now`; `charged` is the slot that the device clock charges the time before to."""
        outer = self.current
        self.since, self.current, self.is_watched = now, slot, False
        self.live[self.live_at] = slot & 255
        self.switches += 1
        if slot == c.FORWARD:
            self.forwards += 1
        elif slot == c.BACKWARD:
            self.backwards += 1
        if self.looks and slot in (c.FORWARD, c.BACKWARD):
            self.phase_slot, self.phase_began, self.phase_nodes = slot, now, self._nodes()
        if self.mark is not None:
            self.mark(charged)
        return outer

    def leave(self, outer: int) -> int:
        """End the current slot; returns the time, so that a step can end at this very instant."""
        # zero_grad and the like say nothing about where in the step we are.
        stays = self.current == c.OPTIMIZER or not IS_WAIT[outer]
        return self.return_to(outer if stays else slots.AFTER[self.current])

    def return_to(self, outer: int) -> int:
        """End the current slot; we are where we were before, as after an exchange in the script."""
        now = self.clock()
        slot = self.current
        self.totals[slot] += now - self.since
        self.since = now
        self.current = outer
        if IS_WAIT[outer]:
            if self.phase_slot:
                self._learn_node(now)
            self._begin_gap()
        self.live[self.live_at] = outer & 255
        if self.mark is not None:
            self.mark(slot)
        return now

    def _nodes(self) -> int:
        return self.count_nodes() if self.count_nodes is not None else 0

    def _nodes_after(self, nodes: int) -> int:
        """Operations since then; one if they cannot be counted, so that times are compared as a whole."""
        return self._nodes() - nodes if self.count_nodes is not None else 1

    def _learn_node(self, now: int) -> None:
        """How long one operation that autograd records takes, in a forward or in a backward pass."""
        if self.phase_slot == c.FORWARD:
            self.node_forward = (now - self.phase_began) / max(self._nodes_after(self.phase_nodes), 1)
        else:
            count = self.phase_nodes - self.step_nodes
            self.node_backward = (now - self.phase_began) / max(count, 1)
            self.step_nodes = self.phase_nodes
        self.phase_slot = 0

    def _begin_gap(self) -> None:
        if self.looks and self.watch[self.current - c.FIRST_WAIT] >= slots.WATCH_FROM:
            self.is_watched = True
            self.cpu_since, self.blocked_since = self.thread_clock()
            self.nodes_since = self._nodes()

    def _end_gap(self, now: int, before: int) -> int:
        """The gap in a wait place is over; returns how much of it was part of the model's work.

        `before` is what follows: a forward pass, or a backward pass or an optimizer, or -1 for anything
        else. Of a long gap, the time in which the thread ran counts as the model's as far as operations that
        autograd recorded in it can explain it: a sleep or a blocking write stays `wait`, and so does making a
        batch. A thread that never blocked ran or lacked a core, which is shared in proportion.
        """
        gap, place = now - self.since, self.current - c.FIRST_WAIT
        if gap <= slots.SHORT_GAP_NS:
            work = gap if before == c.BACKWARD or (before >= 0 and self.current == c.WAIT_FORWARD) else 0
            self.busy_wait_ns += gap - work
            return self._watch_less(place, work)
        busy, work, is_short = self._use_of_gap(gap, place, before)
        self.busy_wait_ns += busy - work
        if is_short:
            return self._watch_less(place, work)
        self.long_ns += gap if gap >= slots.LOOK_ALWAYS_NS else 0
        seen = self.watch[place]
        self.watch[place] = min(seen + slots.LONG_GAP_WEIGHT, slots.WATCH_MOST)
        if seen < slots.WATCH_FROM <= self.watch[place]:
            self.watching += 1
            self.looks_left = slots.LOOK_ON
        return work

    def _watch_less(self, place: int, work: int) -> int:
        if self.watch[place]:
            self.watch[place] -= 1
            self.watching -= self.watch[place] == slots.WATCH_FROM - 1
        return work

    def _use_of_gap(self, gap: int, place: int, before: int) -> tuple[int, int, bool]:
        """How long the thread ran in a long gap, how much of that was the model's work, and whether the gap
        is short but for a lost core: the kernel takes cores away after system calls, so where we watch."""
        work, use = 0, self.uses[2 * place + (before >= 0)]
        if self.is_watched:
            cpu, blocked = self.thread_clock()
            ran = cpu - self.cpu_since
            was_ready = 0 <= blocked == self.blocked_since  # whenever it did not run
            busy = gap if was_ready else min(gap, ran)
            if before >= 0:
                node_ns = max(self.node_forward, self.node_backward) * slots.NODE_FACTORS[before != c.FORWARD]
                allowed = self._nodes_after(self.nodes_since) * node_ns
                work = busy if allowed >= ran else int(busy * (allowed / ran))
            if gap < slots.LOOK_ALWAYS_NS:
                use[:] = use[0] + gap, use[1] + busy, use[2] + work
            return busy, work, was_ready and ran <= slots.SHORT_GAP_NS
        if self.looks or self.watch[place] < slots.WATCH_FROM or not use[0]:
            return 0, 0, False
        alike = min(gap, slots.LOOK_ALWAYS_NS)
        return int(alike * (use[1] / use[0])), int(alike * (use[2] / use[0])), False

    def enter_compute(self, slot: int) -> int:
        """Like `enter`, for the model's own work: a part of the gap before it may belong to the model too.

        A functional loss has no hook, and neither have operations between the modules of a model whose
        `forward` is called directly. After a forward pass a gap of up to 0.1 ms is taken as loss.
        """
        outer = self.current
        if outer == c.OPTIMIZER and slot != c.OPTIMIZER and get_ident() == self.thread:
            return self.enter_inside(slot)  # a closure: the training code again
        if outer < c.FIRST_USER or get_ident() != self.thread:
            return PASS
        if not IS_WAIT[outer]:
            return self.enter_inside(slot)
        now = self.clock()
        gap = now - self.since
        work = self._end_gap(now, slot)
        self.totals[c.FORWARD] += work
        self.totals[outer] += gap - work
        return self._start(now, slot, c.FORWARD if 2 * work >= gap else outer)

    def gradient_ready(self, _parameter: object) -> None:
        """A hook on parameters: up to here it was work, what follows the last one is waiting. Any thread may
        say so, as the autograd thread does: the training thread is inside backward, the caller has the lock.
        """
        self.gradients += 1
        if self.current not in (c.BACKWARD, c.SYNC):
            return
        now = self.clock()
        self.totals[c.BACKWARD] += now - self.since
        self.since = now
        self.current = c.SYNC
        self.live[self.live_at] = c.SYNC
        if self.mark is not None:
            self.mark(c.BACKWARD)

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

    def _forget_counts(self) -> None:
        self.fetches = self.forwards = self.backwards = self.samples = self.tokens = 0
        self.gc_ns = self.gc_wait_ns = self.busy_wait_ns = 0

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
        if now > self.since and IS_WAIT[self.current]:
            self._end_gap(now, -1)
        self.flush(now)
        for source, target in slots.LEFT_OVER:
            self.move(source, target)
        if self.input_from and self.totals[self.input_from]:
            self.move(self.input_from, c.INPUT)
            self.step_flags |= c.FLAG_INPUT_INFERRED
        self.step += 1
        self.sequence += 1
        flags, micro_batches = self.flags | self.step_flags | more_flags, self.fetches or self.backwards
        times = (self.busy_wait_ns // 1000, self.gc_ns // 1000, self.gc_wait_ns // 1000)
        counts = self.samples, self.tokens, flags, micro_batches, self.switches, *times
        halves = [min(count, slots.MOST_COUNT) for count in counts]
        words = *self.totals[: c.RECORDED_SLOTS], self.rss, self.allocated, self.reserved
        ROW.pack_into(self.row_map, self.row_at, self.step, self.begin, now, *words, *halves)
        SEQUENCE.pack_into(self.row_map, self.row_at + self.row_size - SEQUENCE.size, self.sequence)
        self.row_at += self.row_size
        self.restart(now)

    def ends_step(self, optimizer: object) -> bool:
        """An optimizer's step was left just now. Whether nothing is left to do: its row is written.

        That is so when nothing needs a closer look: `fast_end` is set, the optimizer is `leader`, and
        `reading_due` has not come. In a `trace_step` block an optimizer ends no step.
        """
        if self.attention or self.blocks:
            return not self.attention
        is_due = self.since >= self.reading_due or self.step + 1 >= self.visit
        if not self.fast_end or id(optimizer) != self.leader or is_due:
            return False
        if self.row_at >= self.row_end or not IS_WAIT[self.current]:
            return False
        self.publish(self.since, 0)
        return True

    def show_in(self, buffer: Any, offset: int) -> None:
        """From now on the current slot can be seen in this byte."""
        self.live, self.live_at = buffer, offset

    def restart(self, now: int) -> None:
        """Begin a new step at `now`."""
        self.totals = _ZEROS.copy()
        self._forget_counts()
        began, self.begin, self.since = self.begin, now, now
        self.switches = self.step_flags = 0
        if self.watching:
            self.looks_left -= 1
            self.long_ns -= self.long_ns >> slots.LOOK_FADE
            self.span_ns += max(now - began, 0) - (self.span_ns >> slots.LOOK_FADE)
        is_due = self.looks_left > 0 or self.looks_left % slots.LOOK_EVERY == 0
        self.looks = self.watching > 0 and (is_due or self.long_ns * slots.LOOK_SHARE > self.span_ns)
        if self.looks:  # what was read in the steps before counts half as much as what will be
            self.uses = [[used / 2 for used in use] for use in self.uses]
        if IS_WAIT[self.current]:
            self.is_watched, self.live[self.live_at] = False, c.WAIT_START
            self.current = c.WAIT_START
            if self.looks:
                self._begin_gap()
                self.step_nodes = self._nodes()


def _load_c_module() -> Any:
    """The C module, set up with our constants; None where it is missing and Python does the work."""
    if os.environ.get("TRACEML_PURE_PYTHON", "0") not in ("", "0"):
        return None
    try:
        from traceml.capture import _switch  # type: ignore[attr-defined]
    except ImportError:
        return None
    numbers = (  # in the order of `cfg` in _switch.c
        *(slots.SLOTS, c.RECORDED_SLOTS, c.FIRST_USER, c.FIRST_WAIT, slots.PENDING_GAP),
        *(c.INPUT, c.FORWARD, c.NO_GRAD, c.BACKWARD, c.SYNC, c.OPTIMIZER, c.VALIDATION, c.CHECKPOINT),
        *(c.WAIT_START, c.WAIT_FORWARD, slots.SHORT_GAP_NS, slots.LONG_GAP_WEIGHT),
        *(slots.WATCH_AT_FIRST, slots.WATCH_FROM, slots.WATCH_MOST),
        *(slots.LOOK_ALWAYS_NS, slots.LOOK_EVERY, slots.LOOK_ON, slots.LOOK_FADE, slots.LOOK_SHARE),
        c.FLAG_INPUT_INFERRED,
    )
    left_over = bytes(slot % slots.SLOTS for pair in slots.LEFT_OVER for slot in pair)
    tables = (*slots.NODE_FACTORS, bytes(IS_WAIT), bytes(slots.AFTER), left_over, len(left_over))
    try:
        _switch.configure(struct.pack(f"{len(numbers)}i2d64s64s16si", *numbers, *tables), types.MethodType)
    except (TypeError, ValueError):
        return None  # it was built from other sources, as in a checkout that was updated
    return _switch


c_module: Final[Any] = _load_c_module()
if TYPE_CHECKING or c_module is None:
    Switch = PythonSwitch
else:

    class Switch(_Unusual, c_module.Switch):
        """The switch in C."""

        __slots__ = ()
