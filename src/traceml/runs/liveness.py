"""Whether the processes of a run are still there.

A process id alone says little: a restarted container hands out the same ones again, and another host or
container has its own. The manifest therefore keeps when the monitor's process started, and on which boot
and in which process namespace.
"""

import contextlib
import os
import socket
import time
from pathlib import Path
from typing import Any, Final

from traceml.recording import layout

try:
    import fcntl

    HAS_LOCKS = True
except ImportError:  # Windows
    HAS_LOCKS = False

LARGEST_PID: Final = 2**31 - 1
RECENT_S: Final = 120.0
"""A running monitor writes every few seconds; some file systems show that only after half a minute."""
_held: list[int] = []


def this_process() -> dict[str, Any]:
    """What identifies this process on this machine for good, with its id."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except (OSError, ValueError):
        boot = socket.gethostname()
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = None
    return {"started": start_time(os.getpid()), "boot": boot, "namespace": namespace}


def hold(run_dir: Path) -> None:
    """Lock the run folder while this process lives: other containers of this machine can see that."""
    if HAS_LOCKS:
        with contextlib.suppress(OSError):  # a file system without locks
            _held.append(os.open(run_dir, os.O_RDONLY))
            fcntl.flock(_held[-1], fcntl.LOCK_EX)  # somebody may just be looking (`_is_held`)


def monitor_lives(run_dir: Path, manifest: dict[str, Any]) -> bool | None:
    """Whether the monitor that wrote this manifest still runs; None if that cannot be seen from here."""
    pid, who, here = manifest.get("monitor_pid"), manifest.get("monitor_process"), this_process()
    environment = manifest.get("environment")
    host = environment.get("host") if isinstance(environment, dict) else None
    is_same_host = host in (None, socket.gethostname())
    if not isinstance(who, dict):  # written before this was kept
        return is_alive(pid) if is_same_host else None
    if who.get("boot") != here["boot"]:
        return False if is_same_host else None  # restarted since, or another machine
    if who.get("namespace") != here["namespace"]:
        return _is_held(run_dir)
    if not is_alive(pid):
        return False
    started, wanted = start_time(pid), who.get("started")
    return None in (started, wanted) or started == wanted


def is_alive(pid: Any) -> bool:
    """Whether a process with this id exists here and has not ended."""
    if not isinstance(pid, int) or not 0 < pid <= LARGEST_PID:
        return False  # 0 and below would ask for whole groups of processes
    if fields := stat_fields(pid):
        return fields[0] not in "ZX"
    try:
        os.kill(pid, 0)  # /proc does not show it: gone, hidden, or not Linux
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # somebody else's
    return True


def start_time(pid: Any) -> int | None:
    """When the process started, in clock ticks since the boot; None where that is not known."""
    fields = stat_fields(pid)
    return int(fields[19]) if len(fields) > 19 else None


def sign_of_life(run_dir: Path, manifest: dict[str, Any]) -> str | None:
    """For a run that was never marked as ended: None if it is over all the same, else what a view should note
    about it."""
    lives = monitor_lives(run_dir, manifest)
    if lives:
        return ""
    if lives is None:  # recent writes are the only sign of processes that cannot be seen from here
        with contextlib.suppress(OSError), os.scandir(run_dir / layout.FOLDER) as entries:
            newest = max((entry.stat().st_mtime for entry in entries), default=0.0)
            if abs(time.time() - newest) < RECENT_S:
                return "The run is on another machine or container, and wrote a moment ago."
    if _still_trains(run_dir, manifest):
        return "The monitor has ended; training goes on and is still recorded."
    return None


def _still_trains(run_dir: Path, manifest: dict[str, Any]) -> bool:
    """Whether a rank of this machine is still running, even if no monitor watches it."""
    # Imported only here: `traceml run` asks for `monitor_lives` before it starts the command.
    import psutil

    from traceml.recording.tail import live_tail

    if not os.path.isdir(run_dir / layout.FOLDER):
        return False
    who, here = manifest.get("monitor_process"), this_process()
    if isinstance(who, dict) and any(who.get(key) != here[key] for key in ("boot", "namespace")):
        return False  # its process ids mean others here
    host = socket.gethostname()
    for rank in live_tail(run_dir).local_ranks():
        began_s = rank.header.get("process", {}).get("wall_ns", 0) / 1e9
        if rank.identity.host not in (None, host) or rank.live.state != layout.STATE_RUNNING:
            continue
        pid = rank.identity.pid or 0
        with contextlib.suppress(psutil.Error):
            # A process that is younger than the recording only has the same number.
            if is_alive(pid) and psutil.Process(pid).create_time() <= began_s + 1:
                return True
    return False


def _is_held(run_dir: Path) -> bool | None:
    try:
        descriptor = os.open(run_dir, os.O_RDONLY)
    except OSError:
        return None
    try:
        if not HAS_LOCKS:
            return None
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two may look at the same time
        return False
    except BlockingIOError:
        return True
    except OSError:
        return None  # a file system without locks
    finally:
        os.close(descriptor)


def stat_fields(pid: Any) -> list[str]:
    """/proc/<pid>/stat from the state on, empty if there is none; the name before it may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].decode("ascii", "replace").split()
    except OSError:
        return []
