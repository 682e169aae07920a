"""What is known about the machine: host, git commit, OOM kills, and what its cgroups allow the job."""

import os
import socket
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

GIT_TIMEOUT_S: Final = 5.0
VMSTAT: Final = Path("/proc/vmstat")
ROOT: Final = Path("/sys/fs/cgroup")
OWN: Final = Path("/proc/self/cgroup")
CPU_FILES: Final = ("cpu.max", "cpu.cfs_quota_us")
MEMORY_FILES: Final = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
"""(limit, usage) of version 2 and version 1."""


def environment_facts() -> dict[str, Any]:
    """For a reader of the result. A thread adds what git says, which may take long in a large checkout."""
    import platform  # the command has been started by now; before, it would have waited for this

    facts = {
        "host": socket.gethostname(),
        "os": platform.platform(),
        "cpu_count": os.cpu_count(),
        "git_commit": None,
        "git_dirty": None,
    }
    try:
        threading.Thread(target=_ask_git, args=(facts,), daemon=True).start()
    except RuntimeError:
        pass  # the process limit: do without the commit
    return facts


def _ask_git(facts: dict[str, Any]) -> None:
    commit = _git("rev-parse", "HEAD")
    if commit:
        facts["git_commit"] = commit.strip()
        status = _git("status", "--porcelain", "--untracked-files=no")
        facts["git_dirty"] = None if status is None else bool(status.strip())


def _git(*arguments: str) -> str | None:
    command = ["git", "--no-optional-locks", *arguments]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=GIT_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


def oom_kills() -> int | None:
    """Since boot, in all containers of the machine; None where the kernel does not count."""
    return facts_in(VMSTAT).get("oom_kill")


def oom_kills_since(before: int | None) -> int | None:
    """How many more there are by now."""
    now = oom_kills()
    return now - before if now is not None and before is not None else None


class CpuQuota(NamedTuple):
    """How many cores the quota allows (None: no quota) and the time spent stopped so far."""

    cores: float | None
    throttled_us: int | None


class MemoryUse(NamedTuple):
    """Bytes in use, and bytes there are."""

    used: int
    total: int


class Cgroups:
    """The cgroups, of version 2 or 1, from our own to the root. They are looked for once."""

    def __init__(self, root: Path = ROOT, proc: Path = OWN) -> None:
        self._cpu = _own_groups("cpu", CPU_FILES, root, proc)
        self._memory = _own_groups("memory", [limit for limit, _ in MEMORY_FILES], root, proc)

    def quota(self) -> CpuQuota:
        """The tightest quota of all."""
        found = CpuQuota(None, None)
        for folder in self._cpu:
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

    def memory(self, machine: MemoryUse) -> MemoryUse:
        """Of the group with the smallest limit, if that is less than the machine has; else the machine's.
        The page cache does not count: the kernel takes it back before it kills."""
        found = machine
        for folder in self._memory:
            for names in MEMORY_FILES:
                numbers = _numbers(*(folder / name for name in names))
                if len(numbers) == 2 and 0 < numbers[0] < found.total:
                    facts = facts_in(folder / "memory.stat")  # version 1 has sums with a prefix
                    pages = ("inactive_file", "active_file")
                    cached = sum(facts.get(f"total_{name}", facts.get(name, 0)) for name in pages)
                    found = MemoryUse(max(0, numbers[1] - cached), numbers[0])
        return found


def usable_cores() -> int:
    """Cores that this job may use, quota included."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    quota = Cgroups().quota().cores
    return max(1, min(cores, round(quota))) if quota else cores


def _own_groups(controller: str, files: Sequence[str], root: Path, proc: Path) -> list[Path]:
    """The folders from the root to our own group that have one of these files of a controller."""
    folders = [root, *root.glob(f"{controller}*")]
    try:
        lines = proc.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers or controller in controllers.split(","):
            parts = Path(path.lstrip("/")).parts
            folders += [root.joinpath(controllers, *parts[: i + 1]) for i in range(len(parts))]
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
