"""`traceml attach`: the detached monitor of a process that called `traceml.init()` by itself."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from traceml.cli.run import answer, finish
from traceml.collect import monitor, rundir
from traceml.collect.surroundings import Surroundings
from traceml.errors import failsafe
from traceml.settings import resolve


def main(words: list[str]) -> int:
    """Answer with the run folder on standard output, then watch the process until it ends."""
    parser = argparse.ArgumentParser(prog="traceml attach", description=__doc__)
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--run-name")
    parser.add_argument("--logs-dir")
    parser.add_argument("command", nargs="*")
    given = parser.parse_args(words)
    flags = {"run_name": given.run_name, "logs_dir": given.logs_dir}
    settings = resolve({k: v for k, v in flags.items() if v}, {})
    script = next((w for w in given.command if w.endswith(".py")), "run")
    folder = rundir.create(settings.logs_dir, settings.run_name, [script], settings.overwrite)
    surroundings = Surroundings(Path.cwd())
    manifest = monitor.begin_manifest(folder, given.command, settings.mode, surroundings.facts)
    sys.stdout.write(f"{folder}\n")
    sys.stdout.flush()
    os.close(1)  # the process waits for this line only

    def poll(seconds: float) -> int | None:
        if not rundir.is_alive(given.pid) or os.getppid() != given.pid:
            return 0
        time.sleep(seconds)
        return None

    watcher = monitor.Monitor(folder, settings.interval, settings.stall_after, answer, dict(os.environ))
    watcher.watch(poll)
    ended = {**monitor.end_manifest(folder, manifest, None, []), "environment": surroundings.facts}
    failsafe("writing the manifest", None)(rundir.write_manifest)(folder, ended)
    finish(folder, ended, settings.quiet)
    return 0
