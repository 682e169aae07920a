"""A process with TraceML loaded that runs `traceml <words>` in forks: hundreds of cases, one import.

Each fork has little memory and time, and no right to ignore the modes of files.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import resource
import signal
import sys
import time
from typing import Any

PRELOADED = (
    "cli.run",
    "cli.view",
    "cli.runs",
    "cli.compare",
    "cli.attach",
    "monitor.result",
    "monitor.gauges",
)
MOST_BYTES = 1 << 30
MOST_CPU_S = 30
MOST_S = 120.0
"""For what waits; a busy machine may need long for little work."""
CAPABILITY_VERSION_3 = 0x20080522
MODES_IGNORED = 1 << 1 | 1 << 2
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH let root look into folders with mode 000."""


def serve() -> None:
    """One JSON line in, one JSON line with the exit code out; 'slow' if the command had to be killed."""
    for name in PRELOADED:
        importlib.import_module(f"traceml.{name}")
    import yaml  # noqa: F401

    import traceml.recording.rollup  # noqa: F401

    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _run(json.loads(line))
        print(json.dumps(_exit_code(pid)), flush=True)


def _exit_code(pid: int) -> int | str:
    deadline = time.monotonic() + MOST_S
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return "slow"
        time.sleep(0.002)


def _run(request: dict[str, Any]) -> None:
    code = 70
    try:
        os.setsid()
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["env"])
        for descriptor, path in ((0, os.devnull), (1, request["stdout"]), (2, request["stderr"])):
            opened = os.open(path, os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT)
            os.dup2(opened, descriptor)
            os.close(opened)
        limit()
        if request["closed"] is not None:
            os.chmod(request["closed"], 0)
        from traceml.cli.main import main

        code = main([os.fsdecode(bytes.fromhex(word)) for word in request["words"]])
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException as problem:  # noqa: BLE001 - reported as Python itself does it
        sys.excepthook(type(problem), problem, problem.__traceback__)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def limit() -> None:
    """For this process, and for those that it starts (but root's get their rights back)."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_S, MOST_CPU_S))
    libc, head = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)()  # twice: effective, permitted, inheritable
    libc.capget(head, sets)
    sets[0] &= ~MODES_IGNORED & 0xFFFF_FFFF
    libc.capset(head, sets)


if __name__ == "__main__":
    serve()
