"""Room for the relay's threads and connections, so that it takes none from sampling."""

from __future__ import annotations

import threading
from typing import Final

MOST_DESCRIPTORS: Final = 65_536


def raise_descriptor_limit() -> None:
    """For this process and what it starts from now on; the command has been started with its own limit."""
    try:
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if 0 <= soft < MOST_DESCRIPTORS:
            most = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (ImportError, OSError, ValueError):
        pass


def can_start_threads(count: int) -> bool:
    """Try it, with as many at the same time: libzmq ends the whole process if one of its own cannot."""
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
