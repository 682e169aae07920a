"""Where node 0 listens: published in the shared run folder, or given."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Annotated, Final

import msgspec
import psutil

from traceml.collect.rundir import write_atomic

RELAY_FILE: Final = "relay.json"
_SCHEMA: Final = "traceml.relay/1"
_HOST: Final = re.compile(r"[A-Za-z0-9._:-]{1,253}")
_Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]


class Listening(msgspec.Struct, frozen=True):
    """Names and addresses of node 0, the likeliest first, and what it listens with."""

    schema: str
    hosts: Annotated[list[str], msgspec.Meta(max_length=64)]
    port: _Port
    public_key: Annotated[str, msgspec.Meta(max_length=40)]


def parse_address(text: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port`; ValueError says what is expected."""
    host, colon, port = text.rpartition(":")
    host = host.strip("[]")
    if not colon or not port.isdigit() or not 1 <= int(port) <= 65535 or not _HOST.fullmatch(host):
        raise ValueError("use host:port")
    return host, int(port)


def endpoint(host: str, port: int) -> str:
    """ZeroMQ's form of an address."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def publish(run_dir: Path, advertise: str | None, port: int, public_key: bytes) -> None:
    """Say where node 0 listens. The folder is shared, the key in it is the public one."""
    hosts = dict.fromkeys(h for h in (advertise, socket.gethostname(), *_own_ips()) if h)
    found = Listening(_SCHEMA, list(hosts)[:64], port, public_key.decode())
    write_atomic(run_dir / RELAY_FILE, msgspec.json.format(msgspec.json.encode(found)) + b"\n")


def read_published(run_dir: Path) -> Listening | None:
    """What node 0 published; None when there is nothing (sound) yet."""
    try:
        with (run_dir / RELAY_FILE).open("rb") as file:
            found = msgspec.json.decode(file.read(64 * 1024), type=Listening)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return found if found.schema == _SCHEMA else None


def withdraw(run_dir: Path, port: int) -> None:
    """Node 0 stops to listen; what a later node 0 published is left alone."""
    found = read_published(run_dir)
    if found is not None and found.port == port:
        (run_dir / RELAY_FILE).unlink(missing_ok=True)


def endpoints(listening: Listening) -> list[str]:
    """Every way to try. A wrong host does no harm: only node 0 holds the key."""
    hosts = [h for h in listening.hosts if _HOST.fullmatch(h)]
    if socket.gethostname() in hosts:
        hosts.append("127.0.0.1")
    return [endpoint(host, listening.port) for host in hosts]


def _own_ips() -> list[str]:
    found = []
    for addresses in psutil.net_if_addrs().values():
        for address in addresses:
            ip = str(address.address)
            v4 = address.family == socket.AF_INET and not ip.startswith("127.")
            v6 = address.family == socket.AF_INET6 and ip != "::1" and not ip.startswith("fe80")
            if v4 or v6:
                found.append(ip)
    return sorted(found, key=lambda ip: ":" in ip)
