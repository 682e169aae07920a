"""A real `traceml ui` in a process of its own, what it answers, and runs for it to show."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from bench.synthetic import SyntheticRun

from tests.compare.making import DATA
from tests.running.processes import environment
from traceml.runs.liveness import this_process

ADDRESS = re.compile(r"dashboard: (http://\S+)")


@dataclass(frozen=True)
class Answer:
    """Status, headers and body."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Address:
    """The address that a server printed."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.url, self.base, self.fragment = url, parts.path, parts.fragment
        self.host, self.port = parts.hostname or "", parts.port or 0

    def ask(self, path: str = "", method: str = "GET", **headers: str) -> Answer:
        """Ask for a path below the token, with headers such as `sec_fetch_site="none"`."""
        return self.ask_exactly(self.base + path, method, **headers)

    def ask_exactly(self, path: str, method: str = "GET", **headers: str) -> Answer:
        """The same for a whole path, which may lack the token."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, headers=named)
        got = connection.getresponse()
        answer = Answer(got.status, {k.lower(): v for k, v in got.getheaders()}, got.read())
        connection.close()
        return answer

    def open(self, path: str, buffer: int | None = None) -> socket.socket:
        """Ask and read nothing yet; `buffer` is what the kernel may hold for us."""
        made = socket.socket()
        if buffer is not None:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        made.settimeout(60)
        made.connect((self.host, self.port))
        made.sendall(f"GET {self.base}{path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        return made

    def events(self, path: str) -> Events:
        return Events(self, path)


class Events:
    """One page's stream of a run: (name of the event, its data)."""

    def __init__(self, address: Address, path: str) -> None:
        self._connection = http.client.HTTPConnection(address.host, address.port, timeout=60)
        self._connection.request("GET", address.base + path)
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200, self._answer.read()
        assert self._answer.headers["content-type"].startswith("text/event-stream")

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        name = "message"
        while line := self._answer.readline():
            field_name, _, value = line.decode().rstrip("\n").partition(": ")
            if field_name == "event":
                name = value
            elif field_name == "data":
                yield name, json.loads(value)
                name = "message"

    def until(self, holds: Any) -> Any:
        """The first message for which this holds."""
        for _, data in self:
            if holds(data):
                return data
        raise AssertionError("the stream ended before that")

    def close(self) -> None:
        self._answer.close()
        self._connection.close()


@dataclass
class Server(Address):
    """A running `traceml ui`."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        assert self.process.stderr is not None
        super().__init__(address_in(self.process.stderr, self.lines))

    def memory(self) -> int:
        """Bytes that the process has in memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) * 1024


def address_in(lines: IO[str], seen: list[str] | None = None) -> str:
    """Read up to the line with the address."""
    before = [] if seen is None else seen
    for line in lines:
        before.append(line)
        if found := ADDRESS.search(line):
            return found[1]
    raise AssertionError(f"no address: {''.join(before)}")


def start(folder: Path, *words: str, **variables: str) -> subprocess.Popen[str]:
    """`traceml ui` on a port of its own, without a browser."""
    given = environment(**variables)
    for name in ("SSH_CONNECTION", "DISPLAY", "WAYLAND_DISPLAY"):
        if name not in variables:
            given.pop(name, None)
    command = [sys.executable, "-m", "traceml", "ui", *words]
    if "--port" not in words:
        command += ["--port", "0"]
    return subprocess.Popen(command, cwd=folder, env=given, stderr=subprocess.PIPE, text=True)


@contextmanager
def served(folder: Path, *words: str, **variables: str) -> Iterator[Server]:
    """A server that answers, ended afterwards."""
    process = start(folder, *words, **variables)
    try:
        yield Server(process)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=180)


def finished(logs: Path, **sources: str) -> None:
    """Runs that have ended, made from the files in tests/data: `finished(logs, a="slow")`."""
    for name, source in sources.items():
        (logs / name).mkdir(parents=True)
        shutil.copy(DATA / f"{source}.json", logs / name / "final_summary.json")


def going_on(logs: Path, name: str = "live", ranks: int = 2, steps: int = 40) -> SyntheticRun:
    """A run of this very process, without a training: `append` adds steps."""
    run = SyntheticRun(logs / name, ranks, slow_rank=1)
    run.append(steps)
    run.sample(2)
    who = {"monitor_pid": os.getpid(), "monitor_process": this_process()}
    began = {"name": name, "status": "running", "started_at": "2026-01-01T00:00:00+00:00", "begin_ns": 0}
    (run.folder / "manifest.json").write_text(json.dumps({**began, **who}))
    return run


def end(run: SyntheticRun) -> None:
    """What the monitor does at the end: its summary, then its last word in the manifest."""
    shutil.copy(DATA / "slow.json", run.folder / "final_summary.json")
    manifest = run.folder / "manifest.json"
    ended: Mapping[str, Any] = {**json.loads(manifest.read_text()), "status": "completed", "exit_code": 0}
    new = manifest.with_suffix(".new")
    new.write_text(json.dumps(ended))
    new.rename(manifest)


def is_gone(pid: int) -> bool:
    """Whether a process has ended, reaped or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def within(seconds: float, holds: Any, what: str) -> None:
    """Wait until it holds; fail after a long time."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)
