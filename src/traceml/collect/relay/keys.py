"""One secret a run; every CURVE key pair of the relay is derived from it.

Whoever holds the secret can compute all keys; whoever does not can neither be served nor pose as
node 0. Each node has its own pair, so that node 0 knows which node is speaking from the
handshake alone.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import zmq
from zmq.utils import z85

from traceml.errors import TraceMLError

KEY_VARIABLE: Final = "TRACEML_KEY"
KEY_FILE: Final = "relay.key"
_LEAST_BYTES: Final = 16
_MOST_BYTES: Final = 4096


class KeyProblem(TraceMLError):
    """There is a key, and it cannot be used."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A CURVE key pair in ZeroMQ's text form."""

    public: bytes
    secret: bytes


class RunKey:
    """The run's secret. It is never printed, sent or logged."""

    __slots__ = ("_master",)

    def __init__(self, secret: bytes) -> None:
        if not _LEAST_BYTES <= len(secret) <= _MOST_BYTES:
            raise KeyProblem(
                f"the relay's key has {len(secret)} bytes; use {_LEAST_BYTES} to {_MOST_BYTES},"
                " for example from `openssl rand -hex 32`"
            )
        self._master = hashlib.blake2b(secret, digest_size=32, person=b"traceml-relay").digest()

    def server(self) -> KeyPair:
        """Node 0's pair."""
        return self._pair(b"server")

    def client(self, node_rank: int) -> KeyPair:
        """The pair of another node."""
        return self._pair(b"client %d" % node_rank)

    def _pair(self, purpose: bytes) -> KeyPair:
        raw = hashlib.blake2b(purpose, key=self._master, digest_size=32, person=b"traceml-curve")
        secret = z85.encode(raw.digest())
        return KeyPair(public=zmq.curve_public(secret), secret=secret)


def create_key(run_dir: Path, environment: Mapping[str, str]) -> RunKey:
    """Node 0: TRACEML_KEY, else the run folder's key file, which is made when there is none."""
    key = find_key(run_dir, environment)
    if key is not None:
        return key
    fd, temporary = tempfile.mkstemp(dir=run_dir, prefix=f".{KEY_FILE}.")  # mode 0600
    try:
        with os.fdopen(fd, "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, run_dir / KEY_FILE)  # complete or not there, and never replaced
        except FileExistsError:
            pass
    finally:
        os.unlink(temporary)
    return _read(run_dir / KEY_FILE)


def find_key(run_dir: Path | None, environment: Mapping[str, str]) -> RunKey | None:
    """Other nodes: TRACEML_KEY, else the run folder's key file; None while there is neither."""
    given = environment.get(KEY_VARIABLE, "").strip()
    if given:
        return RunKey(given.encode())
    if run_dir is None:
        return None
    try:
        return _read(run_dir / KEY_FILE)
    except FileNotFoundError:
        return None


def _read(path: Path) -> RunKey:
    try:
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError:
        raise
    except OSError as problem:
        raise KeyProblem(f"{path}: cannot be read ({problem.strerror})") from problem
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise KeyProblem(f"{path}: not a plain file")
        if os.name == "posix" and stat.S_IMODE(found.st_mode) & 0o077:
            raise KeyProblem(f"{path}: others may read it; set its mode to 0600 or use {KEY_VARIABLE}")
        return RunKey(file.read(_MOST_BYTES + 1).strip())
