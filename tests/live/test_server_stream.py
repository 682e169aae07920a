"""The stream of a run: what pages are sent, and that none of them can harm the others or the server."""

from __future__ import annotations

import http.client
import json
import os
import socket
import time
from pathlib import Path

import pytest

from tests.live.serving import Events, Server, end, going_on, served, within

PAGES = 50
ROUNDS = 10
NEWS = "api/run/live/events"


def total(data: dict[str, dict[str, dict[str, dict[str, int]]]]) -> int:
    """The number of steps that a message tells of."""
    return data["summary"]["run"]["steps"]["total"]


def test_a_page_is_sent_new_steps_and_the_end(tmp_path: Path) -> None:
    """Each change arrives by itself; the last message has the final summary, and `end` closes the stream."""
    run = going_on(tmp_path / "logs", steps=30)
    with served(tmp_path) as server:
        page = server.events(NEWS)
        assert total(page.until(lambda _: True)) == 30
        run.append(10)
        seen = page.until(lambda data: total(data) == 40)
        assert seen["live"]["state"] == "live"
        assert seen["summary"]["final"] is False
        end(run)
        rest = list(page)
        assert rest[-1] == ("end", {})
        name, last = rest[-2]
        assert (name, last["live"]["state"]) == ("message", "finished")
        assert last["summary"] == server.ask("api/run/live").json()["summary"]
        assert last["summary"]["final"] is True


def test_an_ended_run_is_sent_once(tmp_path: Path) -> None:
    """The stream of an ended run is its summary and the end."""
    end(going_on(tmp_path / "logs"))
    with served(tmp_path) as server:
        assert [name for name, _ in server.events(NEWS)] == ["message", "end"]


def test_a_removed_run_closes_its_stream(tmp_path: Path) -> None:
    """The stream does not say that the run ended, and asking again says that it is not there."""
    run = going_on(tmp_path / "logs")
    with served(tmp_path) as server:
        page = server.events(NEWS)
        page.until(lambda _: True)
        run.folder.rename(tmp_path / "elsewhere")
        assert "end" not in [name for name, _ in page]
        assert server.ask(NEWS).status == 404


def test_many_pages_cost_one_look(tmp_path: Path) -> None:
    """Fifty pages are sent the same news, and the run is read as often as for one of them."""
    run = going_on(tmp_path / "logs", ranks=8)
    with served(tmp_path) as server:
        pages = [server.events(NEWS) for _ in range(PAGES)]
        for page in pages:
            page.until(lambda _: True)
        run.append(7)
        seen = [page.until(lambda data: total(data) == 47) for page in pages]
        assert all(data == seen[0] for data in seen), "made once, for all of them"
        end(run)
        assert {list(page)[-1][0] for page in pages} == {"end"}


def test_pages_that_do_not_read_delay_no_other(tmp_path: Path) -> None:
    """Others get their news, nothing piles up in memory, and a slow page skips what it had no time for."""
    run = going_on(tmp_path / "logs", ranks=256)
    with served(tmp_path) as server:
        page = server.events(NEWS)
        page.until(lambda _: True)

        def go_on() -> None:
            run.append(5)
            page.until(lambda data: total(data) == run.steps)

        for _ in range(3):
            go_on()
        before, first = server.memory(), run.steps
        sleepers = [server.open(NEWS, buffer=4096) for _ in range(PAGES)]
        for _ in range(ROUNDS):
            go_on()
        grown, size = server.memory() - before, len(server.ask("api/run/live").body)
        assert ROUNDS * PAGES * size > 80_000_000, "this much would pile up"
        assert grown < 45_000_000, f"{grown / 1e6:.1f} MB"
        late = totals_up_to(sleepers[0], run.steps)
        assert late[0] <= first + 5, "what was on its way"
        assert len(late) <= ROUNDS // 2, "then the newest"
        for sleeper in sleepers:
            sleeper.close()


def totals_up_to(sleeper: socket.socket, last: int) -> list[int]:
    """The steps in the messages of a stream that nobody has read so far, up to the one with `last`."""
    answer = http.client.HTTPResponse(sleeper)
    answer.begin()
    found: list[int] = []
    while last not in found:
        if (line := answer.readline()).startswith(b"data: "):
            found.append(total(json.loads(line.removeprefix(b"data: "))))
    return found


def test_too_many_connections_are_turned_away(tmp_path: Path) -> None:
    """From the two hundredth on the answer is 503; once pages are closed there is room again."""
    going_on(tmp_path / "logs")
    with served(tmp_path) as server:
        pages = [server.open(NEWS) for _ in range(199)]  # all at once, one more would turn several away
        assert {page.recv(12, socket.MSG_PEEK) for page in pages} == {b"HTTP/1.1 200"}
        assert server.ask("api/runs").status == 503
        for page in pages:
            page.close()
        within(120, lambda: server.ask("api/runs").status == 200, "room again")


@pytest.mark.long
def test_silent_connections_are_dropped(tmp_path: Path) -> None:
    """Whoever connects and asks nothing, or asks and never reads, loses the connection and its place."""
    run = going_on(tmp_path / "logs", ranks=256)
    with served(tmp_path) as server:
        silent = [socket.create_connection((server.host, server.port)) for _ in range(250)]
        within(120, lambda: all(is_closed(connection) for connection in silent), "silent ones are dropped")
        sleeper = server.open(NEWS, buffer=4096)
        page = server.events(NEWS)
        port = sleeper.getsockname()[1]
        within(120, lambda: peers(server, port) == 1, "it is connected")
        until = time.monotonic() + 60
        while peers(server, port) and time.monotonic() < until:
            run.append(1)
            page.until(lambda data: total(data) == run.steps)
        assert not peers(server, port), "one that never reads is dropped, although it is still there"


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side has ended it."""
    connection.settimeout(0)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def peers(server: Server, port: int) -> int:
    """Established connections of the server to this port."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    wanted = (f":{server.port:04X}", f":{port:04X}", "01")
    return sum((row[1][-5:], row[2][-5:], row[3]) == wanted for row in rows)


def test_strangers_cannot_use_up_the_server(tmp_path: Path) -> None:
    """A thousand requests with wrong tokens leave an open page and the server's memory as they were."""
    run = going_on(tmp_path / "logs")
    with served(tmp_path) as server:
        page = server.events(NEWS)
        page.until(lambda _: True)
        server.ask_exactly("/t/wrong/")
        before = server.memory()
        for number in range(1000):
            assert server.ask_exactly(f"/t/{number}/api/runs").status == 404
        run.append(5)
        page.until(lambda data: total(data) == 45)
        assert server.memory() - before < 20_000_000


def test_a_run_without_a_watcher_is_not_read(tmp_path: Path) -> None:
    """With the last page closed, the server rests: it uses next to no CPU time."""
    going_on(tmp_path / "logs", ranks=512)
    with served(tmp_path) as server:
        page = server.events(NEWS)
        page.until(lambda _: True)
        watched = cpu_in(server, 2.0)
        page.close()
        within(
            120, lambda: cpu_in(server, 2.0) <= 0.2 * watched, f"it rests; watched: {watched:.2f} s in 2 s"
        )


def cpu_in(server: Server, seconds: float) -> float:
    """CPU seconds that the server uses in this time."""

    def used() -> float:
        fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before = used()
    time.sleep(seconds)
    return used() - before


def test_a_page_hears_of_a_dead_run(tmp_path: Path) -> None:
    """A run whose processes are gone is shown as ended, although nothing recorded that it ended."""
    run = going_on(tmp_path / "logs")
    manifest = run.folder / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "monitor_pid": 2**31 - 1}))
    with served(tmp_path) as server:
        events: Events = server.events(NEWS)
        (name, last), end_of_it = list(events)[-2:]
        assert (name, last["live"]["state"]) == ("message", "crashed")
        assert end_of_it == ("end", {})
