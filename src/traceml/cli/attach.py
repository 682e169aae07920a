"""`traceml attach`: the monitor that `traceml.init()` starts for a script without `traceml run`."""

import os
import time
from pathlib import Path
from typing import Final

from traceml.cli.main import Parser, number
from traceml.errors import CommandError, say
from traceml.monitor.display import open_servers
from traceml.monitor.loop import Monitor
from traceml.monitor.mirror import Mirror
from traceml.runs import folder as run_folder
from traceml.runs.liveness import LARGEST_PID, is_alive, start_time, stat_fields
from traceml.settings import Settings, resolve

JOIN_S: Final = 20.0
LAST_RANK_S: Final = 60.0


def main(words: list[str]) -> int:
    """Print the run folder to standard output, then watch the process until it ends."""
    parser = Parser("traceml attach", "traceml attach --pid PID [options] [COMMAND ...]", str(__doc__))
    parser.add_argument("--pid", type=number(1, LARGEST_PID), required=True)
    parser.add_argument("--run-name")
    parser.add_argument("--logs-dir")
    parser.add_argument("--numbered", action="store_true")
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("command", nargs="*")
    given = parser.parse_args(words)
    if given.pid != os.getppid():
        raise CommandError("attach: started by traceml.init() only; use `traceml run`")
    if hasattr(os, "fork") and os.fork():
        os._exit(0)  # not a child of the script, which may wait for all of its children
    flags = {"run_name": given.run_name, "logs_dir": given.logs_dir, "quiet": "1" if given.quiet else ""}
    settings = resolve({k: v for k, v in flags.items() if v}, {})
    meeting = _meeting_point(given.pid)
    if meeting and os.environ["LOCAL_RANK"] != "0":
        os.write(1, os.fsencode(_join(settings.logs_dir, meeting)))
        return 0
    _watch(given.pid, given.command, settings, meeting, given.numbered)
    return 0


def _meeting_point(pid: int) -> str:
    """A name that only the ranks of one launcher on this machine share; empty for a process of its own."""
    rank, ranks = (os.environ.get(name, "") for name in ("LOCAL_RANK", "WORLD_SIZE"))
    if not (rank.isdigit() and ranks.isdigit() and int(ranks) > 1):
        return ""
    fields = stat_fields(pid)
    launcher = fields[1] if fields else None
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return f"launcher-{launcher}-{start_time(launcher)}-{attempt}"


def _join(logs_dir: str, meeting: str) -> str:
    """The folder of the first rank's run, because one run has one monitor."""
    deadline = time.monotonic() + JOIN_S
    while time.monotonic() < deadline:
        for path in Path(logs_dir).glob(f"*/{run_folder.RECORDING}/{meeting}"):
            if (line := path.read_text()).endswith("\n"):
                return line.partition("\t")[0] + "\n"
        time.sleep(0.05)
    say("this rank is not recorded: the first rank of its launcher has not called traceml.init()")
    return ""


def _watch(pid: int, command: list[str], settings: Settings, meeting: str, numbered: bool) -> None:
    began = start_time(pid)
    script = next((w for w in command if w.endswith(".py")), "run")
    folder = run_folder.create(settings.logs_dir, settings.run_name, script, settings.overwrite, numbered)
    home, folder = folder, run_folder.recorded_in(folder)
    mirror = Mirror(folder, home)
    monitor = Monitor(folder, command, settings, mirror.safe_rows)
    ended = folder / run_folder.RECORDING / run_folder.ENDED
    servers = open_servers(settings, home)
    line = f"{folder}\t{home}\n"
    if meeting:
        (home / run_folder.RECORDING / meeting).write_text(line)
    os.write(1, os.fsencode(line))
    os.close(1)  # the process waits only for this line

    def poll(seconds: float) -> int | None:
        if os.path.exists(ended):
            return 0
        if not is_alive(pid) or start_time(pid) != began:
            _await_ranks(folder / run_folder.RECORDING)
            return 0
        time.sleep(seconds)
        return None

    monitor.watch(poll)
    monitor.finish(None, [], drain=list, settle=mirror.close, quiet=settings.quiet)
    for server in servers:
        server.close()


def _await_ranks(recording: Path) -> None:
    """Ranks that joined end a moment after the first one, or before it."""
    deadline = time.monotonic() + LAST_RANK_S
    pids = [path.name.split(".")[1] for path in recording.glob("rank-*.steps")]
    while any(is_alive(int(pid)) for pid in pids if pid.isdigit()) and time.monotonic() < deadline:
        time.sleep(0.05)
