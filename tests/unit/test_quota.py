"""The container's CPU quota, from made-up cgroup trees of both versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from traceml.monitor.machine import Cgroups, CpuQuota


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """An empty cgroup file system."""
    root = tmp_path / "cgroup"
    root.mkdir()
    return root


def put(folder: Path, **files: str) -> Path:
    """Write files into a group; `__` in a name stands for a dot."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def read(tree: Path, own: str = "0::/\n") -> CpuQuota:
    proc = tree.parent / "self_cgroup"
    proc.write_text(own)
    return Cgroups(tree, proc).quota()


STAT = "nr_periods 10\nnr_throttled 3\nthrottled_usec 1500\n"


def test_no_cgroup_is_no_quota(tmp_path: Path) -> None:
    """Without cgroups nothing is known, and nothing is raised."""
    assert Cgroups(tmp_path / "none", tmp_path / "none").quota() == CpuQuota(None, None)


def test_version_two(tree: Path) -> None:
    """cpu.max holds quota and period in µs, cpu.stat the time spent stopped."""
    put(tree, cpu__max="250000 100000\n", cpu__stat=STAT)
    assert read(tree) == CpuQuota(2.5, 1500)


def test_no_limit_is_none_and_not_zero(tree: Path) -> None:
    """`max` means no quota, and so no throttling either."""
    put(tree, cpu__max="max 100000\n", cpu__stat=STAT)
    assert read(tree) == CpuQuota(None, None)


def test_the_tightest_group_up_to_the_root_counts(tree: Path) -> None:
    """A pod may have a tighter limit than its container, or the other way round."""
    put(tree / "pod", cpu__max="100000 100000", cpu__stat=STAT)
    put(tree / "pod" / "box", cpu__max="400000 100000", cpu__stat="throttled_usec 7\n")
    assert read(tree, "0::/pod/box\n") == CpuQuota(1.0, 1500)
    put(tree / "pod" / "box", cpu__max="50000 100000")
    assert read(tree, "0::/pod/box\n") == CpuQuota(0.5, 7)


def test_groups_of_others_do_not_count(tree: Path) -> None:
    """Only the groups from ours up to the root."""
    put(tree / "other", cpu__max="10000 100000", cpu__stat=STAT)
    assert read(tree, "0::/ours\n") == CpuQuota(None, None)


def test_version_one(tree: Path) -> None:
    """It has files for quota and period in µs; the throttled time is in ns."""
    put(
        tree / "cpu,cpuacct" / "box",
        cpu__cfs_quota_us="150000",
        cpu__cfs_period_us="100000",
        cpu__stat="nr_throttled 2\nthrottled_time 4000000\n",
    )
    own = "3:memory:/elsewhere\n2:cpu,cpuacct:/box\n"
    assert read(tree, own) == CpuQuota(1.5, 4000)


def test_version_one_without_a_limit(tree: Path) -> None:
    """-1 means no quota."""
    put(tree / "cpu", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    assert read(tree) == CpuQuota(None, None)


@pytest.mark.parametrize("text", ["", "nonsense", "1 2 3", "x 100000"])
def test_a_nonsensical_file_is_no_quota(tree: Path, text: str) -> None:
    """Its content is not guessed."""
    put(tree, cpu__max=text)
    assert read(tree) == CpuQuota(None, None)


def test_a_period_of_zero_is_no_quota(tree: Path) -> None:
    """A division by zero is avoided in both versions."""
    put(tree, cpu__max="100000 0")
    put(tree / "cpu", cpu__cfs_quota_us="100000", cpu__cfs_period_us="0")
    assert read(tree) == CpuQuota(None, None)


def test_a_quota_without_statistics_has_unknown_throttling(tree: Path) -> None:
    """The limit is known; the time spent stopped is null, not 0."""
    put(tree, cpu__max="200000 100000")
    assert read(tree) == CpuQuota(2.0, None)


def test_groups_are_found_once_and_their_quota_is_read_each_time(tree: Path) -> None:
    """A quota that is set, or used up, during the run is seen."""
    put(tree, cpu__max="max 100000\n", cpu__stat=STAT)
    groups = Cgroups(tree, tree / "none")
    assert groups.quota() == CpuQuota(None, None)
    put(tree, cpu__max="250000 100000\n", cpu__stat="throttled_usec 9000\n")
    assert groups.quota() == CpuQuota(2.5, 9000)
