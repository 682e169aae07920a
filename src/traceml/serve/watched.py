"""The runs that somebody watches: each is looked at once a second, however many pages show it.

Nothing is queued: there is one newest message per run, and a page that reads slowly skips some.
"""

from __future__ import annotations

import asyncio
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
MOST_RUNS: Final = 64
PIECE: Final = 64 * 1024
"""So much is written at a time; a client that does not read makes us hold about twice that."""
BEAT: Final = b": still here\n\n"
END: Final = b"event: end\ndata: {}\n\n"


class TooManyRuns(Exception):
    """More runs are watched at once than we have room for."""


def message_of(live: Live) -> bytes:
    """What a page is told about a run: how fresh the Summary is, and the Summary."""
    names = ("state", "quiet_s", "since_step", "since_start", "steps_per_s")
    facts = msgspec.json.encode({name: getattr(live, name) for name in names})
    return b'{"live":%b,"summary":%b}' % (facts, msgspec.json.encode(live.summary))


async def pieces(data: bytes) -> AsyncIterator[bytes]:
    """The data in parts, each of which waits until the client has read most of those before."""
    for at in range(0, len(data), PIECE):
        yield data[at : at + PIECE]


class Watched:
    """One run, its newest message and everybody who waits for the next."""

    def __init__(self, folder: Path) -> None:
        self._run = LiveRun(folder)
        self._message = b""
        self._problem: str | None = None
        self._looked_at = 0.0
        self._is_over = False  # the run
        self._is_done = False  # our looking at it
        self._news = asyncio.Event()
        self._wanted = asyncio.Event()
        self._hurry = asyncio.Event()
        self._watchers = 0

    async def follow(self) -> None:
        """Look again and again, while somebody wants to know and until the run or the server ends."""
        look = failsafe("looking at a run", (b"", False, "this run cannot be shown"))(self._look)
        try:
            while not self._is_done:
                is_last, began = self._hurry.is_set(), time.monotonic()
                message, self._is_over, self._problem = await asyncio.to_thread(look)
                self._message, self._looked_at = message or self._message, time.monotonic()
                self._is_done = is_last or self._is_over or self._problem is not None
                self._tell()
                if not self._is_done:
                    # Thousands of ranks take about a second to read; that must not keep a core busy for good.
                    took = self._looked_at - began
                    await _happens(self._hurry, max(EVERY_S - took, took / 4))
                    if not await _happens(self._wanted, FORGET_S):
                        return
                    if not self._watchers:
                        self._wanted.clear()
            if not is_last:
                await _happens(self._hurry, KEPT_S)
        finally:
            self._is_done = True
            self._tell()

    def _look(self) -> tuple[bytes, bool, str | None]:
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

    def _tell(self) -> None:
        """Wake everybody who waits; whoever waits from now on waits for the next look."""
        self._news.set()
        self._news = asyncio.Event()

    def hurry(self) -> None:
        """Look once more at once, and then no more."""
        self._hurry.set()
        self._wanted.set()

    async def newest(self) -> bytes:
        """The newest message, at most a moment old. CommandError if the run cannot be read."""
        if not self._is_done and time.monotonic() - self._looked_at > EVERY_S:
            self._wanted.set()
            await self._news.wait()
        if self._problem is not None:
            raise CommandError(self._problem)
        return self._message

    async def events(self) -> AsyncIterator[bytes]:
        """The stream of one page: each message that it is fast enough to read, and the end of the run."""
        self._watchers += 1
        self._wanted.set()
        sent = b""
        try:
            while True:
                news, message = self._news, self._message
                if message is not sent and message != sent:
                    sent = message
                    yield b"data: "
                    async for piece in pieces(message):
                        yield piece
                    yield b"\n\n"
                elif self._is_done:
                    break
                elif not await _happens(news, BEAT_S):
                    yield BEAT
            if self._is_over:
                yield END
        finally:
            self._watchers -= 1


class Watchers:
    """All watched runs. Forgets those that nobody has asked for in a while."""

    def __init__(self) -> None:
        self._open: dict[Path, tuple[Watched, asyncio.Task[None]]] = {}

    def watch(self, folder: Path) -> Watched:
        """The run in this folder, from now on followed."""
        if folder not in self._open:
            if len(self._open) >= MOST_RUNS:
                raise TooManyRuns
            watched = Watched(folder)
            self._open[folder] = (watched, asyncio.create_task(self._follow(folder, watched)))
        return self._open[folder][0]

    async def _follow(self, folder: Path, watched: Watched) -> None:
        try:
            await watched.follow()
        finally:
            del self._open[folder]

    async def close(self, within_s: float) -> None:
        """The last message of every run, for whoever watches it."""
        for watched, _ in self._open.values():
            watched.hurry()
        if tasks := {task for _, task in self._open.values()}:
            await asyncio.wait(tasks, timeout=within_s)


async def _happens(event: asyncio.Event, within_s: float) -> bool:
    """Whether it happens in that time."""
    try:
        await asyncio.wait_for(event.wait(), within_s)
    except asyncio.TimeoutError:
        return False
    return True
