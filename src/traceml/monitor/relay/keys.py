"""One secret per run; every CURVE key pair of the relay is derived from it.

Who holds the secret can compute all keys. Who does not is turned away and cannot pose as node 0. Each node
has its own pair, so that node 0 knows from the handshake which node is speaking.
"""

import contextlib
import hashlib
import os
import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import zmq
from zmq.utils import z85

from traceml.errors import TraceMLError
from traceml.files import READ_FLAGS, open_regular
from traceml.settings import KEY_VARIABLE

KEY_FILE: Final = "relay.key"
_PROTOCOL: Final = b"traceml-relay-2"
"""Part of every key: nodes that speak another protocol are turned away in the handshake."""
_LEAST_BYTES: Final = 16
_MOST_BYTES: Final = 4096


class KeyProblem(TraceMLError):
    """There is a key, but it cannot be used."""


class KeyPair(NamedTuple):
    """In ZeroMQ's text form."""

    public: bytes
    secret: bytes


class RunKey:
    """The run's secret. It is never printed, sent or logged."""

    def __init__(self, secret: bytes) -> None:
        if not _LEAST_BYTES <= len(secret) <= _MOST_BYTES:
            raise KeyProblem(
                f"the relay's key has {len(secret)} bytes; use {_LEAST_BYTES} to {_MOST_BYTES},"
                " for example from `openssl rand -hex 32`"
            )
        self._master = hashlib.blake2b(secret, digest_size=32, person=_PROTOCOL).digest()

    def server(self) -> KeyPair:
        return self._pair(b"server")

    def client(self, node_rank: int) -> KeyPair:
        return self._pair(b"client %d" % node_rank)

    def _pair(self, purpose: bytes) -> KeyPair:
        raw = hashlib.blake2b(purpose, key=self._master, digest_size=32, person=b"traceml-curve")
        secret = z85.encode(raw.digest())
        return KeyPair(zmq.curve_public(secret), secret)


def create_key(run_dir: Path, environment: Mapping[str, str]) -> RunKey:
    """Node 0: TRACEML_KEY, else the run folder's key file, which is made if there is none."""
    key = find_key(run_dir, environment)
    if key is not None:
        return key
    with tempfile.NamedTemporaryFile("w", dir=run_dir, prefix=f".{KEY_FILE}.") as file:  # mode 0600
        file.write(secrets.token_urlsafe(32) + "\n")
        file.flush()
        with contextlib.suppress(FileExistsError):
            os.link(file.name, run_dir / KEY_FILE)  # complete or not there, and never replaced
    return _read(run_dir / KEY_FILE)


def find_key(run_dir: Path, environment: Mapping[str, str]) -> RunKey | None:
    """Other nodes: TRACEML_KEY, else the run folder's key file; None while there is neither."""
    given = environment.get(KEY_VARIABLE, "").strip()
    if given:
        return RunKey(given.encode())
    try:
        return _read(run_dir / KEY_FILE)
    except FileNotFoundError:
        return None


def _read(path: Path) -> RunKey:
    try:
        fd = open_regular(path, READ_FLAGS | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise
    except OSError as problem:
        raise KeyProblem(f"{path}: cannot be read ({problem.strerror})") from problem
    with os.fdopen(fd, "rb") as file:
        if os.fstat(fd).st_mode & 0o077:
            raise KeyProblem(f"{path}: others may read it; set its mode to 0600 or use {KEY_VARIABLE}")
        return RunKey(file.read(_MOST_BYTES + 1).strip())
