"""A network cable under the test's control: a TCP proxy that can be cut, slowed and mended."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time


class Link:
    """Listens on a loopback port and forwards to another one."""

    def __init__(self, to_port: int) -> None:
        self._to_port = to_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self.bytes_per_second: int | None = None
        self._silent = threading.Event()
        self._closed = False
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def silence(self) -> None:
        """Packets vanish: connections stay open, nothing passes, neither end notices."""
        self._silent.set()

    def mend(self) -> None:
        """Packets pass again."""
        self._silent.clear()

    def cut(self) -> None:
        """All connections break at once."""
        for pair in self._pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        self._pairs.clear()

    def close(self) -> None:
        """Unplug for good."""
        self._closed = True
        self.cut()
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._to_port))
            except OSError:
                continue
            self.connections += 1
            self._pairs.append((near, far))
            threading.Thread(target=self._forward, args=(near, far), daemon=True).start()

    def _forward(self, near: socket.socket, far: socket.socket) -> None:
        other = {near: far, far: near}
        with near, far:
            while not self._closed:
                if self._silent.is_set():
                    time.sleep(0.01)
                    continue
                ready, _, _ = select.select([near, far], [], [], 0.05)
                for end in ready:
                    try:
                        data = end.recv(16 * 1024)
                        other[end].sendall(data)
                    except OSError:
                        return
                    if not data:
                        return
                    if self.bytes_per_second:
                        time.sleep(len(data) / self.bytes_per_second)
