"""Who the server answers: whoever has the token, from our own page, about runs in the log folder."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.serving import Server, finished, served
from traceml.serve.app import Site
from traceml.serve.watched import Watchers

EVERY_ROUTE = {
    "/": "",
    "/api/runs": "api/runs",
    "/api/run/{name}": "api/run/a",
    "/api/run/{name}/events": "api/run/a/events",
    "/api/compare": "api/compare?a=a&b=b",
}
ROUTES = tuple(EVERY_ROUTE.values())
FETCH = {"sec_fetch_mode": "cors", "sec_fetch_dest": "empty"}
LINK = {"sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two runs in `logs`; a run, a secret and a link to the run outside it."""
    folder = tmp_path_factory.mktemp("guard")
    finished(folder / "logs", a="slow", b="fast")
    finished(folder, outside="slow")
    (folder / "logs" / "link").symlink_to(folder / "outside")
    (folder / "logs" / "loop").symlink_to(folder / "logs" / "loop")
    (folder / "logs" / "no_run").mkdir()
    with served(folder, "logs") as made:
        yield made


def test_the_table_has_every_route() -> None:
    """The routes that the tests below walk through are all that there are."""
    site = Site(Path("logs"), b"", Watchers(), lambda a, b: b"")
    assert {getattr(route, "path", None) for route in site.app().routes} == set(EVERY_ROUTE)


@pytest.mark.parametrize("route", ROUTES)
def test_every_route_answers_with_the_token_only(server: Server, route: str) -> None:
    """Without the token, with a wrong, cut or longer one: 404 and an empty body, whatever is asked for."""
    assert server.ask(route).status == 200
    token = server.base.split("/")[2]
    wrong = ["/", f"/t/{route}", f"/t//{route}", f"/t/{token[:-1]}/{route}", f"/t/{token}x/{route}"]
    wrong += [f"/t/{token.swapcase()}/{route}", f"/{token}/{route}", f"/t/%00{token}/{route}", f"/{route}"]
    wrong += [f"/t/{token}", f"/x/{token}/{route}", f"//t/{token}/{route}", f"/t/{'é'.encode()!r}/{route}"]
    for path in wrong:
        answer = server.ask_exactly(path.replace(" ", ""))
        assert (answer.status, answer.body) == (404, b""), path


@pytest.mark.parametrize("route", ROUTES)
def test_every_answer_has_the_headers_of_a_private_page(server: Server, route: str) -> None:
    """No cache, no referrer, no guessing of types, no embedding, no other origin; refusals too."""
    for answer in (server.ask_exactly(route), server.ask("api/run/nothing"), server.ask("/wrong")):
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert not [name for name in answer.headers if name.startswith("access-control")]
        assert "server" not in answer.headers


def test_the_page_runs_its_own_script_and_no_other(server: Server) -> None:
    """The policy names the page's scripts by their hashes; nothing may be loaded from anywhere else."""
    policy = server.ask().headers["content-security-policy"]
    rules = dict(rule.strip().partition(" ")[::2] for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["connect-src"] == "'self'"
    assert re.fullmatch(r"('sha256-[\w+/=]+' ?)+", rules["script-src"])


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::2]:1"])
def test_a_foreign_name_for_this_machine_is_refused(server: Server, host: str) -> None:
    """A page elsewhere that points its own name at our address (DNS rebinding) gets nothing."""
    assert server.ask("api/runs", host=host).status == 403


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9000", "127.0.0.1:1", "[::1]:8765"])
def test_a_forwarded_port_works_under_any_number(server: Server, host: str) -> None:
    """`ssh -L 9000:localhost:8765` reaches us as localhost:9000."""
    assert server.ask("api/runs", host=host).status == 200


def test_requests_of_other_pages_are_refused(server: Server) -> None:
    """Another origin cannot ask, not even another port of this machine; a link to the page itself works."""
    for site in ("cross-site", "same-site"):
        for route in ROUTES:
            assert server.ask(route, sec_fetch_site=site, **FETCH).status == 403, (site, route)
        assert server.ask("api/runs", sec_fetch_site=site, **LINK).status == 403
        assert (
            server.ask("", sec_fetch_site=site, sec_fetch_mode="navigate", sec_fetch_dest="iframe").status
            == 403
        )
        assert server.ask("", sec_fetch_site=site, **LINK).status == 200
    own = f"http://{server.host}:{server.port}"
    for origin in ("https://evil.example", "null", "", f"{own}0", f"{own}.evil.example"):
        assert server.ask("api/runs", origin=origin).status == 403, origin
    assert server.ask("api/runs", origin=own, sec_fetch_site="same-origin", **FETCH).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
def test_nothing_can_be_changed(server: Server, method: str) -> None:
    """Only GET and HEAD are answered."""
    assert server.ask("api/runs", method=method).status == 405


@pytest.mark.parametrize("route", ROUTES)
def test_head_answers_without_a_body(server: Server, route: str) -> None:
    """HEAD gives the headers only; on the stream, too, it ends."""
    answer = server.ask(route, method="HEAD")
    assert (answer.status, answer.body) == (200, b"")


OUTSIDE = (
    "..", ".", "../outside", "..%2Foutside", "%2e%2e%2foutside", "a%2F..%2F..%2Foutside", "..%5Coutside",
    "link", "loop", "no_run", "nothing", "a%00", "%00", "a/../../outside", "%252e%252e%252foutside", "%ff%fe",
    "x" * 300, "%C3%A9" * 2000, "~root", "b%2F..%2Fa", "a%2F", "%2Fa", "a%0Ab", "%20",
)  # fmt: skip


@pytest.mark.parametrize("name", OUTSIDE)
def test_nothing_outside_the_log_folder_can_be_named(server: Server, name: str) -> None:
    """`..`, encoded slashes, links that lead out, NUL, names that no file system has: no such run."""
    paths = [f"api/run/{name}", f"api/run/{name}/events", f"api/compare?a={name}&b=b"]
    for path in (*paths, f"api/compare?a=b&b={name}"):
        answer = server.ask(path)
        assert answer.status == 404, (path, answer)
        assert list(answer.json()) == ["error"]
        assert "\n" not in answer.json()["error"]


def test_a_run_that_is_a_link_out_is_not_listed(server: Server) -> None:
    """The list has what can be opened."""
    assert {run["name"] for run in server.ask("api/runs").json()["runs"]} == {"a", "b"}


def test_another_address_needs_the_token_just_the_same(tmp_path: Path) -> None:
    """`--host` elsewhere: any name of this machine is fine, and the token is still required."""
    finished(tmp_path / "logs", a="slow")
    with served(tmp_path, "logs", "--host", "0.0.0.0") as server:
        server.host = "127.0.0.1"
        assert server.ask("api/runs", host="gpu-box.example:80").status == 200
        assert server.ask_exactly("/api/runs").status == 404
        assert server.ask("api/runs", sec_fetch_site="cross-site", **FETCH).status == 403


def test_a_link_as_log_folder_is_followed(tmp_path: Path) -> None:
    """`logs` itself may be a link to another disk."""
    finished(tmp_path / "disk", a="slow")
    (tmp_path / "logs").symlink_to(tmp_path / "disk")
    with served(tmp_path, "logs") as server:
        assert server.ask("api/run/a").status == 200
        shutil.rmtree(tmp_path / "disk")
        assert server.ask("api/run/b").status == 404
        assert list(server.ask("api/runs").json()) == ["error"]
