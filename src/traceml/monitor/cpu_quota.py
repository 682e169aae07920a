"""The container's CPU quota and how long it has stopped us, from cgroup v2 or v1."""

import os
from dataclasses import dataclass
from pathlib import Path

from traceml.monitor.cgroups import OWN, ROOT, facts_of, own_groups


@dataclass(frozen=True, slots=True)
class CpuQuota:
    """How many cores the quota allows (None: no quota) and the time spent stopped so far."""

    cores: float | None
    throttled_us: int | None


class CpuGroups:
    """The cgroups between our own and the root that may have a quota. They are looked for once."""

    def __init__(self, root: Path = ROOT, proc: Path = OWN) -> None:
        self._folders = own_groups("cpu", ("cpu.max", "cpu.cfs_quota_us"), root, proc)

    def quota(self) -> CpuQuota:
        """The tightest quota of all."""
        found = CpuQuota(None, None)
        for folder in self._folders:
            limit = _limit(folder)
            if limit is not None and (found.cores is None or limit < found.cores):
                found = CpuQuota(limit, _throttled_us(folder))
        return found


def _limit(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        pass
    try:
        quota_us = int((folder / "cpu.cfs_quota_us").read_text())
        return quota_us / int((folder / "cpu.cfs_period_us").read_text()) if quota_us > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _throttled_us(folder: Path) -> int | None:
    facts = facts_of(folder / "cpu.stat")
    if "throttled_usec" in facts:
        return facts["throttled_usec"]
    return facts["throttled_time"] // 1000 if "throttled_time" in facts else None


def usable_cores() -> int:
    """Cores that this job may use, quota included."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    quota = CpuGroups().quota().cores
    return max(1, min(cores, round(quota))) if quota else cores
