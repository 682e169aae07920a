"""The relay between separate hosts: network namespaces with a cable that can be pulled.

Needs root and `ip netns`; skipped on a machine that does not allow it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from relay_nodes import Rank, make_run, steps, until
from relay_peer import Peer

CUT_S = 10.0
pytestmark = pytest.mark.long


def run(*words: str) -> bool:
    """One `ip` command."""
    return subprocess.run(["ip", *words], capture_output=True, check=False).returncode == 0


@dataclass(frozen=True)
class Hosts:
    """Two hosts, and the names of the two ends of the cable between them."""

    names: tuple[str, str]
    cable: tuple[str, str]

    def on(self, host: int) -> tuple[str, ...]:
        """The prefix that makes a command run on this host."""
        return ("ip", "netns", "exec", self.names[host])

    def link(self, state: str) -> None:
        """Pull (`down`) or plug (`up`) the cable at host 1."""
        assert run("-n", self.names[1], "link", "set", self.cable[1], state)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    """Two namespaces with 10.77.0.1 and 10.77.0.2."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("needs root and the ip command")
    tag = f"tml{os.getpid() % 100_000}"
    made = Hosts((f"{tag}a", f"{tag}b"), (f"{tag}0", f"{tag}1"))
    try:
        if not all(run("netns", "add", name) for name in made.names):
            pytest.skip("this machine allows no network namespaces")
        near, far = made.cable
        assert run(
            "link", "add", near, "netns", made.names[0],
            "type", "veth", "peer", "name", far, "netns", made.names[1],
        )  # fmt: skip
        for number, (name, end) in enumerate(zip(made.names, made.cable, strict=True), start=1):
            assert run("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", end)
            assert run("-n", name, "link", "set", end, "up")
            assert run("-n", name, "link", "set", "lo", "up")
        yield made
    finally:
        for name in made.names:
            run("netns", "del", name)


def grow_for(rank: Rank, seconds: float) -> None:
    """Training goes on."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        rank.append(20)
        time.sleep(0.01)


def test_cable_pulled_and_plugged(hosts: Hosts, tmp_path: Path) -> None:
    """Key and address come from the shared folder. Pulling the cable loses no row."""
    node0, node1 = make_run(tmp_path / "node0"), make_run(tmp_path / "node1")
    rank = Rank(node1, 1)
    rank.append(10)
    landed = "rank-1.node1.42.steps"
    server = Peer(node0, "node0", 0, "-", "-", prefix=hosts.on(0))
    client = Peer(node1, "node0", 1, "-", "-", prefix=hosts.on(1))
    until(lambda: len(steps(node0, landed)) >= 10)
    hosts.link("down")
    at_the_cut = len(steps(node0, landed))
    grow_for(rank, CUT_S)
    assert len(steps(node0, landed)) < rank.writer.count
    assert len(steps(node0, landed)) >= at_the_cut
    hosts.link("up")
    until(lambda: steps(node0, landed) == list(range(rank.writer.count)))
    rank.append(1000)
    rank.writer.close()
    client.finish()
    server.finish()
    assert steps(node0, landed) == list(range(rank.writer.count))


def test_no_shared_folder(hosts: Hosts, tmp_path: Path) -> None:
    """Hosts that share no folder meet by a given address and TRACEML_KEY."""
    node0, node1 = make_run(tmp_path / "node0"), make_run(tmp_path / "node1")
    rank = Rank(node1, 1)
    rank.append(500)
    key = "only these two hosts know it"
    server = Peer(node0, "node0", 0, "-", 5077, prefix=hosts.on(0), key=key)
    client = Peer(node1, "elsewhere", 1, "10.77.0.1", 5077, prefix=hosts.on(1), key=key)
    client.finish()
    server.finish()
    assert steps(node0, "rank-1.node1.42.steps") == list(range(500))
    assert not (node0 / "relay.key").exists()


def test_host_that_comes_back_elsewhere(hosts: Hosts, tmp_path: Path) -> None:
    """Node 0 killed while the cable is out and started on another port is found again."""
    node0, node1 = make_run(tmp_path / "node0"), make_run(tmp_path / "node1")
    rank = Rank(node1, 1)
    rank.append(10)
    landed = "rank-1.node1.42.steps"
    server = Peer(node0, "node0", 0, "-", "-", prefix=hosts.on(0))
    client = Peer(node1, "node0", 1, "-", "-", prefix=hosts.on(1))
    until(lambda: len(steps(node0, landed)) >= 10)
    hosts.link("down")
    server.kill()
    grow_for(rank, 0.5)
    hosts.link("up")
    server = Peer(node0, "node0", 0, "-", "-", prefix=hosts.on(0))
    client.finish()
    server.finish()
    assert steps(node0, landed) == list(range(rank.writer.count))
