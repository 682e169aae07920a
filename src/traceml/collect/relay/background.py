"""Runs one end of the relay in a thread, so that the monitor's loop never waits for it."""

from __future__ import annotations

import threading
from typing import Final, Protocol

from traceml.errors import failsafe

TURN_S: Final = 0.25
_GRACE_S: Final = 5.0


class Pumped(Protocol):
    """What both ends of the relay offer."""

    def pump(self, max_seconds: float) -> None: ...
    def close(self, drain_seconds: float) -> bool: ...


class BackgroundRelay:
    """From now on the relay belongs to the thread; others may close it and read its status."""

    def __init__(self, relay: Pumped) -> None:
        self._relay = relay
        self._stop = threading.Event()
        self._drain_seconds = 0.0
        self._complete = False
        self._thread = threading.Thread(target=self._run, name="traceml-relay", daemon=True)
        self._thread.start()

    def close(self, drain_seconds: float) -> bool:
        """End the thread; True when everything was delivered."""
        self._drain_seconds = drain_seconds
        self._stop.set()
        self._thread.join(drain_seconds + _GRACE_S)
        return self._complete

    def _run(self) -> None:
        failsafe("relaying between nodes", None)(self._pump)()
        self._complete = failsafe("ending the relay", False)(self._relay.close)(self._drain_seconds)

    def _pump(self) -> None:
        while not self._stop.is_set():
            self._relay.pump(TURN_S)
