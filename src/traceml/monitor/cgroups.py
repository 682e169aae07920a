"""The cgroups of this process, of version 2 or 1: where a container's limits are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path("/sys/fs/cgroup")
OWN: Final = Path("/proc/self/cgroup")


def own_groups(controller: str, files: Sequence[str], root: Path = ROOT, proc: Path = OWN) -> list[Path]:
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


def facts_of(file: Path) -> dict[str, int]:
    """The lines `name value` of a file; empty if it cannot be read."""
    try:
        pairs = (line.split() for line in file.read_text().splitlines())
        return {name: int(value) for name, value in pairs}
    except (OSError, ValueError):
        return {}
