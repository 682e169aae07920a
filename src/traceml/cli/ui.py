"""`traceml ui`: the runs of a folder in the browser, finished and running ones."""

import argparse
import contextlib
import getpass
import os
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from traceml.cli.compare import compared, page_data
from traceml.cli.main import Parser, number
from traceml.cli.view import current
from traceml.errors import CommandError, say
from traceml.present.page import page
from traceml.runs import summary_file
from traceml.runs.manifest import MANIFEST, SUMMARY_JSON

PORT: Final = 8765
LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
WILDCARD: Final = ("", "0.0.0.0", "::")  # noqa: S104 - compared, not bound
DESCRIPTION: Final = """\
Show runs in the browser, finished and running ones, and compare them. The address that is
printed has a random token: only someone who has it can read the runs in this folder."""
EPILOG: Final = """\
examples:
  traceml ui                    the runs in logs/
  traceml ui logs/my_run        opens with this run
  traceml run train.py --mode=dashboard     the same during a run, and only as long

On a remote machine, keep the default --host and forward the port with the ssh line that is printed."""


def main(words: list[str]) -> int:
    """Serve until Ctrl-C. As the companion of `traceml run`, until that ends."""
    parser = Parser("traceml ui", "traceml ui [DIR] [options]", DESCRIPTION, EPILOG)
    parser.option("logs", "DIR", "folder with the runs, or a run (default: logs)", nargs="?", default="logs")
    host = "address to listen on (default: this machine only, 127.0.0.1)"
    parser.option("--host", None, host, default=LOOPBACK[0])
    port = f"port; if it is busy, another (default: {PORT})"
    parser.option("--port", None, port, type=number(0, 65_535), default=PORT)
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")
    parser.add_argument("--companion", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    try:
        _serve(given)
    except CommandError as problem:
        if not given.companion:
            raise
        raise CommandError(f"no dashboard: {problem}; training goes on") from None
    return 0


def _serve(given: argparse.Namespace) -> None:
    try:
        from traceml.serve.app import Site
        from traceml.serve.guard import Guard, base_of, hosts_of, policy
        from traceml.serve.server import listen, serve
        from traceml.serve.watched import Watchers
    except ImportError as problem:
        raise CommandError(f"{problem.name} is missing here; pip install starlette uvicorn") from None
    logs, run = _place_of(given.logs)
    token = secrets.token_urlsafe(24)
    base = base_of(token)
    content = page(msgspec.json.encode({"kind": "live", "base": base}))
    watchers = Watchers()

    def comparison(*names: str) -> bytes:
        """What `traceml compare --html` puts into its page."""
        one, other = ([current(summary_file.locate(str(logs / name), logs))] for name in names)
        return page_data(compared(one, other))

    site = Site(logs, content, watchers, comparison)
    guard = Guard(site.app(), token, hosts_of(given.host), policy(content))
    listener = listen(given.host, given.port)
    port = listener.getsockname()[1]
    if given.port not in (0, port):
        say(f"port {given.port} is busy; using {port}")
    host = socket.gethostname() if given.host in WILDCARD else given.host
    host = f"[{host}]" if ":" in host else host
    url = f"http://{host}:{port}{base}{f'#/run/{quote(run)}' if run else ''}"
    say(f"dashboard: {url}")
    if line := _ssh_line(port, given.host, os.environ):
        say(line)
    if not given.no_browser and (command := _browser(os.environ)):
        null = subprocess.DEVNULL
        with contextlib.suppress(OSError):  # the address is on the screen
            subprocess.Popen([command, url], start_new_session=True, stdin=null, stdout=null, stderr=null)
    serve(guard, listener, watchers, given.companion)


def _place_of(given: str) -> tuple[Path, str | None]:
    """The folder with the runs and, if a run was given, its name."""
    path = summary_file.find(given, Path("logs"))
    if not path.is_dir():
        raise CommandError(f"{summary_file.shown(path)}: give the folder with the runs, or a run folder")
    if any((path / name).is_file() for name in (MANIFEST, SUMMARY_JSON)):
        whole = path.resolve()
        return whole.parent, whole.name
    return path, None


def _ssh_line(port: int, host: str, environment: Mapping[str, str]) -> str | None:
    """Over ssh: how to reach this port from where the user sits."""
    if "SSH_CONNECTION" not in environment or host not in (*LOOPBACK, *WILDCARD):
        return None
    try:
        user = f"{getpass.getuser()}@"
    except (KeyError, OSError):  # a user id without a name
        user = ""
    here = f"ssh -L {port}:localhost:{port} {user}{socket.gethostname()}"
    return f"to open it on your own machine, first run there: {here}"


def _browser(environment: Mapping[str, str]) -> str | None:
    """The command that opens an address on this desktop; None if there is no desktop, or it is elsewhere."""
    if "SSH_CONNECTION" in environment:
        return None
    if sys.platform == "darwin":
        return shutil.which("open")
    has_screen = any(environment.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    return shutil.which("xdg-open") if has_screen else None
