"""Brings a run that is recorded on a local disk to its folder on a network file system, in a thread.

A file system that stops answering blocks everybody who touches it, even through a mapped page. So neither the
training nor the monitor touches it: both use the local folder, and only the thread here can be blocked.
"""

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from traceml.errors import failsafe, say
from traceml.files import write_atomic
from traceml.runs.folder import RECORDING
from traceml.runs.manifest import MANIFEST, OUTPUT_LOG, SUMMARY_JSON, SUMMARY_PAGE, SUMMARY_TEXT

if TYPE_CHECKING:  # imported only where it is needed
    from traceml.monitor.relay.outbox import Outbox

EVERY_S: Final = 2.0
CLOSE_S: Final = 10.0


class Mirror:
    """From `local` to `home`; does nothing if they are the same."""

    def __init__(self, local: Path, home: Path, start: bool = True) -> None:
        self._local, self._home = local, home
        self._outbox: Outbox | None = None
        self.safe_rows: list[Callable[[str], int]] = []
        """One function: how many rows of a recording are in the home folder too."""
        self._stop = threading.Event()
        self._complete = False
        self._thread: threading.Thread | None = None
        if local != home and start:
            self.safe_rows.append(lambda name: self._outbox.acknowledged(name) if self._outbox else 0)
            self._thread = threading.Thread(target=self._copy, name="traceml-mirror", daemon=True)
            failsafe("copying the run to its folder", None)(self._thread.start)()

    def close(self) -> Path:
        """Copy the rest and remove the local folder; where the run is now."""
        if self._thread is None:
            return self._home
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(CLOSE_S)
        if not self._complete:
            say(f"{self._home} does not answer, or not everything could be written there; see {self._local}")
            return self._local
        shutil.rmtree(self._local.parent, ignore_errors=True)
        return self._home

    def copy_once(self) -> bool:
        """Copy everything that is there now; whether that worked."""
        self._stop.set()
        self._copy()
        return self._complete

    @failsafe("copying the run to its folder", None)
    def _copy(self) -> None:
        from traceml.monitor.relay.outbox import Outbox, catch_up
        from traceml.monitor.relay.store import Limits, NodeStore
        from traceml.recording.rollup import Roller

        self._outbox = Outbox(self._local, node_rank=None, files_at_once=None)
        no_limits = Limits(files=1 << 30, node_bytes=1 << 60, keep_free_bytes=0)
        store = NodeStore(self._home / RECORDING, None, no_limits)
        roller = Roller(self._home)
        copied: dict[str, bytes] = {}
        is_last = False
        while not is_last:
            is_last = self._stop.wait(EVERY_S)
            for name in (MANIFEST, SUMMARY_JSON, SUMMARY_TEXT, SUMMARY_PAGE):
                data = (self._local / name).read_bytes() if (self._local / name).exists() else None
                if data is not None and copied.get(name) != data:
                    write_atomic(self._home / name, data)
                    copied[name] = data
            if is_last and (self._local / OUTPUT_LOG).exists():  # it may be long: once is enough
                shutil.copyfile(self._local / OUTPUT_LOG, self._home / OUTPUT_LOG)
            merged = catch_up(self._outbox, store)
            roller.maybe_roll(time.monotonic())
            self._complete = is_last and merged.complete
