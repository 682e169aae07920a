"""The socket and the server on it: quiet, bounded, and gone when whoever started it is gone."""

import asyncio
import errno
import logging
import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from traceml.errors import CommandError
from traceml.serve.watched import Watchers

TRIES: Final = 20
"""Ports after a busy one that are tried before any free one is taken."""
MOST_CONNECTIONS: Final = 200
SILENT_S: Final = 10.0
HELD_BYTES: Final = 128 * 1024
UNREAD_S: Final = 20.0
"""A client that reads nothing for this long is dropped."""
LAST_WORD_S: Final = 2
"""For the last look at each run. Less than the END_S that `traceml run` waits for a server."""
THREADS: Final = 4


def listen(host: str, port: int) -> socket.socket:
    """A socket on this port, or on another one if it is busy."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise CommandError(f"--host: {host!r} is not an address of this machine") from None
    nearby = range(port, min(port + TRIES, 65_536)) if port else ()
    for number in (*nearby, 0):
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted connections inherit these: the kernel holds little for whoever reads slowly, and drops
        # whoever does not read at all.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, HELD_BYTES)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNREAD_S * 1000))
        try:
            made.bind((address[0], number, *address[2:]))
            made.listen()
        except OSError as problem:
            made.close()
            if problem.errno != errno.EADDRINUSE or not number:
                raise CommandError(f"cannot listen on {host}:{number} ({problem.strerror})") from None
        else:
            return made
    raise AssertionError("0 is always tried")


class _Connection(H11Protocol):
    """Drops whoever connects and asks nothing, so that strangers cannot take up all places."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > 2 * MOST_CONNECTIONS:
            transport.abort()
        else:
            self.loop.call_later(SILENT_S, self._drop_if_silent)

    def _drop_if_silent(self) -> None:
        if not self.cycle:
            self.transport.abort()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, watchers: Watchers) -> None:
        super().__init__(config)
        self._watchers = watchers

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._watchers.close()
        await super().shutdown(sockets)

    def end_with_standard_input(self) -> None:
        """Standard input is a pipe of `traceml run`: however that ends, the pipe is closed."""
        if not os.read(sys.stdin.fileno(), 4096):
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            self.should_exit = True


def serve(app: ASGIApp, listener: socket.socket, watchers: Watchers, is_companion: bool) -> None:
    """Answer until a signal comes or, as a companion of `traceml run`, until that ends."""
    config = uvicorn.Config(
        app,
        loop="asyncio",
        http=_Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=LAST_WORD_S,
    )
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # clients that go away are no error
    server = _Server(config, watchers)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(THREADS, "traceml-look"))
        if is_companion:
            loop.add_reader(sys.stdin.fileno(), server.end_with_standard_input)
        await server.serve([listener])

    asyncio.run(run())
