"""Runs `traceml run` in a server that has torch loaded, for tests of what TraceML says about a training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
PYTHONPATH = f"{SRC}{os.pathsep}{Path(__file__).parent / 'scripts'}"  # TraceML, and `naps` for any script
ENVIRONMENT = {
    "PYTHONPATH": PYTHONPATH,
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    # Some virtual machines announce AMX but do not allow it: torch's bfloat16 then ends in SIGILL.
    "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",
}


class PreloadedTraceml:
    """Called like `scenario.traceml`, with the same result, but without the seconds of a cold start.

    The server starts with the first run. See `preload_server` for what is real in such a run.
    """

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._server: subprocess.Popen[str] | None = None

    def __call__(
        self, *words: str, cwd: Path, env: dict[str, str] | None = None, umask: int | None = None
    ) -> subprocess.CompletedProcess[str]:
        """`traceml <words>` in this folder."""
        return self._run(words, cwd, env or {}, plain=False, umask=umask)

    def python(
        self, *words: str, cwd: Path, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """`python <words>` in this folder, without TraceML."""
        return self._run(words, cwd, env or {}, plain=True)

    def _run(
        self,
        words: tuple[str, ...],
        cwd: Path,
        env: dict[str, str],
        *,
        plain: bool,
        umask: int | None = None,
    ) -> subprocess.CompletedProcess[str]:
        out, err = cwd / "stdout.txt", cwd / "stderr.txt"
        request: dict[str, Any] = {"words": words, "cwd": str(cwd), "stdout": str(out), "stderr": str(err)}
        request |= {"plain": plain, "umask": umask, "env": {**os.environ, **ENVIRONMENT, **env}}
        server = self._server = self._server or self._start()
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        answer = server.stdout.readline()
        assert answer, "the server with torch loaded has ended; its messages are above"
        return subprocess.CompletedProcess(
            words, json.loads(answer)["code"], out.read_text(), err.read_text()
        )

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.scenarios.preload_server", *self._modules],
            env={**os.environ, **ENVIRONMENT, "PYTHONPATH": f"{ROOT}{os.pathsep}{SRC}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        """End the server."""
        if self._server is not None:
            assert self._server.stdin is not None
            self._server.stdin.close()
            self._server.kill()
            self._server.wait()
