"""One training process: when it becomes a rank, where its steps begin and end, what a step's row says."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final

from traceml.capture.batch import first_array, size_of
from traceml.capture.device import Device, DeviceClock
from traceml.capture.events import EventLog
from traceml.capture.farewell import close_with_worker, fatal_error
from traceml.capture.gradients import GradientWatch
from traceml.capture.identity import trained_parameters
from traceml.capture.leader import ENDS_STEP, NOTHING, Leader
from traceml.capture.rank import merged, open_recording
from traceml.capture.switch import PASS, PENDING_EVAL, PENDING_FETCH, ROW, Switch, is_wait
from traceml.capture.user_phases import UserPhases
from traceml.errors import failsafe
from traceml.recording import format as fmt
from traceml.recording.writer import RecordingWriter
from traceml.schema import catalog as c

RSS_EVERY_NS: Final = 50_000_000
DEVICE_MEMORY_EVERY_NS: Final = 50_000_000


class Session:
    """The state of capture in this process. Only the training thread changes it."""

    def __init__(self, torch: Any, run_dir: str | None) -> None:
        self.torch = torch
        self.tensor_type = torch.Tensor
        self.run_dir = run_dir
        self.switch = Switch()
        self.measured = 0  # bit a phase whose patches are in
        self.patched: list[tuple[Any, str, Any]] = []
        self.wrapped_optimizers: list[tuple[Any, Any]] = []
        self.outermost: set[type] = set()  # classes of modules that the training loop calls
        self.settling = False  # still learning which modules to wrap
        self.on_step: Callable[[], None] = lambda: None  # then told of each step
        self.on_blind_step: Callable[[], None] = lambda: None  # a step had no forward, or another model
        self.begin()

    @property
    def step(self) -> int:
        """How many steps have completed."""
        return self.switch.step

    def begin(self) -> None:
        """A fresh start: at installation, and again in a forked child, which is its own process."""
        self.switch = _renewed(self.switch)
        self.writer: RecordingWriter | None = None
        self.closed = False
        self.device: Device | None = None
        self.device_clock: DeviceClock | None = None
        self.events = EventLog()
        self.leader = Leader()
        self.attention = True  # the next forward and backward need more than the fast path
        self.stepping = False  # a training step is under way or done: before it is start-up
        self.failed_in, self.failure = c.WAIT_START, 0  # and the exception that is on its way out
        self.aborted = False  # an exception left a phase; the next batch drops the step
        self.block_depth = 0
        self.blocks = False  # trace_step ends the steps
        self.end_after_backward = self.loader_seen = self.forward_seen = self.input_inferred = False
        self.unresolved: list[Any] = []
        self.candidate: Any = None
        self.last_input: Any = None
        self.rss_fd, self.memory_at, self.first_row = -1, 0, b""
        self.sized = False  # how many parameters are trained is on record
        self.user_phases = UserPhases()
        self.gradients = GradientWatch(self.switch)

    def adopt_thread(self) -> bool:
        """Training turns out to run on this thread, not on the one that imported torch."""
        if self.writer is not None or self.switch.thread == -1 or self.run_dir is None:
            return False
        self.switch.thread = threading.get_ident()
        self.switch.current = c.WAIT_START
        self.switch.restart(self.switch.clock())
        return True

    def off(self) -> None:
        """Stop recording for good; every patch passes straight through from now on."""
        self.switch.thread = -1
        if self.writer is not None:
            self.writer.close(fmt.STATE_LOST)

    def role_of(self, iterator: Any) -> int:
        """First fetch of a loader's iterator: evaluation if gradients are off, else not known yet."""
        if not self.torch.is_grad_enabled():
            iterator._traceml_role = c.VALIDATION
            return c.VALIDATION
        if not self.stepping and iterator is not self.candidate:
            # Looking at a batch before training is no step: the step starts with what feeds it.
            self.switch.restart(self.switch.clock())
            self.unresolved.clear()
            self.candidate = iterator
        if iterator not in self.unresolved:
            self.unresolved.append(iterator)
            self.look_closer()
        return PENDING_FETCH

    def loader_starts(self) -> None:
        """`iter(loader)` begins: before training this may be where the first step starts."""
        if not self.stepping:
            self.switch.restart(self.switch.clock())

    def loader_started(self, iterator: Any, began: int, ended: int) -> None:
        """`iter(loader)` returned: worker start-up is input, if this turns out to be training."""
        if not self.torch.is_grad_enabled():
            return
        iterator._traceml_started = (began, ended, getattr(iterator, "_num_workers", 0))
        if not self.stepping:
            self.candidate = iterator

    def fetched(self, batch: Any) -> None:
        """A batch of a loader that is, or may be, the training loader."""
        self.switch.fetched(*size_of(batch))
        if self.leader.undecided:
            self.leader.new_batch()

    def _resolve_fetches(self, role: int) -> None:
        self.switch.move(PENDING_FETCH, role)
        if self.device_clock is not None:
            self.device_clock.rename(PENDING_FETCH, role)
        for iterator in self.unresolved:
            iterator._traceml_role = role
            started = iterator.__dict__.pop("_traceml_started", None)
            if role == c.INPUT and started is not None:
                began, ended, workers = started
                self.events.add("epoch_start", self.step + 1, began, ended - began, workers=workers)
        self.unresolved.clear()
        if role == c.INPUT:
            self.loader_seen = True
        else:
            self.switch.forget_counts()

    def enter_forward(self, module: Any, args: Any, kwargs: Any) -> int:
        """An outermost module call that needs a look: evaluation, a first batch, no loader in sight."""
        switch = self.switch
        if switch.current < c.FIRST_USER or threading.get_ident() != switch.thread:
            return PASS
        if not self.torch.is_grad_enabled():
            if self.unresolved:
                self._resolve_fetches(c.VALIDATION)
            if not self.stepping:  # a sanity check before training is start-up, not part of a step
                self.candidate = None
                switch.restart(switch.clock())
            return switch.enter_validation()
        if not module.training:
            self.look_closer()
            return switch.enter_inside(PENDING_EVAL)
        if self.unresolved:
            self._resolve_fetches(c.INPUT)
        self._training_begins()
        self.forward_seen = True
        if not self.switch.fetches:
            self._infer_input(args, kwargs)
        return switch.enter_compute(c.FORWARD)

    def _training_begins(self) -> None:
        if not self.stepping:
            self.stepping = True
            self.switch.gc_ns = self.switch.gc_wait_ns = 0
            if self.candidate is None:
                self.switch.restart(self.switch.clock())

    def _infer_input(self, args: Any, kwargs: Any) -> None:
        """No loader in sight: the gap before this forward was input, if the data is new."""
        if self.loader_seen:
            return
        array = first_array(args) if args else None
        if array is None:
            array = first_array(kwargs)
        known = self.last_input() if self.last_input is not None else None
        shape: Sequence[int] = getattr(array, "shape", ())
        if len(shape) and self.switch.current in (c.WAIT_START, c.WAIT_BACKWARD):
            self.switch.samples += int(shape[0])
        if array is None or array is known:
            return
        self.last_input = weakref.ref(array)
        place = self.switch.current
        if known is None and self.step == 0:
            return
        if place in (c.WAIT_START, c.WAIT_BACKWARD) and not self.blocks:
            self.switch.flush(self.switch.clock())
            self.switch.move(place, c.INPUT)
            self.input_inferred = True

    def backward_begins(self, tensor: Any) -> None:
        """A backward means training: what was in doubt is input and forward."""
        if self.unresolved:
            self._resolve_fetches(c.INPUT)
        self._training_begins()
        if self.switch.charged(PENDING_EVAL):
            self.switch.move(PENDING_EVAL, c.FORWARD)
            if self.device_clock is not None:
                self.device_clock.rename(PENDING_EVAL, c.FORWARD)
        if self.writer is None:
            self.become_rank(tensor)
        elif self.device is not None:
            self._read_device_memory(self.switch.since)

    def backward_ended(self, now: int) -> None:
        """Optimizers that step inside backward end the step when backward is over."""
        if self.end_after_backward and is_wait(self.switch.current):
            self.end_after_backward = False
            self.end_step(now)

    def optimizer_stepped(self, optimizer: Any, now: int) -> None:
        """An outermost optimizer step returned."""
        if not self.sized:
            self.sized = True
            self.events.add("model", self.step + 1, now, parameters=trained_parameters(optimizer))
        if self.blocks:
            return
        self._training_begins()
        if not is_wait(self.switch.current):
            self.end_after_backward = True
            return
        leads = self.leader.leads
        verdict = self.leader.stepped(optimizer)
        if verdict == NOTHING:
            return
        if self.leader.leads > max(leads, 1):
            self.forward_seen = False  # another training, perhaps with another model
            self.on_blind_step()
        self.end_step(now, extend=verdict != ENDS_STEP)

    def block_enters(self) -> None:
        """`trace_step` opens: an unclaimed gap since the last step was waiting for input."""
        self.block_depth += 1
        if self.block_depth > 1:
            return
        self.blocks = True
        self.look_closer()
        now = self.switch.clock()
        if not self.stepping:
            self.stepping = True
            if self.candidate is None:
                self.switch.restart(now)
        elif not self.switch.fetches and is_wait(self.switch.current):
            self.switch.flush(now)
            self.switch.move(c.WAIT_START, c.INPUT)
            self.input_inferred = True
        if self.writer is None:
            self.become_rank(None)

    def block_exits(self, failed: bool) -> None:
        """`trace_step` closes: the step is over, or aborted by an exception."""
        self.block_depth -= 1
        if self.block_depth:
            return
        if failed:
            self.drop_step()
        else:
            self.end_step(self.switch.clock())

    def phase_failed(self, slot: int, problem: BaseException) -> None:
        """An exception left a phase: if the next batch comes, this step never completed."""
        on_its_way = self.failure == id(problem)
        self.failure = 0 if is_wait(self.switch.current) else id(problem)  # 0: it is out of all phases
        if on_its_way:
            return  # the innermost phase is where it came from
        self.aborted, self.failed_in = self.stepping, slot
        if self.writer is not None:
            fmt.FAILURE.pack_into(self.writer.live, fmt.LIVE_FAILED, self.step + 1, slot)
        self.look_closer()

    def drop_step(self) -> None:
        """The step will never complete: nothing is published, its time is a gap."""
        now = self.switch.clock()
        self.events.add("aborted_step", self.step + 1, now, now - self.switch.begin)
        self.switch.restart(now)
        self.input_inferred = self.aborted = False
        if self.device_clock is not None:
            self.device_clock.drop_step()

    def end_step(self, now: int, extend: bool = False) -> None:
        """Publish the step that ends at `now`. With `extend` the last row is superseded by a longer one."""
        if self.writer is None:
            self.become_rank(None)
            if self.writer is None:
                return
        if self.unresolved:
            self._resolve_fetches(c.INPUT)
        if now >= self.switch.due:
            self._read_rss(now)
        switch = self.switch
        if extend:
            self._extend_first_row(now)
        else:
            if switch.row_at == switch.row_end:
                self.writer.grow()
                self.rows_into_writer(switch.sequence)
            switch.publish(now, c.FLAG_INPUT_INFERRED if self.input_inferred else 0)
        if self.settling or switch.step & (switch.step - 1) == 0 or self.device_clock is not None:
            self._after_step()
        self.input_inferred = self.aborted = False
        # Without a loader every forward is looked at; with a device every backward is.
        self.attention = not self.loader_seen or self.device is not None
        switch.lead = self.leader.only
        self.gradients.step_ended()
        unusual = self.attention or self.settling or self.blocks or self.gradients.learning
        switch.quick = self.forward_seen and not unusual

    def look_closer(self) -> None:
        """Something is unusual: the next forward, backward and end of step take the long way."""
        self.attention = True
        self.switch.quick = False

    def rows_into_writer(self, sequence: int) -> None:
        writer = self.writer
        assert writer is not None
        self.switch.rows_into(writer.map, writer.offset, writer.end, writer.row_size, sequence)

    def _after_step(self) -> None:
        """What not every step needs: the first row kept, device times, the search for modules."""
        if self.step == 1 and self.writer is not None and self.switch.sequence == 1:
            self.first_row = bytes(self.writer.map[: ROW.size])
        if self.device_clock is not None:
            self.device_clock.end_step(self.step, self.switch.current)
        if self.settling:
            self.on_step()
        elif not self.forward_seen:
            self.on_blind_step()  # looked for again at steps 4, 8, 16, ...

    def _extend_first_row(self, now: int) -> None:
        """The first step goes on: another optimizer stepped. A longer row with its number supersedes it."""
        writer, switch = self.writer, self.switch
        assert writer is not None
        scratch = bytearray(writer.row_size)
        writer.offset, writer.count = switch.row_at, switch.sequence
        switch.rows_into(scratch, 0, len(scratch), len(scratch), 0)
        switch.step = 0
        switch.publish(now, 0)
        self.first_row = merged(self.first_row, bytes(scratch[: ROW.size]))
        writer.append_packed(self.first_row)
        self.rows_into_writer(writer.count)

    def become_rank(self, tensor: Any) -> None:
        """The process starts to train: give it a recording. Without a run folder, nothing happens."""
        if self.run_dir is None:
            return
        open_recording(self, tensor)
        close_with_worker(self.close)
        if not self.settling:
            self.on_blind_step()  # a forked child of a process that had learned its own modules

    def use_device(self, device: Device, path: str, header: dict[str, Any]) -> None:
        """Time on this accelerator too: its rows go to a recording of their own."""
        self.device = device
        self.switch.flags |= c.FLAG_DEVICE_MEMORY
        self.switch.allocated, self.switch.reserved = device.memory()
        self.look_closer()
        publish = RecordingWriter(path, c.DEVICE_COLUMNS, header).append
        self.device_clock = DeviceClock(device, publish)
        self.switch.mark = self.device_clock.mark

    def _read_rss(self, now: int) -> None:
        self.switch.due = now + RSS_EVERY_NS
        if self.rss_fd < 0:
            return
        resident = os.pread(self.rss_fd, 64, 0).split(b" ", 2)[1]
        self.switch.rss = int(resident) * _PAGE
        self.switch.flags |= c.FLAG_RSS

    def _read_device_memory(self, now: int) -> None:
        if self.device is not None and now - self.memory_at > DEVICE_MEMORY_EVERY_NS:
            self.memory_at = now
            self.switch.allocated, self.switch.reserved = self.device.memory()

    @failsafe("closing the recording", None)
    def close(self) -> None:
        """At interpreter exit: take what the device has ready, note a fatal error, mark the end."""
        if self.writer is None or self.closed:
            return
        self.closed = True
        error = fatal_error()
        if error is not None:
            during = c.PHASES[self.failed_in].key if self.aborted else None
            self.events.add("error", self.step + 1, time.perf_counter_ns(), message=error, during=during)
        if self.device_clock is not None:
            self.device_clock.poll()
        self.writer.close()


_PAGE: Final = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def _renewed(old: Switch) -> Switch:
    """Reset in place: the patches hold on to this object."""
    old.__init__()  # type: ignore[misc]
    old.thread = threading.get_ident()
    return old
