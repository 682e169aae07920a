"""Where node 0 listens: published in the shared run folder, or given."""

import re
import socket
from pathlib import Path
from typing import Annotated, Final

import msgspec
import psutil

from traceml.files import read_whole, write_atomic

RELAY_FILE: Final = "relay.json"
_MOST_BYTES: Final = 64 * 1024
_HOST: Final = r"^[A-Za-z0-9._:-]{1,253}$"
EVERYWHERE: Final = "*"
_SCHEMA: Final = "traceml.relay/2"


class Listening(msgspec.Struct, frozen=True):
    """What node 0 publishes. The folder is shared; the key in it is the public one."""

    schema: str
    hosts: Annotated[list[Annotated[str, msgspec.Meta(pattern=_HOST)]], msgspec.Meta(max_length=64)]
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
    own = _own_ips()
    if all(_is_loopback(ip) for ip in ips):
        # A name may mean a loopback address on its own machine only; then it says nothing.
        return ips if ips and advertise is not None and _is_loopback(advertise) else [EVERYWHERE]
    return [ip for ip in ips if ip in own] or [EVERYWHERE]


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host.startswith("127.") or host == "::1"


def publish(run_dir: Path, advertise: str | None, ips: list[str], port: int, public_key: bytes) -> None:
    """Say where node 0 listens."""
    named = [advertise] if advertise is not None and re.match(_HOST, advertise) else []
    bound = [*_own_ips(), "127.0.0.1"] if EVERYWHERE in ips else ips
    hosts = dict.fromkeys([*named, *bound])
    found = Listening(_SCHEMA, list(hosts)[:64], port, public_key.decode())
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
