"""What can be asked for below the token: the page, the list of runs, a run, its news, a comparison."""

import asyncio
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from traceml.errors import CommandError, printable, say_once
from traceml.runs.manifest import MANIFEST, SUMMARY_JSON
from traceml.runs.summary_file import listed, names_of_folders
from traceml.schema.summary import ListedRun
from traceml.serve.watched import Watched, Watchers, pieces

JSON: Final = "application/json"
STREAM: Final = "text/event-stream"
NO_RUN: Final = "no such run"
Compare = Callable[[str, str], bytes]
"""Names of two runs to the answer that has their comparison."""


class Site:
    """The answers to every request that the guard lets through."""

    def __init__(self, logs: Path, page: bytes, watchers: Watchers, compare: Compare) -> None:
        self._logs, self._page, self._watchers, self._compare = logs, page, watchers, compare

    def app(self) -> Starlette:
        """The routes. Every error is JSON with one line."""
        routes = [
            Route("/", self._show_page),
            Route("/api/runs", self._list),
            Route("/api/run/{name}", self._show_run),
            Route("/api/run/{name}/events", self._stream),
            Route("/api/compare", self._show_comparison),
        ]
        handlers: dict[Any, Any] = dict.fromkeys((HTTPException, CommandError, Exception), _refused)
        app = Starlette(routes=routes, exception_handlers=handlers)
        app.router.redirect_slashes = False  # a redirect would leave out the token
        return app

    async def _show_page(self, _: Request) -> Response:
        return _sent(self._page, "text/html; charset=utf-8")

    async def _list(self, _: Request) -> Response:
        runs = await asyncio.to_thread(self._runs)
        return _sent(msgspec.json.encode({"runs": runs}), JSON)

    async def _show_run(self, request: Request) -> Response:
        watched = await self._watched(request)
        return _sent(await watched.newest(), JSON)

    async def _stream(self, request: Request) -> Response:
        watched = await self._watched(request)
        await watched.newest()  # a run that cannot be read is an error, not a stream without news
        if request.method == "HEAD":
            return Response(media_type=STREAM)
        return StreamingResponse(watched.events(), media_type=STREAM, headers={"X-Accel-Buffering": "no"})

    async def _show_comparison(self, request: Request) -> Response:
        names = [request.query_params.get(side, "") for side in ("a", "b")]
        if not all(names):
            raise HTTPException(400, "name two runs: ?a=NAME&b=NAME")
        for name in names:
            await asyncio.to_thread(self._folder, name)
        return _sent(await asyncio.to_thread(self._compare, *names), JSON)

    async def _watched(self, request: Request) -> Watched:
        return self._watchers.watch(await asyncio.to_thread(self._folder, request.path_params["name"]))

    def _folder(self, name: str) -> Path:
        """The folder of this run: directly in the logs folder, whatever the name or a link says."""
        folder = self._logs / name
        try:
            is_name = os.path.basename(name) == name not in ("", ".", "..") and "\\" not in name
            is_inside = is_name and folder.resolve(strict=True).parent == self._logs.resolve()
            is_run = any((folder / file).is_file() for file in (MANIFEST, SUMMARY_JSON))
        except (OSError, ValueError, RuntimeError):  # too long, a NUL in it, a loop of links
            raise HTTPException(404, NO_RUN) from None
        if not (is_inside and is_run):
            raise HTTPException(404, NO_RUN)
        return folder

    def _runs(self) -> list[ListedRun]:
        """As `traceml runs` lists them, newest first."""
        folders = (self._logs / name for name in names_of_folders(self._logs, links=False))
        runs = [run for folder in folders if (run := _listed(folder)) is not None]
        return sorted(runs, key=lambda run: run.started_at or "", reverse=True)


def _listed(folder: Path) -> ListedRun | None:
    """The run in this folder; a summary that has not changed is not read again."""
    try:
        stat = os.stat(folder / SUMMARY_JSON)
    except OSError:
        return listed(folder)
    return _known(folder, stat.st_ino, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=10_000)
def _known(folder: Path, *_version: int) -> ListedRun | None:
    return listed(folder)


def _sent(data: bytes, media_type: str, status: int = 200) -> Response:
    headers = {"Content-Length": str(len(data))}
    return StreamingResponse(pieces(data), status, headers, media_type)


async def _refused(_: Request, problem: Exception) -> Response:
    """Every error is JSON with one line."""
    status, line = 500, "this failed; the terminal of the server says why"
    if isinstance(problem, HTTPException):
        status, line = problem.status_code, problem.detail
    elif isinstance(problem, CommandError):
        status, line = 409, str(problem)
    else:
        say_once(f"the dashboard failed to answer ({type(problem).__name__}: {problem})")
    return _sent(msgspec.json.encode({"error": printable(line)}), JSON, status)
