"""One training process: when it becomes a rank, where its steps begin and end, what a step's row says."""

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from traceml.capture.device import Device, DeviceClock
from traceml.capture.events import EventLog, note_early
from traceml.capture.gradients import GradientWatch
from traceml.capture.inputs import Inputs
from traceml.capture.leading_optimizer import ENDS_STEP, NOTHING, LeadingOptimizer
from traceml.capture.other_thread import OtherThread
from traceml.capture.process_end import Failure, close_with_worker, end_of
from traceml.capture.rank import UserPhases, open_rank, resident_bytes, trained_parameters
from traceml.capture.rows import UnendedSteps, extended, into_writer
from traceml.capture.slots import PASS, PENDING_EVAL, ROW, SKIPPED, TRANSFORM, is_wait
from traceml.capture.switch import Switch, c_module
from traceml.capture.wrap import deep_is_asked, nothing
from traceml.errors import failsafe
from traceml.recording import layout
from traceml.recording.writer import RecordingWriter
from traceml.schema import catalog as c

MEMORY_EVERY_NS: Final = 50_000_000
MEMORY_REST: Final = 1000  # times as long as a reading took: after a sleep that is ten times as long


class Session:
    """The state of capture in this process. Only the training thread changes it.

    Nothing of the user's is kept alive: iterators, batches and optimizers are held by weak references.
    """

    def __init__(self, torch: Any, run_dir: str | None) -> None:
        self.torch = torch
        self.run_dir = run_dir
        self.switch = Switch()
        self.measured = 0  # bit for each phase whose patches are in
        self.missing: list[str] = []  # what this version of torch does not have
        self.patched: list[tuple[Any, str, Any]] = []
        self.compiles = False  # torch.compile has been asked for something
        self.on_device: Callable[[], None] = nothing  # a device is in use: time copies to it
        self.on_no_grad: Callable[[], None] = nothing  # a module is called without gradients, by whom?
        self.on_step: Callable[[Any], None] = nothing  # this optimizer stepped, called by another one?
        self.begin()

    @property
    def step(self) -> int:
        """How many steps have completed."""
        return self.switch.step

    def begin(self) -> None:
        """A fresh start: at installation, and again in a forked child, which is its own process."""
        self.switch.__init__()  # type: ignore[misc]  # in place: the patches hold on to this object
        self.switch.thread = threading.get_ident()
        self.writer: RecordingWriter | None = None
        self.closed = False
        self.device: Device | None = None
        self.device_clock: DeviceClock | None = None
        self.events = EventLog()
        self.leader, self.other_thread = LeadingOptimizer(), OtherThread()
        self.stepping = False  # a training step is under way or done: before it is start-up
        self.failed, self.failure = Failure(), 0  # and the id of an exception on its way out of phases
        self.closures = 0  # of optimizers, which are running
        self.framework_loops = 0  # a framework's loop runs: its optimizer steps are the steps
        self.aborted = False  # an exception left a phase; the next batch drops the step
        self.end_after_backward = False
        self.switch.count_nodes = getattr(self.torch.autograd, "_get_sequence_nr", None)
        self.inputs = Inputs(self.switch, self.torch, self)
        self.memory_due, self.last_row = 0, b""
        self.has_optimizer = self.updated_by_hand = False  # one has stepped; this step did without one
        self.unended = UnendedSteps(self.switch)
        self.user_phases = UserPhases()
        self.gradients = GradientWatch(self.switch)
        self.deep: Any = None

    def adopt_thread(self) -> bool:
        """Training turns out to run on this thread, not on the one that imported torch or trained before."""
        if self.switch.thread == -1 or self.run_dir is None or not self.other_thread.takes_over(self.switch):
            return False
        self.switch.thread = threading.get_ident()
        self.switch.current = c.WAIT_START
        self.switch.restart(self.switch.clock())
        return True

    def off(self) -> None:
        """Stop recording for good; from now on every patch only passes calls on."""
        self.switch.thread = -1
        self.switch.attention = 0
        self.switch.layers = None
        if self.writer is not None and not self.closed:
            self.writer.close(layout.STATE_LOST)

    def note_failure(self, line: str) -> None:
        """A part of capture failed: the summary says so, also if this process never gets a recording."""
        if self.writer is None and self.run_dir is not None:
            note_early(self.run_dir, "capture_failed", line)
        else:
            self.events.add("capture_failed", self.step + 1, time.perf_counter_ns(), message=line)

    def look_closer(self) -> None:
        """Something is unusual: the next forward, backward, fetch and end of step use the slow path."""
        self.switch.attention = 1

    def loader_starts(self) -> None:
        """`iter(loader)` begins: before training this may be where the first step starts."""
        if self.inputs.used:
            self.inputs.resolve(c.VALIDATION)
        if self.aborted:
            self.drop_step()
        if not self.stepping:
            self.restart()

    def fetch_begins(self, iterator: Any) -> int:
        """A batch is asked for; returns its role. A step that failed, or that a newcomer ended, is over."""
        inputs = self.inputs
        role = inputs.role_of(iterator)
        if role in (c.VALIDATION, SKIPPED):
            self.look_closer()
            return role
        if self.aborted:
            self.drop_step()
        elif self.leader.new_batch() == ENDS_STEP and not self.switch.blocks and is_wait(self.switch.current):
            self.end_step(self.switch.clock())
        else:
            self._end_without_optimizer()
        return role if role is not None else inputs.open(iterator, self.stepping)

    def fetch_stopped(self, iterator: Any) -> None:
        """The iterator has no more batches: if they were used without gradients only, it was validation."""
        if self.inputs.used and self.inputs.is_open(iterator):
            self.inputs.resolve(c.VALIDATION)

    def rename(self, source: int, target: int) -> None:
        """What this step charged to `source` turns out to have been `target`."""
        self.switch.move(source, target)
        if self.device_clock is not None:
            self.device_clock.rename(source, target)

    def enter_forward(self, module: Any, args: Any, kwargs: Any) -> int:
        """An outermost module call that needs a look: evaluation, a first batch, no loader in sight."""
        switch = self.switch
        in_closure = switch.current == c.OPTIMIZER
        if (switch.current < c.FIRST_USER and not in_closure) or threading.get_ident() != switch.thread:
            return PASS
        if in_closure:
            return switch.enter_compute(c.FORWARD)
        if not self.torch.is_grad_enabled():
            self.on_no_grad()
            return self.inputs.enter_without_gradients(module, args, self.has_optimizer)
        if not getattr(module, "training", True):
            if self.inputs.feeds_validation:
                return switch.enter_validation()
            self.inputs.used = bool(self.inputs.unresolved)
            self.inputs.note_evaluated(module)
            self.look_closer()
            return switch.enter_inside(PENDING_EVAL)
        self._model_trains()
        self.inputs.note_trained(module)
        return self.enter_with_data(c.FORWARD, args, kwargs)

    def enter_with_data(self, slot: int, args: Any, kwargs: Any) -> int:
        """Forward work begins: where no loader is known, its data tell whether they were just made."""
        switch, place = self.switch, 0
        if not self.inputs.has_loader and switch.current != TRANSFORM:
            data = (args, kwargs, self.step == 0, bool(switch.blocks))
            self._end_without_optimizer(*data)
            if not switch.fetches and not switch.forwards:
                place = self.inputs.infer(*data)
        return self.inputs.enter_after(place, slot)

    def _model_trains(self) -> None:
        """A forward pass with gradients, or a backward pass: what is open was for the training."""
        if self.inputs.unresolved:
            self.inputs.resolve(c.INPUT)
        self.inputs.feeds_validation = False
        self._training_begins()

    def _training_begins(self) -> None:
        if self.stepping:
            return
        self.stepping = True
        self.switch.gc_ns = self.switch.gc_wait_ns = 0
        if self.inputs.candidate is None:
            self.restart()

    def restart(self) -> None:
        """The step begins here. What was before it counts as start-up, validation among it by name."""
        self._note_validation()
        self.switch.restart(self.switch.clock())

    def _note_validation(self) -> None:
        """Validation that is part of no completed step is an event."""
        if took := self.switch.charged(c.VALIDATION):
            self.events.add("validation", self.step, self.switch.clock() - took, took)

    def backward_begins(self, tensor: Any) -> None:
        """A backward means training: what was in doubt is input and forward."""
        self._model_trains()
        self.switch.backwards = max(self.switch.backwards, 1)  # a first step that begins here has this one
        if self.switch.watching and not self.inputs.has_loader:
            self.inputs.early.look()
        if self.switch.charged(PENDING_EVAL):
            self.rename(PENDING_EVAL, c.FORWARD)
        if self.writer is None:
            self.become_rank(tensor)
        elif self.device is not None and self.switch.since >= self.memory_due:
            # Here activations are all alive: what is in use now stands for the step's peak.
            self.memory_due = self.switch.since + MEMORY_EVERY_NS
            self.switch.allocated, self.switch.reserved = self.device.memory()

    def backward_ended(self) -> None:
        """A step ends here if its optimizer steps inside backward, or nothing else shows where one ends."""
        switch = self.switch
        if self.end_after_backward and is_wait(switch.current):
            self.end_after_backward = False
            self.end_step(switch.since)
        elif not (self.inputs.has_loader or switch.forwards or switch.fetches):
            self._end_without_optimizer()

    def optimizer_stepped(self, optimizer: Any, now: int) -> None:
        """An outermost optimizer step returned."""
        if not self.has_optimizer:
            self.has_optimizer = True
            self.switch.flags |= self.measured & (1 << c.OPTIMIZER)
            self.events.add("model", self.step + 1, now, parameters=trained_parameters(optimizer))
        self.on_step(optimizer)
        if self.switch.blocks:
            return
        self._training_begins()
        if self.unended:
            self.last_row, self.switch.step = self.unended.take_as_one(), 1
            self.leader.stepped(optimizer)
            self.end_step(now, extend=True)
            return
        if not is_wait(self.switch.current):
            self.end_after_backward = True
            self.look_closer()
            return
        fetched, backwards = self.switch.fetches > 0, self.switch.backwards
        verdict = self.leader.stepped(optimizer, fetched, has_own_backward=not fetched and backwards > 0)
        if verdict == NOTHING:
            self.look_closer()
        else:
            self.end_step(now, extend=verdict != ENDS_STEP)

    def phase_failed(self, slot: int, problem: BaseException) -> None:
        """An exception left a phase: if the next batch comes, this step never completed."""
        on_its_way = self.failure == id(problem)
        self.failure = 0 if is_wait(self.switch.current) and not self.closures else id(problem)
        if on_its_way:
            return  # the innermost phase is where it came from
        self.failed = Failure(self.step, id(problem), slot)
        if slot in (c.INPUT, c.VALIDATION, c.CHECKPOINT):
            return  # what the step did so far stands
        self.aborted = self.stepping
        if self.writer is not None:
            layout.FAILURE.pack_into(self.writer.live, layout.LIVE_FAILED, self.step + 1, slot)
        self.look_closer()

    def _end_without_optimizer(self, *data: Any) -> None:
        """The next batch, or a pass with this data, begins; no optimizer ever followed a backward pass."""
        switch = self.switch
        inside = self.switch.blocks or self.closures or not is_wait(switch.current)
        if self.has_optimizer or self.writer is None or inside or not switch.backwards:
            return
        if data and self.updated_by_hand:
            self.inputs.infer_after_update(*data)
        optimizer = self.measured & (1 << c.OPTIMIZER)
        switch.flags = switch.flags | optimizer if self.updated_by_hand else switch.flags & ~optimizer
        self.updated_by_hand = False
        if self.unended.are_steps:
            self.end_step(switch.clock())
        else:
            self.unended.keep(self.writer)
        self.look_closer()

    def drop_step(self) -> None:
        """The step will never complete: nothing is published, its time is a gap."""
        now = self.switch.clock()
        self.events.add("aborted_step", self.step + 1, now, now - self.switch.begin)
        self.switch.restart(now)
        self.aborted = False
        if self.device_clock is not None:
            self.device_clock.drop_step()

    def end_step(self, now: int, extend: bool = False) -> None:
        """Publish the step that ends at `now`. With `extend` the last row is superseded by a longer one."""
        if self.writer is None:
            self.become_rank(None)
        if self.writer is None:
            return
        switch = self.switch
        if c_module is not None and c_module.was_truncated():
            raise OSError(f"{self.writer.path} was truncated by another program")
        if self.inputs.unresolved:
            self.inputs.resolve(c.INPUT)
        if self.leader.took_over:
            self.leader.took_over = False
            self.events.add("new_optimizer", self.step + 1, now)
        if now >= switch.reading_due:
            self._read_memory(now)
        if extend:
            self.last_row = extended(self.last_row, switch, self.writer, now)
        else:
            if switch.row_at == switch.row_end:
                self.writer.grow()
                into_writer(switch, self.writer, switch.sequence)
            inferred = c.FLAG_STEP_INFERRED if self.unended.are_steps and not self.has_optimizer else 0
            switch.publish(now, inferred)
        if switch.sequence == 1 or (self.leader.may_grow and not self.leader.undecided):
            last = switch.row_at - self.writer.row_size
            self.last_row = ROW.pack(*ROW.unpack_from(self.writer.map, last))
        if self.device_clock is not None:
            self.device_clock.end_step(self.step, switch.current)
        self.aborted = False
        self.gradients.step_ended()
        self._choose_path(now)
        if self.deep is not None:
            self.deep.step_ended(now)

    def _choose_path(self, now: int) -> None:
        """What the calls of the next step need: C alone, or a look."""
        switch, inputs = self.switch, self.inputs
        # Without a loader, the first forward pass of each step tells whether the data is new.
        switch.look_first = not inputs.has_loader
        memory_is_due = self.device is not None and now >= self.memory_due
        is_inferred = not (self.has_optimizer or switch.blocks)
        looks_for_batches = switch.watching and not inputs.has_loader and inputs.early.learning
        switch.attention = bool(memory_is_due or is_inferred or looks_for_batches)
        switch.leader = self.leader.only
        switch.fast_end = not (self.gradients.learning or self.device_clock is not None)

    def become_rank(self, tensor: Any) -> None:
        """The process starts to train: give it a recording. Without a run folder, nothing happens."""
        if self.run_dir is None:
            return
        self.switch.thread = threading.get_ident()
        rank = open_rank(self.torch, self.run_dir, tensor, self.measured, self.missing)
        self.writer = rank.writer
        self.switch.flags = rank.measured
        into_writer(self.switch, rank.writer, 0)
        self.switch.show_in(rank.writer.live, layout.LIVE_PHASE)
        self.other_thread.show_in(rank.writer.live)
        self.events.open(rank.stem + ".events.jsonl")
        self.user_phases.use(rank.writer)
        if rank.device is not None:
            self.use_device(rank.device, rank.stem + ".device", {**rank.header, "kind": "device"})
        close_with_worker(self.close)
        if deep_is_asked():
            from traceml.capture.deep import start

            self.deep = start(self.torch, self.switch, self.device, rank.stem)

    def use_device(self, device: Device, path: str, header: dict[str, Any]) -> None:
        """Time on this accelerator too: its rows go to a recording of their own."""
        self.device = device
        self.switch.flags |= c.FLAG_DEVICE_MEMORY
        self.switch.allocated, self.switch.reserved = device.memory()
        self.look_closer()
        publish = RecordingWriter(path, c.DEVICE_COLUMNS, header).append
        self.device_clock = DeviceClock(device, publish, self._device_failed)
        self.switch.mark = self.device_clock.mark
        self.on_device()

    def _device_failed(self) -> None:
        """The device's clock does not work here: go on with the host's alone."""
        self.switch.mark = None
        self.device = self.device_clock = None

    def _read_memory(self, now: int) -> None:
        began = time.thread_time_ns()  # what we wait for a core is not what a reading costs
        resident = resident_bytes()
        took = time.thread_time_ns() - began
        self.switch.reading_due = now + max(MEMORY_EVERY_NS, MEMORY_REST * took)
        if resident is not None:
            self.switch.rss = resident
            self.switch.flags |= c.FLAG_RSS

    @failsafe("closing the recording", None)
    def close(self) -> None:
        """At interpreter exit: take what the device has ready, note a fatal error, mark the end."""
        if self.writer is None or self.closed:
            return
        self.closed = True
        if self.inputs.used:
            self.inputs.resolve(c.VALIDATION)
        self._end_without_optimizer()
        self._note_validation()
        if self.leader.other_steps:
            self.events.add("optimizers", self.step, time.perf_counter_ns(), message=self.leader.describe())
        if self.unended:
            self.unended.publish(self.writer)
        if (error := end_of(self.step, self.failed)) is not None:
            self.events.add("error", self.step + 1, time.perf_counter_ns(), **error)
        if self.device_clock is not None:
            self.device_clock.poll()
        self.writer.close()
