"""What else a reader of the result wants to know: host, operating system, git commit, OOM kills."""

import os
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

from traceml.monitor.cgroups import facts_in

GIT_TIMEOUT_S = 5.0
VMSTAT = Path("/proc/vmstat")


def environment_facts() -> dict[str, Any]:
    """A thread adds what git says, because that may take long in a large checkout."""
    import platform  # the command has been started by now; before, it would have waited for this

    facts = {
        "host": socket.gethostname(),
        "os": platform.platform(),
        "cpu_count": os.cpu_count(),
        "git_commit": None,
        "git_dirty": None,
    }
    try:
        threading.Thread(target=_ask_git, args=(facts,), daemon=True).start()
    except RuntimeError:
        pass  # the process limit: do without the commit
    return facts


def _ask_git(facts: dict[str, Any]) -> None:
    commit = _git("rev-parse", "HEAD")
    if commit:
        facts["git_commit"] = commit.strip()
        status = _git("status", "--porcelain", "--untracked-files=no")
        facts["git_dirty"] = None if status is None else bool(status.strip())


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


def oom_kills() -> int | None:
    """Since boot, in all containers of the machine; None where the kernel does not count."""
    return facts_in(VMSTAT).get("oom_kill")


def oom_kills_since(before: int | None) -> int | None:
    """How many more there are by now."""
    now = oom_kills()
    return now - before if now is not None and before is not None else None
