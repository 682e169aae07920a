"""The runs that somebody watches: each is looked at once a second, however many pages show it.

Nothing is queued: there is one newest message per run, and a page that reads slowly skips some.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import msgspec

from traceml.errors import CommandError, failsafe
from traceml.monitor.live import LiveRun
from traceml.schema.live import Live

EVERY_S: Final = 1.0
FORGET_S: Final = 30.0
KEPT_S: Final = 5.0
"""The message of an ended run is kept this long; then it is read again, because the run may be replaced."""
BEAT_S: Final = 15.0
PIECE: Final = 64 * 1024
"""So much is written at a time; a client that does not read makes us hold about twice that."""
BEAT: Final = b": still here\n\n"
END: Final = b"event: end\ndata: {}\n\n"


def message_of(live: Live) -> bytes:
    """The message to a page: how fresh the Summary is, and the Summary."""
    names = ("state", "quiet_s", "since_step", "since_start", "steps_per_s")
    facts = msgspec.json.encode({name: getattr(live, name) for name in names})
    return b'{"live":%b,"summary":%b}' % (facts, msgspec.json.encode(live.summary))


async def pieces(data: bytes) -> AsyncIterator[bytes]:
    """The data in parts, each of which waits until the client has read most of those before."""
    for at in range(0, len(data), PIECE):
        yield data[at : at + PIECE]


class Watched:
    """One run, and its newest message."""

    def __init__(self, folder: Path, closing: asyncio.Event) -> None:
        self._run = LiveRun(folder)
        self._look = failsafe("looking at a run", (b"", False, "this run cannot be shown"))(self._look_once)
        self._looking: asyncio.Task[None] | None = None
        self._message, self._is_over = b"", False
        self._problem: str | None = None
        self._due, self._used_at = 0.0, time.monotonic()
        self._closing = closing
        self._is_last = False  # our looking at it

    async def newest(self) -> bytes:
        """The newest message, at most a moment old. CommandError if the run cannot be read."""
        self._used_at = time.monotonic()
        while self._is_stale():
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._look_again())
            await asyncio.shield(self._looking)  # others wait for it too
        if self._problem is not None:
            raise CommandError(self._problem)
        return self._message

    def _is_stale(self) -> bool:
        """Whether it is time for another look. When the server ends there is one more, and then none."""
        is_due = self._closing.is_set() or time.monotonic() >= self._due
        return is_due and not self._is_over and not self._is_last

    async def _look_again(self) -> None:
        is_last, began = self._closing.is_set(), time.monotonic()
        self._message, self._is_over, self._problem = await asyncio.to_thread(self._look)
        # Thousands of ranks take about a second to read; that must not keep a core busy for good.
        now = time.monotonic()
        self._due, self._is_last = max(began + EVERY_S, now + (now - began) / 4), is_last

    def _look_once(self) -> tuple[bytes, bool, str | None]:
        """In a thread: the message, whether it is the last one, and why there is none."""
        try:
            try:
                live = self._run.look()
            except FileNotFoundError:  # the run has just moved from a local disk to its folder, or is gone
                live = self._run.look()
        except CommandError as problem:
            return b"", False, str(problem)
        except OSError as problem:
            return b"", False, f"the recording cannot be read ({problem.strerror})"
        return message_of(live), live.is_over, None

    async def events(self) -> AsyncIterator[bytes]:
        """The stream of one page: each message that it is fast enough to read, and the end of the run."""
        sent, sent_at = b"", time.monotonic()
        while True:
            try:
                message = await self.newest()
            except CommandError:
                return  # the page asks again and gets the reason
            if message != sent:
                sent, sent_at = message, time.monotonic()
                yield b"data: "
                async for piece in pieces(message):
                    yield piece
                yield b"\n\n"
            elif time.monotonic() - sent_at > BEAT_S:
                sent_at = time.monotonic()
                yield BEAT
            if self._message == sent and (self._is_over or self._is_last):
                break
            await self._rest()
        if self._is_over:
            yield END

    async def _rest(self) -> None:
        """Until the next look, or until the server ends."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._closing.wait(), max(self._due - time.monotonic(), 0.01))

    def is_forgotten(self) -> bool:
        """Whether it was not asked for in a while; or it has ended, and may have been replaced since."""
        now = time.monotonic()
        return now - self._used_at > FORGET_S or (self._is_over and now - self._due > KEPT_S)


class Watchers:
    """All watched runs. Runs that were not asked for in a while are forgotten."""

    def __init__(self) -> None:
        self._open: dict[Path, Watched] = {}
        self._closing = asyncio.Event()

    def watch(self, folder: Path) -> Watched:
        self._forget()
        asyncio.get_running_loop().call_later(2 * FORGET_S, self._forget)
        if folder not in self._open:
            self._open[folder] = Watched(folder, self._closing)
        return self._open[folder]

    def _forget(self) -> None:
        self._open = {folder: run for folder, run in self._open.items() if not run.is_forgotten()}

    def close(self) -> None:
        """Let every stream end, with the last message of its run."""
        self._closing.set()
