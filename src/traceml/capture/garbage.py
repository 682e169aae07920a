"""Python's garbage collector: how long it stops the training thread."""

from threading import get_ident
from typing import Final

from traceml.capture.session import Session
from traceml.capture.slots import is_wait

LONG_PAUSE_NS: Final = 20_000_000


class GarbageWatch:
    """One of `gc.callbacks`. Collections lie inside phases; those inside `wait` are counted apart too."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._since = 0

    def __call__(self, when: str, _info: dict[str, int]) -> None:
        session, switch = self._session, self._session.switch
        if get_ident() != switch.thread:
            return
        now = switch.clock()
        if when == "start":
            self._since = now
            return
        pause = now - self._since
        switch.gc_ns += pause
        if is_wait(switch.current):
            switch.gc_wait_ns += pause
        if pause > LONG_PAUSE_NS and session.stepping:
            session.events.add("gc", session.step + 1, self._since, pause)
