"""A real MLflow server with a SQLite database."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.running.processes import eventually

QUIETLY: Final = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}


@contextmanager
def mlflow_server(folder: Path) -> Iterator[str]:
    """The address of a server that keeps everything in this folder."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    words = ["server", "--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--workers", "1"]
    words += [
        "--artifacts-destination",
        str(folder / "artifacts"),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "mlflow", *words],
            cwd=folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    address = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert server.poll() is None, (folder / "server.log").read_text()
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    try:
        eventually(answers, "the MLflow server does not answer", seconds=180)
        yield address
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
