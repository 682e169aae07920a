"""The container's CPU quota and how long it has stopped us, from cgroup v2 or v1."""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class CpuQuota:
    """How many cores the quota allows (None: no quota) and the time spent stopped so far."""

    cores: float | None
    throttled_us: int | None


class CpuGroups:
    """The cgroups between our own and the root that may have a quota. They are looked for once."""

    def __init__(self, root: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc/self/cgroup")) -> None:
        files = ("cpu.max", "cpu.cfs_quota_us")
        self._folders = [f for f in _own_groups(root, proc) if any((f / file).exists() for file in files)]

    def quota(self) -> CpuQuota:
        """The tightest quota of all."""
        found = CpuQuota(None, None)
        for folder in self._folders:
            limit = _limit(folder)
            if limit is not None and (found.cores is None or limit < found.cores):
                found = CpuQuota(limit, _throttled_us(folder))
        return found


def _own_groups(root: Path, proc: Path) -> list[Path]:
    folders = [root, root / "cpu", root / "cpu,cpuacct"]
    try:
        lines = proc.read_text(errors="replace").splitlines()
    except OSError:
        return folders
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = root / controllers if controllers else root
        parts = Path(path.lstrip("/")).parts
        folders += [base.joinpath(*parts[: i + 1]) for i in range(len(parts))]
    return folders


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
    try:
        pairs = (line.split() for line in (folder / "cpu.stat").read_text().splitlines())
        facts = {name: int(value) for name, value in pairs}
    except (OSError, ValueError):
        return None
    if "throttled_usec" in facts:
        return facts["throttled_usec"]
    return facts["throttled_time"] // 1000 if "throttled_time" in facts else None


def usable_cores() -> int:
    """Cores that this job may use, quota included."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    quota = CpuGroups().quota().cores
    return max(1, min(cores, round(quota))) if quota else cores
