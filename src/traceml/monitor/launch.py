"""From what the user typed to a command line and an environment for it, on each machine of a run."""

import errno
import os
import re
import shutil
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from traceml.errors import CommandError, say
from traceml.schema.slurm import MOST_DIGITS, find_task
from traceml.settings import (
    DISABLED_VARIABLE,
    KEY_VARIABLE,
    LAUNCH_KEYS,
    Settings,
    for_training,
    read_file_settings,
    resolve,
)

LAUNCHERS: Final = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "deepspeed.launcher.runner",
)
"""Modules that start ranks of their own, with flags like ours: `-m` and one of them is a command."""
MASTER_PORT: Final = 29_500
NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""The exit codes of shells."""


@dataclass(frozen=True, slots=True)
class ThisNode:
    """Which of the run's nodes this monitor is on. Under Slurm each task of `srun traceml run ...` counts as
    a node; else each machine does, by --node-rank."""

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
        is_plain = self.is_first or self.run_name is None
        return self.run_name if is_plain else f"{self.run_name}.node{self.index}"


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
    port = settings.master_port or MASTER_PORT
    return ThisNode(index, count, name, settings.master_addr, port, settings.relay_port)


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
    while settings.run_name is None and os.path.exists(f"{settings.logs_dir}/{node.folder_name}"):
        number += 1
        node = replace(node, run_name=f"{name}-{number}")
    return node


def first_host(hosts: str) -> str | None:
    """The first of `a,b` or `n[01-04,07]`, as Slurm writes lists of hosts."""
    found = re.match(r"([^,\[]*)(?:\[(\w+)[^\]]*\]([^,]*))?", hosts)
    return "".join(part or "" for part in found.groups()) or None if found else None


def is_python(target: str, is_module: bool) -> bool:
    """Whether this is a script or a module that trains, not a command of its own."""
    return target not in LAUNCHERS if is_module else target.endswith(".py")


def python_command(target: str, arguments: list[str], is_module: bool) -> list[str]:
    """The argv to start, or one clear line about why it cannot work."""
    command = plain_command(target, arguments, is_module)
    if is_module:
        return command
    # `os.path` and not `Path`: its questions never raise, whatever the path is.
    if target.endswith(".py"):
        if not os.path.exists(target):
            raise CommandError(f"{target}: no such file; give a script, `-m module` or a command")
        if os.path.isdir(target):
            raise CommandError(f"{target} is a folder, not a script")
    elif command[0] == target:
        if os.path.isfile(target) and not os.access(target, os.X_OK):
            raise CommandError(f"{target} is neither a Python script (.py) nor executable")
        if shutil.which(target) is None:
            raise CommandError(
                f"{target}: no such script or command; give a script (.py), `-m module` or a command"
            )
    return command


def plain_command(target: str, arguments: list[str], is_module: bool) -> list[str]:
    """A script, a module or a folder with a `__main__.py` with our Python; anything else as it stands."""
    if is_module:
        return [sys.executable, "-m", target, *arguments]
    if target.endswith(".py") or os.path.exists(os.path.join(target, "__main__.py")):
        return [sys.executable, target, *arguments]
    return [target, *arguments]


def shell_command(command: list[str], environment: Mapping[str, str]) -> list[str]:
    """For an executable text file without `#!`, which the kernel refuses (ENOEXEC): what shells do then."""
    return ["/bin/sh", shutil.which(command[0], path=environment.get("PATH")) or command[0], *command[1:]]


def with_ranks(plain: list[str], settings: Settings, node: ThisNode, is_python: bool) -> list[str]:
    """The command itself, or torchrun around it if ranks were asked for."""
    ranks = settings.nproc_per_node or ("1" if settings.nnodes > 1 and is_python else None)
    if ranks is None:
        return plain
    if not is_python:
        raise CommandError("--nproc-per-node starts a script or `-m module`; a command starts its own ranks")
    return torchrun_command(plain, ranks, node)


def torchrun_command(plain: list[str], nproc_per_node: str, node: ThisNode) -> list[str]:
    """torchrun around a Python command. On one machine it picks a free port: runs can stand side by side."""
    command = [plain[0], "-m", "torch.distributed.run", f"--nproc-per-node={nproc_per_node}"]
    if node.count == 1:
        command.append("--standalone")
    elif node.master_addr is None:
        raise CommandError("several machines need --master-addr: the one that all of them reach")
    else:
        command += [
            f"--nnodes={node.count}",
            f"--node-rank={node.index}",
            f"--master-addr={node.master_addr}",
            f"--master-port={node.master_port}",
        ]
    return [*command, *plain[1:]]


def injected_environment(
    environment: Mapping[str, str], run_dir: Path, settings: Settings | None = None
) -> dict[str, str]:
    """The environment under which every Python child records into `run_dir`, as the settings say."""
    inject = str(Path(__file__).resolve().parent.parent / "inject")
    before = environment.get("PYTHONPATH")
    path = inject if not before else os.pathsep.join([inject, before])
    # Whether to record is decided here: TRACEML_DISABLED=no must not be read as yes further down.
    # The relay's secret is between the monitors; training never needs it.
    decided = for_training(settings if settings is not None else Settings())
    ours = (*decided, DISABLED_VARIABLE, KEY_VARIABLE)
    kept = {k: v for k, v in environment.items() if k not in ours}
    asked = {k: v for k, v in decided.items() if v}
    return {**kept, **asked, "PYTHONPATH": path, "TRACEML_RUN_DIR": str(run_dir)}


def native_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without anything of ours, for a disabled run."""
    kept = {k: v for k, v in environment.items() if k != "TRACEML_RUN_DIR"}
    return {**kept, DISABLED_VARIABLE: "1"}


def given_environment() -> dict[str, str]:
    """Our environment without the LC_CTYPE that Python sets for itself when it starts in the C locale."""
    found = dict(os.environ)
    if "LC_CTYPE" in found:
        try:
            given = Path("/proc/self/environ").read_bytes().split(b"\0")
        except OSError:
            return found  # not Linux
        if not any(entry.startswith(b"LC_CTYPE=") for entry in given):
            del found["LC_CTYPE"]
    return found


def keep_standard_files_apart() -> None:
    """Where standard input, output or error is closed, no file of ours may take its number."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass  # stays open, in this process only
    os.close(descriptor)


def run_disabled(target: str, arguments: list[str], is_module: bool, flags: Mapping[str, str]) -> int:
    """A disabled run: this process becomes the command, and nothing about TraceML can make that fail. Returns
    an exit code only if there is no such command.

    Only what decides the command is read (ranks and machines, for torchrun). What cannot be read is not used.
    """
    plain = plain_command(target, arguments, is_module)
    environment = given_environment()
    try:
        values: dict[str, Any] = read_file_settings(Path())[0]
    except (CommandError, ImportError, OSError, RecursionError, ValueError):
        values = {}
    settings = resolve(flags, values, environment=environment, only=LAUNCH_KEYS)
    if not is_python(target, is_module) or (settings.nproc_per_node is None and settings.nnodes == 1):
        return become(plain, environment)
    # With a name, Slurm's variables need no look into the logs folder for a free one.
    named = replace(settings, run_name="disabled")
    try:
        node = find_this_node(named, environment, "disabled")
        command = with_ranks(plain, settings, node, is_python=True)
    except CommandError:
        if LAUNCH_KEYS & flags.keys():
            raise  # typed just now
        command = plain  # a variable or a file asks for what is not possible
    return become(command, environment)


def become(command: list[str], environment: Mapping[str, str]) -> int:
    """Replace this process; the exit code of a shell if that is impossible."""
    native = native_environment(environment)
    for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores these, and ignored signals are inherited
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        try:
            os.execvpe(command[0], command, native)
        except OSError as problem:
            if problem.errno != errno.ENOEXEC:
                raise
            shell = shell_command(command, native)
            os.execve(shell[0], shell, native)
    except OSError as problem:
        say(f"{command[0]}: cannot be started ({problem.strerror})")
        return NOT_FOUND if problem.errno in (errno.ENOENT, errno.ENOTDIR) else NOT_EXECUTABLE
