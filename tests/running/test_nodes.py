"""One run on several machines: network namespaces as separate hosts, joined by node 0's monitor."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.preloaded import ENVIRONMENT
from tests.scenarios.scenario import SCRIPTS, really, traceml

DDP = str(SCRIPTS / "ddp.py")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
pytestmark = pytest.mark.scenario


class Processes:
    """Commands that run at the same time; none of them outlives the test."""

    def __init__(self) -> None:
        self.running: list[subprocess.Popen[str]] = []

    def start(self, command: list[str], folder: Path, environment: dict[str, str]) -> None:
        """Start one more."""
        started = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **ENVIRONMENT, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.running.append(started)

    def finish(self) -> list[tuple[int, str]]:
        """Wait for all of them; the exit code and standard error of each."""
        errors = [process.communicate(timeout=150)[1] for process in self.running]
        return [(process.returncode, error) for process, error in zip(self.running, errors, strict=True)]

    def finish_well(self, result: Path) -> dict[str, Any]:
        """Wait for all of them, which must succeed; the summary that they wrote."""
        for code, error in self.finish():
            assert code == 0, error
        found: dict[str, Any] = json.loads(result.read_text())
        return found

    def kill(self) -> None:
        """End those that still run, with everything that they started."""
        for process in self.running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()


class Hosts(Processes):
    """Two network namespaces with a cable between them, and the `traceml run` of each."""

    def __init__(self) -> None:
        super().__init__()
        self.names = [f"tml-{os.getpid()}-{end}" for end in "ab"]
        self.cable = [f"tml{os.getpid()}{end}" for end in "ab"]

    def connect(self) -> bool:
        """Make the hosts; whether this machine allows it."""
        if shutil.which("ip") is None or not all(ip("netns", "add", name) for name in self.names):
            return False
        near, far = ([end, "netns", name] for end, name in zip(self.cable, self.names, strict=True))
        assert ip("link", "add", *near, "type", "veth", "peer", "name", *far)
        for name, end, address in zip(self.names, self.cable, ADDRESSES, strict=True):
            assert ip("-n", name, "addr", "add", f"{address}/24", "dev", end)
            assert ip("-n", name, "link", "set", end, "up")
            assert ip("-n", name, "link", "set", "lo", "up")
        return True

    def remove(self) -> None:
        """End the runs and remove the hosts."""
        self.kill()
        for name in self.names:
            ip("netns", "del", name)

    def traceml_run(
        self, folder: Path, node: int, *words: str, script: tuple[str, ...] = (), key: str | None = None
    ) -> None:
        """`traceml run` on one of the hosts; `script` are further words for the training."""
        command = ["ip", "netns", "exec", self.names[node], sys.executable, "-m", "traceml", "run", DDP]
        command += ["--run-name", "r", "--nproc-per-node", "1", "--nnodes", "2", "--node-rank", str(node)]
        command += ["--master-addr", ADDRESSES[0], "--master-port", "29611", *words]
        environment = {"GLOO_SOCKET_IFNAME": self.cable[node]} | ({"TRACEML_KEY": key} if key else {})
        self.start([*command, "--", "--backward", "30", "--steps", "50", *script], folder, environment)


def ip(*words: str) -> bool:
    """One `ip` command; whether it succeeded."""
    return subprocess.run(["ip", *words], check=False, capture_output=True).returncode == 0


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    """Two hosts that are removed after the test."""
    made = Hosts()
    try:
        if not made.connect():
            pytest.skip("no network namespace can be made here: needs root and the ip command")
        yield made
    finally:
        made.remove()


@pytest.fixture
def processes() -> Iterator[Processes]:
    """Commands that end with the test."""
    made = Processes()
    yield made
    made.kill()


@pytest.mark.long
@pytest.mark.timed
def test_two_hosts_with_a_shared_folder_become_one_run(hosts: Hosts, tmp_path: Path) -> None:
    """The slow rank of the other host is named in node 0's summary; no flag but those of torchrun."""
    for node in (0, 1):
        hosts.traceml_run(tmp_path, node)
    summary = hosts.finish_well(tmp_path / "logs" / "r" / "final_summary.json")
    assert summary["run"]["world_size"] == 2
    assert summary["run"]["ranks"]["used"] == [0, 1]
    assert summary["run"]["steps"]["total"] == 50
    primary = summary["primary_diagnosis"]
    assert (primary["status"], primary["ranks"], primary["phase"]) == ("COMPUTE STRAGGLER", [1], "backward")
    assert primary["evidence"]["excess_ms"] == pytest.approx(really(tmp_path, 30, summary, "fault"), rel=0.2)
    assert set(summary["system"]["nodes"]) == {"0", "1"}


@pytest.mark.long
def test_rank_killed_on_the_other_host_is_named(hosts: Hosts, tmp_path: Path) -> None:
    """What the other host's monitor saw reaches node 0: that rank ended first, not the one that raised."""
    for node in (0, 1):
        hosts.traceml_run(tmp_path, node, script=("--kill-at", "25"))
    assert [code for code, _ in hosts.finish()] == [1, 1]
    run = json.loads((tmp_path / "logs" / "r" / "final_summary.json").read_text())["run"]
    first = run["ranks"]["ended_first"]
    assert (first["rank"], first["step"]) == (1, 25), run["reason"]
    assert "r1" in run["reason"].split(";")[0]
    assert "killed" in run["reason"].split(";")[0]


@pytest.mark.long
def test_two_hosts_without_a_shared_folder_meet_by_key_and_port(hosts: Hosts, tmp_path: Path) -> None:
    """Separate folders: TRACEML_KEY and --relay-port carry everything to node 0."""
    for node, name in enumerate("ab"):
        (tmp_path / name).mkdir()
        hosts.traceml_run(
            tmp_path / name, node, "--relay-port", "29712", key="a secret of this very test run"
        )
    summary = hosts.finish_well(tmp_path / "a" / "logs" / "r" / "final_summary.json")
    assert summary["run"]["ranks"]["used"] == [0, 1]
    assert summary["run"]["steps"]["total"] == 50
    assert summary["primary_diagnosis"]["ranks"] == [1]


@pytest.mark.long
def test_unreachable_node_0_costs_nothing_and_view_merges_later(hosts: Hosts, tmp_path: Path) -> None:
    """No way to node 0's relay: training goes on, rows stay on the node's disk, `view --merge` joins them."""
    for node, name in enumerate("ab"):
        (tmp_path / name).mkdir()
        hosts.traceml_run(tmp_path / name, node, key=f"another secret on each of them: {node}")
    alone = hosts.finish_well(tmp_path / "a" / "logs" / "r" / "final_summary.json")
    assert alone["run"]["ranks"]["used"] == [0]
    assert alone["run"]["ranks"]["lost"] == [1]
    done = traceml("view", "r", "--merge", "../b/logs/r.node1", "--json", cwd=tmp_path / "a")
    assert done.returncode == 0, done.stderr
    merged = json.loads(done.stdout)
    assert merged["run"]["ranks"]["used"] == [0, 1]
    assert merged["primary_diagnosis"]["ranks"] == [1]


def srun(processes: Processes, folder: Path, *words: str, **environment: str) -> dict[str, Any]:
    """The summary of two tasks of a Slurm step, both on this machine."""
    job = str(os.getpid())  # the ports follow from it: tests of this machine that run side by side differ
    for task in range(2):
        slurm = {"PROCID": str(task), "NTASKS": "2", "JOB_ID": job, "STEP_ID": "0", "NODEID": str(task)}
        own = {f"SLURM_{name}": value for name, value in slurm.items()} | {"MASTER_ADDR": "127.0.0.1"}
        own |= {name: value.format(task=task) for name, value in environment.items()}
        processes.start([sys.executable, "-m", "traceml", "run", DDP, *words], folder, own)
    return processes.finish_well(folder / "logs" / f"ddp-slurm-{job}.0" / "final_summary.json")


def free_port() -> str:
    """A port that is free at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


def test_slurm_tasks_find_each_other_from_the_environment(processes: Processes, tmp_path: Path) -> None:
    """`srun traceml run python train.py`: rank, world size and run come from Slurm, without a flag."""
    ranks = {"RANK": "{task}", "WORLD_SIZE": "2", "MASTER_PORT": free_port()}
    summary = srun(processes, tmp_path, "--", "--input", "30", "--steps", "40", **ranks)
    assert summary["run"]["ranks"]["used"] == [0, 1]
    assert summary["primary_diagnosis"]["status"] == "INPUT STRAGGLER"
    assert summary["primary_diagnosis"]["ranks"] == [1]


def test_torchrun_under_slurm_is_one_training(processes: Processes, tmp_path: Path) -> None:
    """`srun traceml run train.py --nproc-per-node 1`: one world over all nodes, not one on each."""
    words = ("--nproc-per-node", "1", "--", "--forward", "30", "--steps", "40")
    summary = srun(processes, tmp_path, *words)
    assert summary["run"]["world_size"] == 2
    assert summary["run"]["ranks"]["used"] == [0, 1]
    assert summary["primary_diagnosis"]["ranks"] == [1]
