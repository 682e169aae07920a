"""From what the user typed to a command line and an environment for it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from traceml.collect.nodes import Place
from traceml.errors import CommandError
from traceml.settings import DISABLED_VARIABLE


def python_command(target: str, arguments: list[str], is_module: bool) -> list[str]:
    """The argv to start: a script or module with our Python, anything else as it stands."""
    if is_module:
        return [sys.executable, "-m", target, *arguments]
    path = Path(target)
    if target.endswith(".py") or (path.is_dir() and (path / "__main__.py").exists()):
        if not path.exists():
            raise CommandError(f"{target}: no such file; give a script, `-m module` or a command")
        if path.is_dir() and target.endswith(".py"):
            raise CommandError(f"{target} is a folder, not a script")
        return [sys.executable, target, *arguments]
    if path.is_file() and not os.access(path, os.X_OK):
        raise CommandError(f"{target} is neither a Python script (.py) nor executable")
    if shutil.which(target) is None:
        raise CommandError(
            f"{target}: no such script or command; give a script (.py), `-m module` or a command"
        )
    return [target, *arguments]


def torchrun_command(plain: list[str], nproc_per_node: str, place: Place) -> list[str]:
    """torchrun around a Python command. On one machine it picks a free port: runs can stand side by side."""
    command = [plain[0], "-m", "torch.distributed.run", f"--nproc-per-node={nproc_per_node}"]
    if place.count == 1:
        command.append("--standalone")
    elif place.master_addr is None:
        raise CommandError("several machines need --master-addr: the one that all of them reach")
    else:
        command += [
            f"--nnodes={place.count}",
            f"--node-rank={place.index}",
            f"--master-addr={place.master_addr}",
            f"--master-port={place.master_port}",
        ]
    return [*command, *plain[1:]]


def injected_environment(environment: Mapping[str, str], run_dir: Path) -> dict[str, str]:
    """The environment under which every Python child records into `run_dir`."""
    inject = str(Path(__file__).resolve().parent.parent / "inject")
    before = environment.get("PYTHONPATH")
    path = inject if not before else os.pathsep.join([inject, before])
    # Whether to record is settled here: TRACEML_DISABLED=no must not be read as yes further down.
    kept = {k: v for k, v in environment.items() if k != DISABLED_VARIABLE}
    return {**kept, "PYTHONPATH": path, "TRACEML_RUN_DIR": str(run_dir)}


def native_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without anything of ours, for a disabled run."""
    return {k: v for k, v in environment.items() if k != "TRACEML_RUN_DIR"}
