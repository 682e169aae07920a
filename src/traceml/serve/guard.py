"""Who may ask: only clients that know the token, and only from our own page. Others learn nothing."""

import hmac
import re
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
METHODS: Final = ("GET", "HEAD")
HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_PREFIX: Final = "/t/"
_POLICY: Final = re.compile(rb'http-equiv="Content-Security-Policy" content="([^"]+)"')


def base_of(token: str) -> str:
    """The path below which everything is."""
    return f"{_PREFIX}{token}/"


def hosts_of(host: str) -> frozenset[str] | None:
    """The names by which requests may call us when we listen on this address; None for any."""
    return LOOPBACK if host in ("localhost", "127.0.0.1", "::1") else None


def policy(page: bytes) -> str:
    """The Content-Security-Policy that the page has for itself, which allows its own script by hash, and more
    that only a header can say. Nothing that is smuggled into the page runs."""
    own = _POLICY.search(page)
    assert own is not None, "web/vite.config.js writes it"
    more = "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    return f"{own[1].decode()}; {more}"


class Guard:
    """Checks every request before anything else sees it, and adds our headers to every answer."""

    def __init__(self, app: ASGIApp, token: str, hosts: frozenset[str] | None, page_policy: str) -> None:
        """`hosts`: the names that a request may use for us, None for any (see `--host`)."""
        self._app, self._token, self._hosts = app, token.encode(), hosts
        self._headers = {**HEADERS, "Content-Security-Policy": page_policy}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a stranger with a bare status; pass other requests on, with the path below the token."""
        if scope["type"] != "http":
            return

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers[name] = value
            await send(message)

        token, slash, rest = scope["path"].removeprefix(_PREFIX).partition("/")
        headers = Headers(scope=scope)
        is_known = hmac.compare_digest(token.encode(errors="replace"), self._token)
        if not self._is_our_name(headers):
            refused = 403
        elif not (is_known and slash and scope["path"].startswith(_PREFIX)):
            refused = 404
        elif not _is_own_page(headers, is_page=not rest):
            refused = 403
        elif scope["method"] not in METHODS:
            refused = 405
        else:
            await self._app({**scope, "path": f"/{rest}"}, receive, sending)
            return
        await Response(status_code=refused, headers={"Connection": "close"})(scope, receive, sending)

    def _is_our_name(self, headers: Headers) -> bool:
        """A page elsewhere can point a name of its own at our address (DNS rebinding)."""
        name = re.sub(r":\d*$", "", headers.get("host", "")).lower()
        return self._hosts is None or name in self._hosts


def _is_own_page(headers: Headers, is_page: bool) -> bool:
    """Whether the request comes from our page, or from no page. A link to the page itself may be anywhere."""
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != headers.get("host"):
        return False
    if headers.get("sec-fetch-site", "none") in ("same-origin", "none"):
        return True
    return is_page and (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) == (
        "navigate",
        "document",
    )
