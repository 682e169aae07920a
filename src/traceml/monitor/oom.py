"""How often this machine's kernel ended a process because memory ran out."""

from __future__ import annotations

from pathlib import Path

VMSTAT = Path("/proc/vmstat")


def oom_kills() -> int | None:
    """Since boot, in all containers of the machine; None where the kernel does not count."""
    try:
        for line in VMSTAT.read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    except (OSError, ValueError):
        return None
    return None


def oom_kills_since(before: int | None) -> int | None:
    """How many more there are by now."""
    now = oom_kills()
    return now - before if now is not None and before is not None else None
