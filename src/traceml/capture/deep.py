"""Deep mode: times and memory of layers, sampled. Imported only if it was asked for.

In a sampled step the seams of `Module.__call__` and of backward call a `Sample`; in other steps they do not.
How often a step is sampled follows from what a sample costs here.
"""

import atexit
import functools
import json
import os
import types
from collections import deque
from statistics import median
from time import thread_time_ns
from typing import Any, Final

from traceml.capture import deep_layers, deep_sample
from traceml.capture.deep_layers import Enclosing, can_read_saved
from traceml.capture.deep_sample import Sample, Settled
from traceml.capture.device import Device
from traceml.capture.events import append
from traceml.capture.switch import Switch
from traceml.errors import failsafe, say_once

TARGET_SHARE: Final = 0.006
"""The share of training time that samples may cost. It is a third of what is promised, because not all of a
sample's cost can be timed."""
FIRST_STEP: Final = 4
LEAST_EVERY: Final = 8
PER_DOUBLING: Final = 16
"""How many samples are taken each time that the run doubles its length. So the recording of a long run stays
small."""
RECENT: Final = 5
"""Samples whose cost, and steps between them, decide how often to sample: a busy machine has outliers."""
MOST_PENDING: Final = 4
MOST_BUSY: Final = 8
"""The factor by which a busy machine may make a step longer. More than this is not believed."""
LONGEST_BREAK: Final = 16
"""The longest break after failures in a row, as a power of two of steps."""


class Deep:
    """Decides which steps are sampled, and writes what they show."""

    def __init__(self, torch: Any, switch: Switch, device: Device | None, path: str) -> None:
        self._torch, self._switch, self._device, self._path = torch, switch, device, path
        self._enclosing = Enclosing(torch.nn.Module)
        self._sample: Sample | None = None
        self._before = (switch.step, switch.clock(), core_wait_ns())  # at the end of the last sampled step
        self._every, self._failures, self._pid = LEAST_EVERY, 0, os.getpid()
        self._costs: deque[int] = deque(maxlen=RECENT)
        self._steps: deque[int] = deque(maxlen=RECENT)
        self._is_off = False
        self._table: dict[str, list[Any]] = {}
        self._tables = 0
        self._pending: deque[Settled] = deque()
        self._next = max(switch.step + 2, FIRST_STEP)
        switch.visit = self._next - 1
        self.step_ended = failsafe("deep mode", None, self._stop)(self._step_ended)

    def _stop(self) -> None:
        """Stop deep mode for good, because something of ours does not work here."""
        self._is_off, self._switch.layers, self._switch.visit = True, None, 2**62
        self.step_ended = lambda _now: None

    def _step_ended(self, _now: int) -> None:
        """A step is over: the next one may be one to sample; this one may have been."""
        switch = self._switch
        if self._sample is not None:
            self._finish()
        if self._sample is None and switch.step + 1 >= self._next and not self._is_capturing():
            self._sample = Sample(self._torch, switch, self._device, self._enclosing)
            switch.layers = self._sample.callbacks
        switch.visit = self._next if self._sample is not None else self._next - 1

    def _is_capturing(self) -> bool:
        return self._device is not None and self._device.is_capturing()

    def _finish(self) -> None:
        """The sampled step is over."""
        switch, sample = self._switch, self._sample
        assert sample is not None
        switch.layers, self._sample = None, None
        if sample.failed or not sample.modules:
            self._failures += 1  # an exception of the script, or something that stays: ask ever more rarely
            self._next = switch.step + (1 << min(self._failures, LONGEST_BREAK))
            return
        self._failures = 0
        busy = thread_time_ns()
        settled = Settled(sample, switch.step, self._every)
        self._pending.append(settled)
        while self._pending and (self._pending[0].is_ready or len(self._pending) > MOST_PENDING):
            ready = self._pending.popleft()
            if ready.is_ready:
                self._write(ready)
        self._costs.append(settled.own_ns + thread_time_ns() - busy)
        self._plan()

    def _plan(self) -> None:
        """A power of two, and steps that are a multiple of it: ranks that choose differently still meet."""
        steps, (step, time, waited) = self._switch.step, self._before
        self._before = (steps, now := self._switch.clock(), waits := core_wait_ns())
        took = max(now - time - (waits - waited), (now - time) // MOST_BUSY, 1)
        self._steps.append(max(took // max(steps - step, 1), 1))
        cost, step_ns = median(self._costs), median(self._steps)
        wanted = max(cost / (TARGET_SHARE * step_ns), steps / PER_DOUBLING, LEAST_EVERY)
        self._every = 1 << (int(wanted) - 1).bit_length()
        self._next = (steps // self._every + 1) * self._every

    def _write(self, settled: Settled) -> None:
        """One line, and before it the names of the layers if they have changed."""
        columns = settled.columns()
        if columns is None:
            return
        table, lines = settled.layers.table(), []
        if table != self._table:
            self._table, self._tables = table, self._tables + 1
            clock = "host" if self._device is None else "device"
            about = {"table": self._tables, "clock": clock, "reads_saved": can_read_saved(self._torch)}
            lines.append(about | table)
        about = {"of": self._tables, "step": settled.step, "every": settled.every}
        lines.append(about | {"own_ns": self._costs[-1] if self._costs else settled.own_ns} | columns)
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        append(self._path, text.encode())

    def close(self) -> None:
        """At the end: what the device has ready by now."""
        if os.getpid() != self._pid or self._is_off:
            return  # a forked child, or something failed and has been reported
        self._switch.layers = None
        for settled in self._pending:
            if settled.is_ready:
                self._write(settled)
        self._pending.clear()
        if not self._tables:
            say_once("deep mode saw no layers: the run was too short, or calls no modules with gradients on")


def core_wait_ns() -> int:
    """How long this thread has waited for a core so far. Other work must not make our share of the time look
    small."""
    try:
        with open("/proc/thread-self/schedstat", "rb", buffering=0) as file:
            return int(file.read(64).split()[1])
    except (OSError, ValueError, IndexError):
        return 0


@failsafe("deep mode", None)
def start(torch: Any, switch: Switch, device: Device | None, stem: str) -> Deep | None:
    """Deep mode of this rank; None, with one line, if this torch lacks what it needs."""
    if not hasattr(torch.autograd, "_get_sequence_nr") or not hasattr(torch._C, "_current_graph_task_id"):
        say_once(f"deep mode needs a newer torch than {torch.__version__}; the run goes on without it")
        return None
    _hide_from_compiler(torch)
    deep = Deep(torch, switch, device, stem + ".layers.jsonl")
    atexit.register(failsafe("deep mode", None)(deep.close))
    return deep


def _hide_from_compiler(torch: Any) -> None:
    """Inside of compiled functions torch.compile looks at every Python function that runs: not at ours."""
    compiler: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    skip = getattr(compiler, "skip_code", None)  # before torch 2.6
    if hasattr(compiler, "set_code_exec_strategy"):
        never = compiler._FrameExecStrategy(compiler._FrameAction.SKIP, compiler._FrameAction.SKIP)
        skip = functools.partial(_set_strategy, compiler.set_code_exec_strategy, never)
    if skip is None:
        return
    skip(failsafe("", None)(len).__code__)
    for module in (deep_layers, deep_sample):
        for owner in (module, *(kind for kind in vars(module).values() if isinstance(kind, type))):
            for found in vars(owner).values():
                if isinstance(found, types.FunctionType) and found.__module__ == module.__name__:
                    skip(found.__code__)


def _set_strategy(set_strategy: Any, strategy: Any, code: types.CodeType) -> None:
    set_strategy(code, strategy)
