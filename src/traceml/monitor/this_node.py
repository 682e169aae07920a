"""One run on several machines: which of them this is.

Under Slurm each task of `srun traceml run ...` counts as a node; else each machine does, by --node-rank.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from traceml.errors import CommandError
from traceml.schema.slurm import MOST_DIGITS, find_task
from traceml.settings import Settings

MASTER_PORT: Final = 29_500


@dataclass(frozen=True, slots=True)
class ThisNode:
    """Which of the run's nodes this monitor is on."""

    index: int
    count: int
    run_name: str | None
    master_addr: str | None
    master_port: int
    relay_port: int | None

    @property
    def is_first(self) -> bool:
        return self.index == 0

    @property
    def folder_name(self) -> str | None:
        """The run's name on node 0; the others keep what they record beside it."""
        return (
            self.run_name if self.is_first or self.run_name is None else f"{self.run_name}.node{self.index}"
        )


def find_this_node(settings: Settings, environment: Mapping[str, str], stem: str) -> ThisNode:
    """From the flags, else from Slurm; else this machine is the only one."""
    if settings.nnodes > 1:
        if settings.node_rank is None or settings.run_name is None:
            raise CommandError("--nnodes needs --node-rank and the same --run-name on every machine")
        if settings.node_rank >= settings.nnodes:
            raise CommandError(f"--node-rank {settings.node_rank} is not below --nnodes {settings.nnodes}")
        return _node(settings, settings.node_rank, settings.nnodes, settings.run_name)
    return _slurm_node(settings, environment, stem) or _node(settings, 0, 1, settings.run_name)


def _node(settings: Settings, index: int, count: int, name: str | None) -> ThisNode:
    return ThisNode(
        index, count, name, settings.master_addr, settings.master_port or MASTER_PORT, settings.relay_port
    )


def _slurm_node(settings: Settings, environment: Mapping[str, str], stem: str) -> ThisNode | None:
    """For a task that `srun` started together with others."""
    found = find_task(environment)
    if found is None or found.tasks < 2:
        return None
    tasks, task, step, job = found
    again = environment.get("SLURM_RESTART_COUNT", "")
    is_again = again.isascii() and again.isdigit() and len(again) <= MOST_DIGITS and int(again) > 0
    name = f"{stem}-slurm-{job}.{step}" + (f".{int(again)}" if is_again else "")
    node = _node(settings, task, tasks, settings.run_name or name)
    address = settings.master_addr or environment.get("MASTER_ADDR")
    address = address or first_host(environment.get("SLURM_STEP_NODELIST", ""))
    node = replace(node, master_addr=address, master_port=settings.master_port or 20_000 + job % 20_000)
    number = 1
    # A second run in the same job step: every task had a first one, so all get the same number.
    while settings.run_name is None and os.path.exists(
        os.path.join(settings.logs_dir, str(node.folder_name))
    ):
        number += 1
        node = replace(node, run_name=f"{name}-{number}")
    return node


def first_host(hosts: str) -> str | None:
    """The first of `a,b` or `n[01-04,07]`, as Slurm writes lists of hosts."""
    found = re.match(r"([^,\[]*)(?:\[(\w+)[^\]]*\]([^,]*))?", hosts)
    return "".join(part or "" for part in found.groups()) or None if found else None
