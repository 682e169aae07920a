"""`traceml attach`: the monitor that `traceml.init()` starts for a script without `traceml run`."""

from __future__ import annotations

import argparse
import os
import time

from traceml.cli.main import Parser
from traceml.errors import CommandError
from traceml.monitor.loop import Monitor
from traceml.monitor.mirror import Mirror
from traceml.runs import folder as run_folder
from traceml.runs.liveness import is_alive, start_time
from traceml.settings import resolve


def _process_id(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise argparse.ArgumentTypeError("use the number of a process")
    return int(text)


def main(words: list[str]) -> int:
    """Print the run folder to standard output, then watch the process until it ends."""
    parser = Parser("traceml attach", "traceml attach --pid PID [options] [COMMAND ...]", str(__doc__))
    parser.add_argument("--pid", type=_process_id, required=True)
    parser.add_argument("--run-name")
    parser.add_argument("--logs-dir")
    parser.add_argument("command", nargs="*")
    given = parser.parse_args(words)
    if given.pid != os.getppid():
        raise CommandError("attach: started by traceml.init() only; use `traceml run`")
    if hasattr(os, "fork") and os.fork():
        os._exit(0)  # not a child of the script, which may wait for all of its children
    began = start_time(given.pid)
    flags = {"run_name": given.run_name, "logs_dir": given.logs_dir}
    settings = resolve({k: v for k, v in flags.items() if v}, {})
    script = next((w for w in given.command if w.endswith(".py")), "run")
    folder = run_folder.create(settings.logs_dir, settings.run_name, script, settings.overwrite)
    home, folder = folder, run_folder.recorded_in(folder)
    mirror = Mirror(folder, home)
    monitor = Monitor(folder, given.command, settings, mirror.safe_rows)
    os.write(1, os.fsencode(f"{folder}\t{home}\n"))
    os.close(1)  # the process waits only for this line

    def poll(seconds: float) -> int | None:
        if not is_alive(given.pid) or start_time(given.pid) != began:
            return 0
        time.sleep(seconds)
        return None

    monitor.watch(poll)
    monitor.finish(None, [], drain=list, settle=mirror.close, quiet=settings.quiet)
    return 0
