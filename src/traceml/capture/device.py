"""The accelerator behind one small interface, and the clock that reads it without ever waiting.

At each phase switch a timing event is recorded on the device's current stream. When all events of a step
have completed, late, out of order or not at all, their differences become the step's device times.
Nothing here synchronizes: an event is asked whether it is done, never waited for.
"""

from collections import deque
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final, Protocol

from traceml.capture.slots import LEFT_OVER
from traceml.errors import failsafe
from traceml.schema import catalog as c

_LEFT_OVER: Final = dict(LEFT_OVER)
MOST_PENDING: Final = 256
"""Steps that may wait for their events before the oldest is given up."""
MOST_MARKS: Final = 4096
"""Phase switches of one step that are timed; a long evaluation has more, and its step no device times."""


class Device(Protocol):
    """What we need of an accelerator; tests bring a simulated one."""

    kind: str
    name: str

    def new_event(self) -> Any: ...  # with `record`, `query` and `elapsed_time`, as `torch.Event`
    def memory(self) -> tuple[int, int]: ...
    def capacity_bytes(self) -> int | None: ...
    def is_capturing(self) -> bool: ...


class TorchDevice:
    """CUDA, ROCm, XPU or MPS through `torch.Event` and the backend's own module."""

    def __init__(self, torch: Any, kind: str, index: int) -> None:
        self.kind = kind
        self._torch = torch
        self._index = index
        self._backend = getattr(torch, kind)
        self.name = self._name()
        self._peak_allocated = 0

    def new_event(self) -> Any:
        return self._torch.Event(device=self.kind, enable_timing=True)

    def memory(self) -> tuple[int, int]:
        """The highest (allocated, reserved) since the last call, as far as it can be known.

        Peak statistics belong to the user and are not reset. A new all-time peak is seen as such. Otherwise
        the current value is used, which is read while all activations are alive.
        """
        if self.kind == "mps":
            now = int(self._backend.current_allocated_memory())
            return now, int(self._backend.driver_allocated_memory())
        allocated = int(self._backend.memory_allocated(self._index))
        peak = int(self._backend.max_memory_allocated(self._index))
        if peak > self._peak_allocated:
            self._peak_allocated = allocated = peak
        return allocated, int(self._backend.memory_reserved(self._index))

    def capacity_bytes(self) -> int | None:
        if self.kind == "mps":
            return int(self._backend.recommended_max_memory())
        return int(self._backend.get_device_properties(self._index).total_memory)

    def is_capturing(self) -> bool:
        """Whether the current stream records a graph: an event of ours would become part of it."""
        return self.kind == "cuda" and bool(self._torch.cuda.is_current_stream_capturing())

    def _name(self) -> str:
        get = getattr(self._backend, "get_device_name", None)
        return str(get(self._index)) if get is not None else self.kind


class DeviceClock:
    """Turns the trail of events of each step into a row of device times, when they are ready."""

    def __init__(
        self, device: Device, publish: Callable[..., None], on_failure: Callable[[], None] = lambda: None
    ) -> None:
        """`on_failure`: the device raised; its clock is not used any more."""
        self._device = device
        self._publish = publish
        safely = failsafe("timing on the device", None, on_failure)
        self.mark: Callable[[int], None] = safely(self._mark)
        """The slot that just ended; called by the switch."""
        self.poll: Callable[[], None] = safely(self._poll)
        """Publish every pending step whose events are all done, in whatever order."""
        self._is_partial = False  # this step has switches without an event
        self._pool: list[Any] = []
        self._trail: list[tuple[int, Any]] = []
        self._pending: deque[tuple[int, list[tuple[int, Any]]]] = deque()
        self.given_up = 0
        self.mark(c.WAIT_START)

    def _mark(self, slot: int) -> None:
        if len(self._trail) >= MOST_MARKS or self._device.is_capturing():
            self._is_partial = True
            return
        event = self._pool.pop() if self._pool else self._device.new_event()
        event.record()
        self._trail.append((slot, event))

    def end_step(self, step: int, slot: int) -> None:
        """The step is over while `slot` was current; look, without waiting, at what is ready."""
        self.mark(slot)
        if not self._is_partial:
            self._pending.append((step, self._trail))
        # The next step starts at the event that ends this one. It is recorded again, because an
        # event that goes back to the pool must not be read by two steps.
        self._trail, self._is_partial = [], False
        self.mark(slot)
        if len(self._pending) > MOST_PENDING:
            self._pending.popleft()
            self.given_up += 1
        self.poll()

    def rename(self, old: int, new: int) -> None:
        """What this step charged to `old` turned out to be `new`."""
        self._trail = [(new if slot == old else slot, event) for slot, event in self._trail]

    def drop_step(self) -> None:
        """The step was aborted: forget its events."""
        self._trail, self._is_partial = [], False
        self.mark(c.WAIT_START)

    def _poll(self) -> None:
        still: deque[tuple[int, list[tuple[int, Any]]]] = deque()
        for step, trail in self._pending:
            if trail[-1][1].query() and all(event.query() for _, event in trail):
                self._resolve(step, trail)
            else:
                still.append((step, trail))
        self._pending = still

    def _resolve(self, step: int, trail: list[tuple[int, Any]]) -> None:
        totals = [0] * (c.FIRST_WAIT + 1)
        for (_, before), (slot, after) in pairwise(trail):
            elapsed_ns = int(before.elapsed_time(after) * 1e6)
            if elapsed_ns < 0:
                return  # streams were switched in between: no honest number, so none
            # The device's rows have one column for all wait places.
            totals[min(_LEFT_OVER.get(slot, slot), c.FIRST_WAIT)] += elapsed_ns
        self._publish(step, *totals)
        self._pool.extend(event for _, event in trail)
