"""A process with torch loaded that runs `traceml run` in forks, so that no scenario pays for the import.

Everything of TraceML is the real thing: the command line, the monitor, the injected `sitecustomize`, the
recording, the summary. Only starting a new Python is replaced by a fork of this process, in which torch is
imported but untouched. Start-up by the real launchers is checked by the tests of the launchers.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import json
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

PRELOADED = (
    "torch",
    "torch._dynamo",
    "torch.distributed._functional_collectives",
    "torch.distributed.checkpoint",
    "torch.distributed.device_mesh",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.nn.parallel",
    "torch.utils.data",
    "traceml.cli.run",
    "traceml.monitor.child",
    "traceml.monitor.gauges",
    "traceml.monitor.result",
    "traceml.monitor.watchdog",
)
RUN_TIMEOUT_S = 240.0
TORCHRUN = ["-m", "torch.distributed.run"]


def serve() -> None:
    """Run one request after the other; one JSON line in, one JSON line with the exit code out."""
    for name in (*PRELOADED, *sys.argv[1:]):
        importlib.import_module(name)
    for line in sys.stdin:
        request = json.loads(line)
        pid = fork(functools.partial(_run_plainly if request["plain"] else _run_traceml, request))
        print(json.dumps({"code": _exit_code(pid)}), flush=True)


def fork(work: Callable[[], object]) -> int:
    """Do this work in a new process, which ends like a Python process that was started for it."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        _end_process(_code_of(work))
    return pid


def _code_of(work: Callable[[], object]) -> int:
    """The exit code of a Python process that does this work and nothing else."""
    try:
        work()
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    except BaseException as error:  # noqa: BLE001 - reported as Python itself does it
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def _end_process(code: int) -> NoReturn:
    """End as Python does, but leave the memory to the kernel: freeing torch in a fork takes 2 s."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _exit_code(pid: int) -> int:
    """Wait for a run; what is left of one that takes too long is killed."""
    deadline = time.monotonic() + RUN_TIMEOUT_S
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.killpg(pid, signal.SIGKILL)
        time.sleep(0.005)


def _run_traceml(request: dict[str, Any]) -> NoReturn:
    """`traceml <words>` as its own process group, with output going to files."""
    from traceml.cli import main as command_line
    from traceml.monitor import child

    _take_place(request)
    child.subprocess = types.SimpleNamespace(Popen=ForkedCommand)  # type: ignore[attr-defined, assignment]
    sys.exit(command_line.main(request["words"]))


def _run_plainly(request: dict[str, Any]) -> None:
    """`python <words>` without TraceML, likewise."""
    _take_place(request)
    _run_script(request["words"], request["env"])


def _take_place(request: dict[str, Any]) -> None:
    """Become a process group of the request's folder, environment, and files for output."""
    os.setsid()
    os.chdir(request["cwd"])
    if request["umask"] is not None:
        os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["env"])
    for descriptor, path in ((0, os.devnull), (1, request["stdout"]), (2, request["stderr"])):
        opened = os.open(path, os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, descriptor)
        os.close(opened)


class ForkedCommand:
    """What TraceML's monitor uses of `subprocess.Popen`, for `python script` and for torchrun."""

    def __init__(
        self,
        command: list[str],
        env: Mapping[str, str],
        close_fds: bool = False,
        preexec_fn: Callable[[], None] | None = None,
    ) -> None:
        assert command[0] == sys.executable, f"only Python can be forked, not {command[0]}"
        self.returncode: int | None = None

        def work() -> None:
            _reset_signals()
            if preexec_fn is not None:
                preexec_fn()
            if command[1:3] == TORCHRUN:
                _launch_ranks(command[3:], env)
            else:
                _run_script(command[1:], env)

        self.pid = fork(work)

    def poll(self) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def _reset_signals() -> None:
    """What exec does to the monitor's handlers, and a new Python to Ctrl-C."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _run_script(words: list[str], environment: Mapping[str, str]) -> None:
    """What a fresh `python script arguments` does: site, then the script as `__main__`."""
    os.environ.clear()
    os.environ.update(environment)
    path = [entry for entry in environment["PYTHONPATH"].split(os.pathsep) if entry]
    sys.path[:] = [str(Path(words[0]).resolve().parent), *path, *sys.path[1:]]
    sys.argv = words
    sys.modules.pop("sitecustomize", None)
    with contextlib.suppress(ModuleNotFoundError):  # a plain run has none
        import sitecustomize  # noqa: F401
    main = types.ModuleType("__main__")
    main.__file__ = words[0]
    sys.modules["__main__"] = main
    exec(compile(Path(words[0]).read_bytes(), words[0], "exec"), main.__dict__)


def _launch_ranks(words: list[str], environment: Mapping[str, str]) -> None:
    """What torchrun does on one machine: a store, a process per rank, and one failure ends them all."""
    count = int(words[0].removeprefix("--nproc-per-node="))
    assert words[1] == "--standalone", words
    common = {**environment, "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "GROUP_RANK": "0"}
    common |= {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    common |= {"TORCHELASTIC_RESTART_COUNT": "0", "OMP_NUM_THREADS": "1"}
    pipes, ranks = [os.pipe() for _ in range(count)], []
    for rank, (reading, _) in enumerate(pipes):
        own = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}

        def work(own: dict[str, str] = own, reading: int = reading) -> None:
            _run_script(words[2:], {**own, "MASTER_PORT": os.read(reading, 16).decode()})

        ranks.append(fork(work))
    from torch.distributed import TCPStore

    # After the forks: the store has threads. It picks a free port, so that runs can stand side by side.
    store = TCPStore("127.0.0.1", 0, world_size=count, is_master=True, wait_for_workers=False)
    for _, writing in pipes:
        os.write(writing, str(store.port).encode())
    failed = False
    while ranks:
        pid, status = os.wait()
        ranks.remove(pid)
        if status and not failed:
            failed = True
            for other in ranks:
                os.kill(other, signal.SIGTERM)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    serve()
