"""Control groups with a limit, as containers have them, and `traceml` inside one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.scenarios.preloaded import ENVIRONMENT

ROOT = Path("/sys/fs/cgroup")
Limit = tuple[tuple[str, str], tuple[str, str]]
"""A file and what it says: of cgroup v1, which has a folder for each controller, then of v2."""
FIFTH_OF_A_CORE: Limit = (("cpu/cpu.cfs_quota_us", "20000"), ("cpu.max", "20000 100000"))
NO_QUOTA: Limit = (("cpu/cpu.cfs_quota_us", "-1"), ("cpu.max", "max"))


def memory_limit(size: int) -> Limit:
    return (("memory/memory.limit_in_bytes", str(size)), ("memory.max", str(size)))


@contextmanager
def control_group(limit: Limit) -> Iterator[Path]:
    """The limit's file in a new group; skips the test where none can be made."""
    for path, value in limit:
        file = ROOT / Path(path).parent / f"traceml-test-{os.getpid()}" / Path(path).name
        try:
            file.parent.mkdir()
        except OSError:
            continue
        try:
            file.write_text(value)
        except OSError:
            file.parent.rmdir()
            continue
        try:
            yield file
        finally:
            file.parent.rmdir()
        return
    pytest.skip(f"no group with {limit[1][0]} can be made here: needs root and the controller")


def traceml_in(group: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`traceml <words>` in this folder, inside the group of this file."""
    inside = ["sh", "-c", f'echo $$ > {group.parent}/cgroup.procs && exec "$@"', "sh"]
    return subprocess.run(
        [*inside, sys.executable, "-m", "traceml", *words],
        cwd=folder,
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
