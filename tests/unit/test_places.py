"""Which machine or Slurm task of a run this is, and what torchrun is started with."""

from __future__ import annotations

from pathlib import Path

import pytest

from traceml.capture.rank import identify
from traceml.errors import CommandError
from traceml.monitor.launch import find_this_node, first_host, torchrun_command
from traceml.settings import Settings, resolve

TASK = {"SLURM_NTASKS": "2", "SLURM_PROCID": "1", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "5"}


def settings(folder: Path, **flags: str) -> Settings:
    return resolve({"logs_dir": str(folder), **flags}, {}, "")


def test_srun_task_is_a_member_of_the_run(tmp_path: Path) -> None:
    """Place and run name come from Slurm; a requeued job is another run."""
    place = find_this_node(settings(tmp_path), TASK, "train")
    assert (place.index, place.count, place.folder_name) == (1, 2, "train-slurm-5.0.node1")
    again = find_this_node(settings(tmp_path), {**TASK, "SLURM_RESTART_COUNT": "1"}, "train")
    assert again.run_name == "train-slurm-5.0.1"


@pytest.mark.parametrize("task", ["0", "1"])
def test_a_second_run_in_the_same_task_is_not_refused(tmp_path: Path, task: str) -> None:
    """Training comes first: the name is numbered, by every task alike."""
    environment = {**TASK, "SLURM_PROCID": task}
    first = find_this_node(settings(tmp_path), environment, "train")
    (tmp_path / str(first.folder_name)).mkdir()
    second = find_this_node(settings(tmp_path), environment, "train")
    assert second.run_name == "train-slurm-5.0-2"
    named = find_this_node(settings(tmp_path, run_name="mine"), environment, "train")
    assert named.run_name == "mine"


@pytest.mark.parametrize(
    "changed", [{"SLURM_STEP_ID": ""}, {"SLURM_STEP_ID": "4294967291"}, {"SLURM_NTASKS": "1"}]
)
def test_batch_script_is_not_a_task(tmp_path: Path, changed: dict[str, str]) -> None:
    """`sbatch` sets most of the variables as well; only srun starts members."""
    place = find_this_node(settings(tmp_path), {**TASK, **changed}, "train")
    assert (place.index, place.count, place.run_name) == (0, 1, None)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, (1, 2)),
        ({"SLURM_STEP_ID": "4294967291"}, (0, 1)),
        ({"SLURM_STEP_ID": ""}, (0, 1)),
        ({"RANK": "6", "WORLD_SIZE": "8"}, (6, 8)),
    ],
)
def test_rank_given_by_the_launcher_has_precedence(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, str], expected: tuple[int, int]
) -> None:
    """Without a process group: torchrun's numbers, else those of a Slurm task, else one rank alone."""
    for name, value in {"RANK": "", "WORLD_SIZE": "", **TASK, **changed}.items():
        monkeypatch.setenv(name, value)
    found = identify(None)
    assert (found["rank"], found["world_size"]) == expected


def test_torchrun_on_every_node_of_a_slurm_job(tmp_path: Path) -> None:
    """One training over all nodes, not one on each."""
    environment = {**TASK, "SLURM_STEP_NODELIST": "gpu[07-08]"}
    place = find_this_node(settings(tmp_path), environment, "train")
    command = torchrun_command(["python", "train.py"], "4", place)
    assert command[3:] == [
        "--nproc-per-node=4",
        "--nnodes=2",
        "--node-rank=1",
        "--master-addr=gpu07",
        "--master-port=20005",
        "train.py",
    ]
    unknown = find_this_node(settings(tmp_path), TASK, "train")
    with pytest.raises(CommandError, match="--master-addr"):
        torchrun_command(["python", "train.py"], "4", unknown)


@pytest.mark.parametrize(
    ("hosts", "first"),
    [("a,b", "a"), ("n[01-04,07]", "n01"), ("n[3,5]-ib,m1", "n3-ib"), ("alone", "alone"), ("", None)],
)
def test_the_first_host_of_a_list(hosts: str, first: str | None) -> None:
    """As Slurm writes them."""
    assert first_host(hosts) == first


def test_one_machine_needs_no_address(tmp_path: Path) -> None:
    """torchrun picks a free port by itself."""
    place = find_this_node(settings(tmp_path), {}, "train")
    assert "--standalone" in torchrun_command(["python", "train.py"], "2", place)
