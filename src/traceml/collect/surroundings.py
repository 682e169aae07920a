"""What else a reader of the result wants to know: machine, system, git commit."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

GIT_TIMEOUT_S = 5.0


class Surroundings:
    """Collected beside the training: git may take its time on a large checkout."""

    def __init__(self, folder: Path) -> None:
        self.facts: dict[str, Any] = {
            "host": socket.gethostname(),
            "os": platform.platform(),
            "cpu_count": os.cpu_count(),
            "git_commit": None,
            "git_dirty": None,
        }
        threading.Thread(target=self._ask_git, args=(folder,), daemon=True).start()

    def _ask_git(self, folder: Path) -> None:
        commit = _git(folder, "rev-parse", "HEAD")
        if commit:
            self.facts["git_commit"] = commit.strip()
            status = _git(folder, "status", "--porcelain", "--untracked-files=no")
            self.facts["git_dirty"] = None if status is None else bool(status.strip())


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None
