"""One run on several machines: real separate hosts as network namespaces, joined by node 0's monitor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.scenario import PYTHONPATH, SCRIPTS, really

DDP = str(SCRIPTS / "ddp.py")
HOSTS = ("tml-a", "tml-b")
ADDRESSES = ("10.77.0.1", "10.77.0.2")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def hosts() -> Iterator[None]:
    """Two namespaces with a cable between them."""
    for host in HOSTS:
        subprocess.run(["ip", "netns", "del", host], check=False, capture_output=True)
    for host in HOSTS:
        ip("netns", "add", host)
    ip("link", "add", "tml0", "netns", HOSTS[0], "type", "veth", "peer", "name", "tml1", "netns", HOSTS[1])
    for index, host in enumerate(HOSTS):
        ip("-n", host, "addr", "add", f"{ADDRESSES[index]}/24", "dev", f"tml{index}")
        ip("-n", host, "link", "set", f"tml{index}", "up")
        ip("-n", host, "link", "set", "lo", "up")
    yield
    for host in HOSTS:
        ip("netns", "del", host)


def start(
    folder: Path, node: int, *words: str, script: tuple[str, ...] = (), **environment: str
) -> subprocess.Popen[str]:
    """`traceml run` on one of the hosts; `script` are further words for the training."""
    command = ["ip", "netns", "exec", HOSTS[node], sys.executable, "-m", "traceml", "run", DDP]
    command += ["--run-name", "r", "--nproc-per-node", "1", "--nnodes", "2", "--node-rank", str(node)]
    command += ["--master-addr", ADDRESSES[0], "--master-port", "29611", *words]
    return subprocess.Popen(
        [*command, "--", "--backward", "30", "--steps", "50", *script],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": PYTHONPATH, "GLOO_SOCKET_IFNAME": f"tml{node}", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(both: list[subprocess.Popen[str]], folder: Path) -> dict[str, Any]:
    outputs = [running.communicate(timeout=150) for running in both]
    for running, (_, err) in zip(both, outputs, strict=True):
        assert running.returncode == 0, err
    found: dict[str, Any] = json.loads((folder / "logs" / "r" / "final_summary.json").read_text())
    return found


@pytest.mark.scenario
def test_two_hosts_with_a_shared_folder_become_one_run(hosts: None, tmp_path: Path) -> None:
    """The slow rank of the other host is named in node 0's summary; no flag but those of torchrun."""
    summary = finish([start(tmp_path, 0), start(tmp_path, 1)], tmp_path)
    assert summary["run"]["world_size"] == 2
    assert summary["run"]["ranks"]["used"] == [0, 1]
    assert summary["run"]["steps"]["total"] == 50
    primary = summary["primary_diagnosis"]
    assert (primary["status"], primary["ranks"], primary["phase"]) == ("COMPUTE STRAGGLER", [1], "backward")
    assert primary["evidence"]["excess_ms"] == pytest.approx(really(tmp_path, 30, summary, "fault"), rel=0.2)
    assert set(summary["system"]["nodes"]) == {"0", "1"}


@pytest.mark.scenario
def test_a_rank_killed_on_the_other_host_is_named(hosts: None, tmp_path: Path) -> None:
    """What the other host's monitor noticed reaches node 0: that rank went first, not the one that raised."""
    both = [start(tmp_path, node, script=("--kill-at", "25")) for node in (0, 1)]
    for running in both:
        running.communicate(timeout=150)
        assert running.returncode != 0
    run = json.loads((tmp_path / "logs" / "r" / "final_summary.json").read_text())["run"]
    first = run["ranks"]["ended_first"]
    assert (first["rank"], first["step"]) == (1, 25), run["reason"]
    assert "r1 was killed or crashed first: after step 25" in run["reason"]


@pytest.mark.scenario
def test_two_hosts_without_a_shared_folder_meet_by_key_and_port(hosts: None, tmp_path: Path) -> None:
    """Separate folders: TRACEML_KEY and --relay-port carry everything to node 0."""
    folders = [tmp_path / "a", tmp_path / "b"]
    both = []
    for node, folder in enumerate(folders):
        folder.mkdir()
        both.append(
            start(folder, node, "--relay-port", "29712", TRACEML_KEY="a secret of this very test run")
        )
    summary = finish(both, folders[0])
    assert summary["run"]["ranks"]["used"] == [0, 1]
    assert summary["run"]["steps"]["total"] == 50
    assert summary["primary_diagnosis"]["ranks"] == [1]


@pytest.mark.scenario
def test_node_0_unreachable_costs_nothing_and_view_merges_later(hosts: None, tmp_path: Path) -> None:
    """No way to node 0's relay: training goes on, rows stay on the node's disk, `view --merge` joins them."""
    folders = [tmp_path / "a", tmp_path / "b"]
    both = []
    for node, folder in enumerate(folders):
        folder.mkdir()
        both.append(start(folder, node, TRACEML_KEY=f"another secret on each of them: {node}"))
    alone = finish(both, folders[0])
    assert alone["run"]["ranks"]["used"] == [0]
    assert alone["run"]["ranks"]["lost"] == [1]
    done = subprocess.run(
        [sys.executable, "-m", "traceml", "view", "r", "--merge", "../b/logs/r.node1", "--json"],
        cwd=folders[0],
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    merged = json.loads(done.stdout)
    assert merged["run"]["ranks"]["used"] == [0, 1]
    assert merged["primary_diagnosis"]["ranks"] == [1]


def srun(folder: Path, *words: str, **environment: str) -> dict[str, Any]:
    """The summary of two tasks of a Slurm step, both on this machine."""
    tasks = []
    for task in range(2):
        slurm = {"PROCID": str(task), "NTASKS": "2", "JOB_ID": "4711", "STEP_ID": "0", "NODEID": str(task)}
        told = {f"SLURM_{name}": value for name, value in slurm.items()}
        tasks.append(
            subprocess.Popen(
                [sys.executable, "-m", "traceml", "run", DDP, *words],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": PYTHONPATH, "MASTER_ADDR": "127.0.0.1", **told}
                | {name: value.format(task=task) for name, value in environment.items()},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    for running in tasks:
        _, err = running.communicate(timeout=150)
        assert running.returncode == 0, err
    path = folder / "logs" / "ddp-slurm-4711.0" / "final_summary.json"
    summary: dict[str, Any] = json.loads(path.read_text())
    return summary


@pytest.mark.scenario
def test_slurm_tasks_find_each_other_from_the_environment(tmp_path: Path) -> None:
    """`srun traceml run python train.py`: rank, world size and run come from Slurm, without a flag."""
    ranks = {"RANK": "{task}", "WORLD_SIZE": "2", "MASTER_PORT": "29634"}
    summary = srun(tmp_path, "--", "--input", "30", "--steps", "40", **ranks)
    assert summary["run"]["ranks"]["used"] == [0, 1]
    assert summary["primary_diagnosis"]["status"] == "INPUT STRAGGLER"
    assert summary["primary_diagnosis"]["ranks"] == [1]


@pytest.mark.scenario
def test_torchrun_under_slurm_is_one_training(tmp_path: Path) -> None:
    """`srun traceml run train.py --nproc-per-node 1`: one world over all nodes, not one on each."""
    summary = srun(tmp_path, "--nproc-per-node", "1", "--", "--forward", "30", "--steps", "40")
    assert summary["run"]["world_size"] == 2
    assert summary["run"]["ranks"]["used"] == [0, 1]
    assert summary["primary_diagnosis"]["ranks"] == [1]
