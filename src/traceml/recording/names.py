"""The file names of a folder that may hold very many: a sweep leaves a few files per ended process."""

import os
import re
import time
from pathlib import Path
from typing import Final

NODE: Final = re.compile(r"\.node([0-9]{1,7})\.")
SETTLED_NS: Final = 2_000_000_000
COSTLY_S: Final = 0.0005
PAUSES: Final = 200
"""After a listing that took longer than `COSTLY_S`, this many times as long passes before the next one: what
is done with the names takes several times as long as the listing."""


class FolderNames:
    """Listed again only if the folder has changed, and seldom if listing takes long."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._changed_ns = 0
        self._names: list[str] = []
        self._not_before_s = 0.0

    def look(self) -> list[str]:
        """The names; the same list object as long as they were not listed again."""
        began_s = time.monotonic()
        if began_s < self._not_before_s:
            return self._names
        changed_ns = os.stat(self._folder).st_mtime_ns
        if changed_ns != self._changed_ns:
            cpu_s = time.thread_time()  # on a busy machine the time that passes says little
            self._names = os.listdir(self._folder)
            # A file that comes within the same tick of the file system's clock does not change it again.
            self._changed_ns = changed_ns if time.time_ns() - changed_ns > SETTLED_NS else 0
            took_s = time.thread_time() - cpu_s
            self._not_before_s = began_s + PAUSES * took_s if took_s > COSTLY_S else 0.0
        return self._names

    def forget(self) -> None:
        self._changed_ns, self._not_before_s = 0, 0.0


class Listing:
    """What these names are, found out once for all looks that see the same names."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.there = set(names)
        self.ranks = sorted(n for n in names if n.startswith("rank-") and n.endswith(".steps"))
        self.nodes = sorted({0, *(node_of(n) for n in names if ".node" in n)})
        """The nodes with files here; node 0 always."""
        self.seen = frozenset(n.removeprefix("seen-") for n in names if n.startswith("seen-"))
        """How far the command got."""
        events = sorted(n for n in names if n.endswith(".events.jsonl"))
        self.monitor_events = [n for n in events if n.startswith("monitor")]
        self.early_events = [n for n in events if n.startswith("early")]
        """The files of what monitors saw, and of processes that never became a rank."""


def node_of(name: str) -> int:
    """The node that a file comes from."""
    return int(found.group(1)) if (found := NODE.search(name)) is not None else 0
