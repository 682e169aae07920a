"""`traceml watch`: the live view of a run that is going on; or a command with its machine watched."""

import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Final

from traceml.cli import run as run_command
from traceml.cli.main import show
from traceml.errors import CommandError, say
from traceml.monitor import display
from traceml.monitor.display import OutputTail
from traceml.monitor.live import LiveRun, find_run
from traceml.present.columns import fitting
from traceml.present.text import render, status_line
from traceml.runs.manifest import OUTPUT_LOG, read_manifest, recorded_at
from traceml.schema import WATCH_ONLY
from traceml.settings import read_file_settings, resolve

USAGE: Final = """\
usage: traceml watch RUN [--logs-dir DIR]
       traceml watch [options] train.py [arguments of the script]
       traceml watch [options] COMMAND [arguments of the command]

Show a run while it goes on: the verdict, the step-time table of the phases, memory, machine, ranks and
output. RUN is a run folder, a name under logs/, or the number of one of its processes. `q` leaves the
view, and the training goes on. Without a terminal, a status line is printed every 30 s.

With a script or command, start it, and watch the machine and the process only: no steps are recorded,
and nothing is injected. The options are those of `traceml run`, without --mode.

examples:
  traceml watch my_run          the run in logs/my_run, from another shell
  traceml watch 4711            the run that process 4711 trains in
  traceml watch train.py        CPU, memory and GPU of a script that runs untouched
"""
LOOK_EVERY_S: Final = 0.5


def main(words: list[str]) -> int:
    """Attach to a run that is there, otherwise start the command."""
    parsed = run_command.parse(words)
    if parsed.help:
        show(USAGE)
        return 0
    if not parsed.target:
        raise CommandError("give a run or a script: traceml watch my_run; `traceml runs` lists the runs")
    if "mode" in parsed.flags:
        raise CommandError("--mode belongs to `traceml run`; `traceml watch` always shows the live view")
    if parsed.is_python or parsed.arguments:
        return run_command.run(parsed, WATCH_ONLY)
    settings = resolve(parsed.flags, *read_file_settings(Path()))
    try:
        folder = find_run(parsed.target, Path(settings.logs_dir))
    except CommandError:
        if shutil.which(parsed.target) is None:
            raise
        return run_command.run(parsed, WATCH_ONLY)
    return attach(folder)


def attach(folder: Path) -> int:
    """Show the run until the user leaves, or beside its monitor until that ends us."""
    run = LiveRun(folder)
    manifest = read_manifest(folder)
    is_companion = os.getppid() == manifest.get("monitor_pid")
    if not display.has_terminal():
        return _follow(run)
    # Keys that send a signal go on doing so: Ctrl-C and Ctrl-Z reach the training as without us.
    os.environ["TEXTUAL_ALLOW_SIGNALS"] = os.environ["TEXTUAL_DISABLE_KITTY_KEY"] = "1"
    if is_companion:
        for number in (signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
    from traceml.present.terminal.app import LiveApp
    from traceml.present.terminal.ink import find_ink

    ink = find_ink(os.environ, sys.stderr.encoding)

    def interrupt() -> None:
        os.killpg(os.getpgrp(), signal.SIGINT)  # as the terminal does with Ctrl-C: the whole job gets it

    output = OutputTail(recorded_at(folder, manifest) / OUTPUT_LOG)
    app = LiveApp(run.look, output.read, ink, interrupt if is_companion else None)
    try:
        app.run()
    except KeyboardInterrupt:
        pass
    if not is_companion and app.shown.live is not None and app.shown.live.is_over:
        with fitting(sys.stdout):
            show(render(app.shown.live.summary))
    return app.return_code or 0


def _follow(run: LiveRun) -> int:
    """Without a terminal: a status line now and then, at the end the summary."""
    due = 0.0
    while not (live := run.look()).is_over:
        if time.monotonic() >= due:
            due = time.monotonic() + display.STATUS_EVERY_S
            say(status_line(live))
        time.sleep(LOOK_EVERY_S)
    show(render(live.summary))
    return 0
