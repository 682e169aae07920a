"""One run on several machines: which of them this is, and the relay that carries its rows to machine 0.

Under Slurm each task of `srun traceml run ...` is a member of its own; else each machine is, by --node-rank.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from traceml.errors import CommandError, failsafe, say
from traceml.schema.slurm import find_task
from traceml.settings import Settings

DRAIN_S: Final = 10.0
MASTER_PORT: Final = 29_500


@dataclass(frozen=True, slots=True)
class Place:
    """This monitor's place among those of the run."""

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
        """The run's name on the first member; the others keep what they record beside it."""
        return (
            self.run_name if self.is_first or self.run_name is None else f"{self.run_name}.node{self.index}"
        )


def find_place(settings: Settings, environment: Mapping[str, str], stem: str) -> Place:
    """From the flags, else from Slurm, else alone."""
    if settings.nnodes > 1:
        if settings.node_rank is None or settings.run_name is None:
            raise CommandError("--nnodes needs --node-rank and the same --run-name on every machine")
        if settings.node_rank >= settings.nnodes:
            raise CommandError(f"--node-rank {settings.node_rank} is not below --nnodes {settings.nnodes}")
        return _place(settings, settings.node_rank, settings.nnodes, settings.run_name)
    return _slurm_place(settings, environment, stem) or _place(settings, 0, 1, settings.run_name)


def _place(settings: Settings, index: int, count: int, name: str | None) -> Place:
    return Place(
        index, count, name, settings.master_addr, settings.master_port or MASTER_PORT, settings.relay_port
    )


def _slurm_place(settings: Settings, environment: Mapping[str, str], stem: str) -> Place | None:
    """Of a task that `srun` started with others."""
    found = find_task(environment)
    if found is None or found.tasks < 2:
        return None
    tasks, task, step, job = found
    again = environment.get("SLURM_RESTART_COUNT", "0")
    name = f"{stem}-slurm-{job}.{step}" + (f".{again}" if again != "0" else "")
    place = _place(settings, task, tasks, settings.run_name or name)
    address = settings.master_addr or environment.get("MASTER_ADDR")
    address = address or first_host(environment.get("SLURM_STEP_NODELIST", ""))
    place = replace(place, master_addr=address, master_port=settings.master_port or 20_000 + job % 20_000)
    number = 1
    # A second run in the same task: every task had a first one, so that all come to the same number.
    while settings.run_name is None and (Path(settings.logs_dir) / str(place.folder_name)).exists():
        number += 1
        place = replace(place, run_name=f"{name}-{number}")
    return place


def first_host(hosts: str) -> str | None:
    """The first of `a,b` or `n[01-04,07]`, as Slurm writes lists of hosts."""
    found = re.match(r"([^,\[]*)(?:\[(\w+)[^\]]*\]([^,]*))?", hosts)
    return "".join(part or "" for part in found.groups()) or None if found else None


class Relay:
    """The relay's end on this member; a run on one machine has none. Trouble here never touches training."""

    def __init__(self, place: Place, folder: Path, environment: Mapping[str, str]) -> None:
        self._place = place
        self._server: Any = None
        self._client: Any = None
        self._background: Any = None
        if place.count > 1:
            failsafe("the relay between machines", None)(self._start)(folder, environment)

    def _start(self, folder: Path, environment: Mapping[str, str]) -> None:
        from traceml.collect.relay.background import BackgroundRelay

        place = self._place
        if place.is_first:
            from traceml.collect.relay.keys import create_key
            from traceml.collect.relay.server import RelayServer

            key = create_key(folder, environment)
            self._server = RelayServer(
                folder, key, nodes=place.count, bind_port=place.relay_port, advertise=place.master_addr
            )
            self._background = BackgroundRelay(self._server)
            return
        from traceml.collect.relay.client import RelayClient

        address = None
        if place.master_addr is not None and place.relay_port is not None:
            address = f"{place.master_addr}:{place.relay_port}"
        shared = folder.parent / str(place.run_name)
        self._client = RelayClient(
            folder, place.index, shared_dir=shared, server_address=address, environment=environment
        )
        self._background = BackgroundRelay(self._client)

    def safe_rows(self, name: str) -> int:
        """How many rows of this recording of ours the first member has as well."""
        return self._client.acknowledged(name) if self._client is not None else 0

    def close(self) -> list[str]:
        """Deliver, or wait for, the rest. What is missing stays on the other machine's disk; in words."""
        if self._background is None:
            return []
        complete = failsafe("the relay between machines", False)(self._background.close)(DRAIN_S)
        if self._server is None:
            if not complete:
                say("not every row reached node 0; they are kept here, `traceml view` can merge them")
            return []
        heard = self._server.nodes()
        silent = [k for k in range(1, self._place.count) if k not in heard]
        partly = [k for k, status in heard.items() if not status.complete]
        return [
            f"{what} node {', '.join(map(str, nodes))}: `traceml view --merge` adds what is on its disk."
            for what, nodes in (("Nothing came from", silent), ("Not every row came from", partly))
            if nodes
        ]
