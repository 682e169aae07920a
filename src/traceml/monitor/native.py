"""A disabled run: this process becomes the command, and nothing about TraceML can make that fail.

Only what decides the command is read (ranks and machines, for torchrun). What cannot be read is not used.
"""

import errno
import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from traceml.errors import CommandError, say
from traceml.monitor import launch
from traceml.monitor.this_node import find_this_node
from traceml.settings import LAUNCH_KEYS, read_file_settings, resolve

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""The exit codes of shells."""


def run(target: str, arguments: list[str], is_module: bool, flags: Mapping[str, str]) -> int:
    """Become the command. Returns an exit code only if there is no such command."""
    plain = launch.plain_command(target, arguments, is_module)
    environment = launch.given_environment()
    settings = resolve(flags, _file_values(), environment=environment, only=LAUNCH_KEYS)
    is_python = launch.is_python(target, is_module)
    if not is_python or (settings.nproc_per_node is None and settings.nnodes == 1):
        return become(plain, environment)
    # With a name, Slurm's variables need no look into the logs folder for a free one.
    named = replace(settings, run_name="disabled")
    try:
        node = find_this_node(named, environment, "disabled")
        command = launch.with_ranks(plain, settings, node, is_python)
    except CommandError:
        if LAUNCH_KEYS & flags.keys():
            raise  # typed just now
        command = plain  # a variable or a file asks for what is not possible
    return become(command, environment)


def become(command: list[str], environment: Mapping[str, str]) -> int:
    """Replace this process; the exit code of a shell if that is impossible."""
    native = launch.native_environment(environment)
    for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores these, and ignored signals are inherited
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        try:
            os.execvpe(command[0], command, native)
        except OSError as problem:
            if problem.errno != errno.ENOEXEC:
                raise
            shell = launch.shell_command(command, native)
            os.execve(shell[0], shell, native)
    except OSError as problem:
        say(f"{command[0]}: cannot be started ({problem.strerror})")
        return NOT_FOUND if problem.errno in (errno.ENOENT, errno.ENOTDIR) else NOT_EXECUTABLE


def _file_values() -> dict[str, Any]:
    """The settings file, if it is a readable one."""
    try:
        return read_file_settings(Path())[0]
    except (CommandError, ImportError, OSError, RecursionError, ValueError):
        return {}
