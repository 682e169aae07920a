"""The page of the browser views: one HTML file, built from `web/`, with the data put into it as JSON."""

from pathlib import Path
from typing import Final

from traceml.errors import CommandError

PAGE: Final = Path(__file__).with_name("page.html")
HEAD: Final = b'<script id="traceml-data" type="application/json">'
NOT_BUILT: Final = (
    "this installation has no page.html; install Node.js 20.19 or newer and reinstall TraceML, or use a wheel"
)
ESCAPES: Final = {
    b"<": b"\\u003c",
    "\u2028".encode(): b"\\u2028",
    "\u2029".encode(): b"\\u2029",
}
"""What could end the element or start a comment. In JSON these only occur inside strings."""


def page(data: bytes) -> bytes:
    """The page with this JSON in it."""
    try:
        before, head, after = PAGE.read_bytes().partition(HEAD)
    except FileNotFoundError:
        raise CommandError(NOT_BUILT) from None
    for character, escape in ESCAPES.items():
        data = data.replace(character, escape)
    return before + head + data + after


def of_summary(summary: bytes) -> bytes:
    """The report of one run, from its final_summary.json."""
    return page(b'{"kind":"summary","summary":' + summary + b"}")
