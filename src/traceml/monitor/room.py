"""Whether threads can still be started: libzmq ends the whole process if one of its own cannot."""

from __future__ import annotations

import threading


def can_start_threads(count: int) -> bool:
    """Try it, with as many at the same time."""
    enough = threading.Event()
    started = []
    try:
        for _ in range(count):
            thread = threading.Thread(target=enough.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError:
        return False
    finally:
        enough.set()
        for thread in started:
            thread.join()
    return True
