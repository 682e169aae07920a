"""How much memory this job may use, and how much of that is in use: a container's limit or the machine."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from traceml.monitor.cgroups import OWN, ROOT, facts_of, own_groups

FILES: Final = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
"""(limit, usage) of version 2 and version 1."""


class MemoryUse(NamedTuple):
    """Bytes in use, and bytes there are."""

    used: int
    total: int


class MemoryGroups:
    """The cgroups between our own and the root that may have a limit. They are looked for once."""

    def __init__(self, root: Path = ROOT, proc: Path = OWN) -> None:
        self._folders = own_groups("memory", [limit for limit, _ in FILES], root, proc)

    def use(self, machine: MemoryUse) -> MemoryUse:
        """Of the group with the smallest limit, if that is less than the machine has; else the machine's."""
        found = machine
        for folder in self._folders:
            for limit_file, usage_file in FILES:
                limit, usage = _number(folder / limit_file), _number(folder / usage_file)
                if limit is not None and usage is not None and 0 < limit < found.total:
                    found = MemoryUse(max(0, usage - _reclaimable(folder)), limit)
        return found


def _reclaimable(folder: Path) -> int:
    """The page cache: the kernel takes it back before it kills. Version 1 has sums with a prefix."""
    facts = facts_of(folder / "memory.stat")
    names = ("inactive_file", "active_file")
    return sum(facts.get(f"total_{name}", facts.get(name, 0)) for name in names)


def _number(file: Path) -> int | None:
    """None if it cannot be read, or is `max`."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None
