"""How nodes find node 0 and prove who they are: where it listens, and one secret per run.

Every CURVE key pair of the relay is derived from the secret. Who holds it can compute all keys. Who does not
is turned away and cannot pose as node 0. Each node has its own pair, so that node 0 knows from the handshake
which node is speaking.
"""

import contextlib
import hashlib
import os
import re
import secrets
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec
import psutil
import zmq
from zmq.utils import z85

from traceml.errors import TraceMLError
from traceml.files import READ_FLAGS, open_regular, read_whole, write_atomic
from traceml.settings import KEY_VARIABLE

KEY_FILE: Final = "relay.key"
_PROTOCOL: Final = b"traceml-relay-2"
"""Part of every key: nodes that speak another protocol are turned away in the handshake."""
_LEAST_KEY_BYTES: Final = 16
_MOST_KEY_BYTES: Final = 4096

RELAY_FILE: Final = "relay.json"
_SCHEMA: Final = "traceml.relay/2"
_MOST_BYTES: Final = 64 * 1024
_MOST_HOSTS: Final = 64
_HOST: Final = r"^[A-Za-z0-9._:-]{1,253}$"
EVERYWHERE: Final = "*"


class KeyProblem(TraceMLError):
    """There is a key, but it cannot be used."""


class KeyPair(NamedTuple):
    """In ZeroMQ's text form."""

    public: bytes
    secret: bytes


class RunKey:
    """The run's secret. It is never printed, sent or logged."""

    def __init__(self, secret: bytes) -> None:
        if not _LEAST_KEY_BYTES <= len(secret) <= _MOST_KEY_BYTES:
            raise KeyProblem(
                f"the relay's key has {len(secret)} bytes; use {_LEAST_KEY_BYTES} to {_MOST_KEY_BYTES},"
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
    while (key := find_key(run_dir, environment)) is None:
        with tempfile.NamedTemporaryFile("w", dir=run_dir, prefix=f".{KEY_FILE}.") as file:  # mode 0600
            file.write(secrets.token_urlsafe(32) + "\n")
            file.flush()
            with contextlib.suppress(FileExistsError):
                os.link(file.name, run_dir / KEY_FILE)  # complete or not there, and never replaced
    return key


def find_key(run_dir: Path, environment: Mapping[str, str]) -> RunKey | None:
    """Other nodes: TRACEML_KEY, else the run folder's key file; None while there is neither."""
    given, path = environment.get(KEY_VARIABLE, "").strip(), run_dir / KEY_FILE
    if given:
        return RunKey(given.encode())
    try:
        fd = open_regular(path, READ_FLAGS | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise KeyProblem(f"{path}: cannot be read ({problem.strerror})") from problem
    with os.fdopen(fd, "rb") as file:
        if os.fstat(fd).st_mode & 0o077:
            raise KeyProblem(f"{path}: others may read it; set its mode to 0600 or use {KEY_VARIABLE}")
        return RunKey(file.read(_MOST_KEY_BYTES + 1).strip())


class Listening(msgspec.Struct, frozen=True):
    """What node 0 publishes in the shared run folder. The key in it is the public one."""

    schema: str
    hosts: Annotated[list[Annotated[str, msgspec.Meta(pattern=_HOST)]], msgspec.Meta(max_length=_MOST_HOSTS)]
    """Names and addresses, the likeliest first."""
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    public_key: Annotated[str, msgspec.Meta(max_length=40)]

    def endpoints(self) -> list[str]:
        """Every way to try. A wrong host does no harm: only node 0 holds the key."""
        return [endpoint(host, self.port) for host in self.hosts]


def endpoint(host: str, port: int | str) -> str:
    """ZeroMQ's form of an address."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def listen_on(advertise: str | None) -> list[str]:
    """The addresses of node 0 that other nodes use: those of its name, if it has them; else all ("*")."""
    try:
        known = socket.getaddrinfo(advertise, None, type=socket.SOCK_STREAM) if advertise else []
    except (OSError, UnicodeError):
        known = []
    ips = list(dict.fromkeys(str(where[0]) for *_, where in known))
    # A name may mean a loopback address on its own machine only; then it says nothing.
    is_loopback = re.match(r"localhost$|127\.|::1$", advertise or "") is not None
    usable = ips if is_loopback else _own_ips()
    return [ip for ip in ips if ip in usable] or [EVERYWHERE]


def publish(run_dir: Path, advertise: str | None, ips: list[str], port: int, public_key: bytes) -> None:
    """Say where node 0 listens."""
    named = [advertise] if advertise is not None and re.match(_HOST, advertise) else []
    bound = [*_own_ips(), "127.0.0.1"] if EVERYWHERE in ips else ips
    hosts = list(dict.fromkeys([*named, *bound]))[:_MOST_HOSTS]
    found = Listening(_SCHEMA, hosts, port, public_key.decode())
    write_atomic(run_dir / RELAY_FILE, msgspec.json.format(msgspec.json.encode(found)) + b"\n")


def read_published(run_dir: Path) -> Listening | None:
    """What node 0 published; None if there is nothing (valid) yet."""
    try:
        found = msgspec.json.decode(read_whole(run_dir / RELAY_FILE, _MOST_BYTES), type=Listening)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return found if found.schema == _SCHEMA else None


def withdraw(run_dir: Path, port: int) -> None:
    """Node 0 stops listening; what a later node 0 published stays."""
    found = read_published(run_dir)
    if found is not None and found.port == port:
        (run_dir / RELAY_FILE).unlink(missing_ok=True)


def _own_ips() -> list[str]:
    found = []
    for addresses in psutil.net_if_addrs().values():
        for family, ip, *_ in addresses:
            v4 = family == socket.AF_INET and not ip.startswith("127.")
            v6 = family == socket.AF_INET6 and ip != "::1" and not ip.startswith("fe80")
            if v4 or v6:
                found.append(ip)
    return sorted(found, key=lambda ip: ":" in ip)
