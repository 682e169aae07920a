"""What the container allows: its CPU quota and its memory limit, from cgroups of version 2 or 1."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path("/sys/fs/cgroup")
OWN: Final = Path("/proc/self/cgroup")
MEMORY_FILES: Final = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
"""(limit, usage) of version 2 and version 1."""


class CpuQuota(NamedTuple):
    """How many cores the quota allows (None: no quota) and the time spent stopped so far."""

    cores: float | None
    throttled_us: int | None


class CpuGroups:
    """The cgroups between our own and the root that may have a quota. They are looked for once."""

    def __init__(self, root: Path = ROOT, proc: Path = OWN) -> None:
        self._folders = _own_groups("cpu", ("cpu.max", "cpu.cfs_quota_us"), root, proc)

    def quota(self) -> CpuQuota:
        """The tightest quota of all."""
        found = CpuQuota(None, None)
        for folder in self._folders:
            v1 = (folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us")
            quota_and_period = _numbers(folder / "cpu.max") or _numbers(*v1)
            if len(quota_and_period) != 2 or min(quota_and_period) <= 0:
                continue
            cores = quota_and_period[0] / quota_and_period[1]
            if found.cores is None or cores < found.cores:
                facts = facts_in(folder / "cpu.stat")
                throttled_ns = facts.get("throttled_time")
                throttled_us = None if throttled_ns is None else throttled_ns // 1000
                found = CpuQuota(cores, facts.get("throttled_usec", throttled_us))
        return found


def usable_cores() -> int:
    """Cores that this job may use, quota included."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    quota = CpuGroups().quota().cores
    return max(1, min(cores, round(quota))) if quota else cores


class MemoryUse(NamedTuple):
    """Bytes in use, and bytes there are."""

    used: int
    total: int


class MemoryGroups:
    """The cgroups between our own and the root that may have a limit. They are looked for once."""

    def __init__(self, root: Path = ROOT, proc: Path = OWN) -> None:
        self._folders = _own_groups("memory", [limit for limit, _ in MEMORY_FILES], root, proc)

    def use(self, machine: MemoryUse) -> MemoryUse:
        """Of the group with the smallest limit, if that is less than the machine has; else the machine's."""
        found = machine
        for folder in self._folders:
            for names in MEMORY_FILES:
                numbers = _numbers(*(folder / name for name in names))
                if len(numbers) == 2 and 0 < numbers[0] < found.total:
                    found = MemoryUse(max(0, numbers[1] - _reclaimable(folder)), numbers[0])
        return found


def _reclaimable(folder: Path) -> int:
    """The page cache: the kernel takes it back before it kills. Version 1 has sums with a prefix."""
    facts = facts_in(folder / "memory.stat")
    names = ("inactive_file", "active_file")
    return sum(facts.get(f"total_{name}", facts.get(name, 0)) for name in names)


def _own_groups(controller: str, files: Sequence[str], root: Path, proc: Path) -> list[Path]:
    """The folders from the root to our own group that have one of these files of a controller."""
    folders = [root, *root.glob(f"{controller}*")]
    try:
        lines = proc.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and controller not in controllers.split(","):
            continue
        base = root / controllers if controllers else root
        parts = Path(path.lstrip("/")).parts
        folders += [base.joinpath(*parts[: i + 1]) for i in range(len(parts))]
    return [folder for folder in folders if any((folder / file).exists() for file in files)]


def _numbers(*files: Path) -> list[int]:
    """The numbers in these files; none if one cannot be read, or says `max`."""
    try:
        return [int(word) for file in files for word in file.read_text().split()]
    except (OSError, ValueError):
        return []


def facts_in(file: Path) -> dict[str, int]:
    """The lines `name value` of a file; empty if it cannot be read."""
    try:
        pairs = (line.split() for line in file.read_text().splitlines())
        return {name: int(value) for name, value in pairs}
    except (OSError, ValueError):
        return {}
