"""What else a reader of the result wants to know: host, operating system, git commit."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from typing import Any

GIT_TIMEOUT_S = 5.0


class EnvironmentFacts:
    """Collected in a thread: git may take long in a large checkout."""

    def __init__(self) -> None:
        import platform  # the command has been started by now; before, it would have waited for this

        self.facts: dict[str, Any] = {
            "host": socket.gethostname(),
            "os": platform.platform(),
            "cpu_count": os.cpu_count(),
            "git_commit": None,
            "git_dirty": None,
        }
        try:
            threading.Thread(target=self._ask_git, daemon=True).start()
        except RuntimeError:
            pass  # the process limit: do without the commit

    def _ask_git(self) -> None:
        commit = _git("rev-parse", "HEAD")
        if commit:
            self.facts["git_commit"] = commit.strip()
            status = _git("status", "--porcelain", "--untracked-files=no")
            self.facts["git_dirty"] = None if status is None else bool(status.strip())


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
