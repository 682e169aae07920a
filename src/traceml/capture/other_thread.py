"""Training that moved to a thread that is not recorded, or that runs on several threads at once."""

import itertools
import sys
import threading
from threading import get_ident
from typing import Any

from traceml.capture.slots import is_wait
from traceml.capture.switch import Switch
from traceml.errors import failsafe
from traceml.recording import layout
from traceml.schema import catalog as c


class OtherThread:
    """Is called for backward passes on threads that are not recorded.

    Only one thread's time can be split into phases. The optimizer steps of other threads are counted by
    PyTorch's global step hook, which is registered with the first such pass.
    """

    def __init__(self) -> None:
        self._live: Any = None  # the live area of the recording, once there is one
        self._adopted = self._counts = False
        self._numbers = itertools.count(1)
        self._steps = 0

    def show_in(self, live: Any) -> None:
        """Count here from now on: it outlives the process, however that ends."""
        self._live = live
        layout.COUNT.pack_into(live, layout.LIVE_OTHER, self._steps)

    def takes_over(self, switch: Switch) -> bool:
        """Whether training has moved here: the recorded thread is gone, waits for another one (`join`), or
        has not trained so far.

        Inside its backward pass other threads are the autograd engine's own, which may start inner passes.
        """
        if get_ident() == switch.thread:
            return False
        if not self._counts and _is_of_python():
            self._counts = True
            self._count_steps(switch)
        if self._live is None and not self._adopted:
            self._adopted = True
            return True
        if switch.current in (c.BACKWARD, c.SYNC):
            return False
        frame = sys._current_frames().get(switch.thread)
        return frame is None or (is_wait(switch.current) and frame.f_code.co_filename == threading.__file__)

    def _count_steps(self, switch: Switch) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        def stepped(*_: Any) -> None:
            if get_ident() == switch.thread or switch.thread == -1 or not _is_of_python():
                return
            self._steps = next(self._numbers)
            if self._live is not None:
                layout.COUNT.pack_into(self._live, layout.LIVE_OTHER, self._steps)

        guard = failsafe("counting steps on other threads", None)
        register_optimizer_step_post_hook(guard(stepped))


def _is_of_python() -> bool:
    """Not a thread of the autograd engine: what those do is part of the recorded training."""
    return any(thread.ident == get_ident() for thread in threading.enumerate())
