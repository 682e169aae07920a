"""The container's memory limit, from made-up cgroup trees of both versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.test_quota import put
from traceml.monitor.machine import Cgroups, MemoryUse

GB = 2**30
MACHINE = MemoryUse(10 * GB, 64 * GB)
STAT = f"anon {2 * GB}\ninactive_file {GB}\nactive_file {GB}\nshmem {GB}\n"


def read(tree: Path, own: str) -> MemoryUse:
    proc = tree / "self_cgroup"
    proc.write_text(own)
    return Cgroups(tree, proc).memory(MACHINE)


def limited(folder: Path, limit: object, current: int = 5 * GB) -> None:
    put(folder, memory__max=f"{limit}\n", memory__current=f"{current}\n", memory__stat=STAT)


def test_without_a_limit_the_machine_counts(tmp_path: Path) -> None:
    """No cgroups, no limit, or one that is larger than the machine."""
    assert read(tmp_path, "") == MACHINE
    for limit in ("max", 2**62, 0, "nonsense"):
        limited(tmp_path / "box", limit)
        assert read(tmp_path, "0::/box\n") == MACHINE


def test_version_two_without_the_page_cache(tmp_path: Path) -> None:
    """Of 5 GB in use, 2 GB are pages of files, which the kernel can take back; shared memory is not."""
    limited(tmp_path / "box", 8 * GB)
    assert read(tmp_path, "0::/box\n") == MemoryUse(3 * GB, 8 * GB)


def test_inside_a_container_its_own_group_is_the_root(tmp_path: Path) -> None:
    """A cgroup namespace shows the container's limit at the top."""
    limited(tmp_path, 8 * GB)
    assert read(tmp_path, "0::/\n") == MemoryUse(3 * GB, 8 * GB)


def test_version_one_counts_what_is_below(tmp_path: Path) -> None:
    """Its statistics have sums over the groups below."""
    put(
        tmp_path / "memory" / "pod" / "box",
        memory__limit_in_bytes=f"{8 * GB}\n",
        memory__usage_in_bytes=f"{6 * GB}\n",
        memory__stat=f"inactive_file 0\nactive_file 0\ntotal_inactive_file {GB}\ntotal_active_file 0\n",
    )
    assert read(tmp_path, "4:memory:/pod/box\n0::/\n") == MemoryUse(5 * GB, 8 * GB)


@pytest.mark.parametrize(("pod", "box"), [(4, 8), (8, 4)])
def test_the_smallest_limit_up_to_the_root_counts(tmp_path: Path, pod: int, box: int) -> None:
    """A pod may have less than its container, or the other way round."""
    limited(tmp_path / "pod", pod * GB, 4 * GB)
    limited(tmp_path / "pod" / "box", box * GB, 4 * GB)
    assert read(tmp_path, "0::/pod/box\n") == MemoryUse(2 * GB, 4 * GB)
