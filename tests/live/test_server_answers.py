"""What the server answers, and how `traceml ui` starts and ends."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.serving import Server, end, finished, going_on, served, start, within
from tests.scenarios.scenario import traceml


def make_runs(folder: Path) -> Path:
    """Ended runs, one that goes on, and two that cannot be read."""
    logs = folder / "logs"
    finished(logs, before="slow", after="fast", replaced="slow")
    (logs / "broken").mkdir()
    (logs / "broken" / "final_summary.json").write_text("{")
    (logs / "dead").mkdir()
    (logs / "dead" / "manifest.json").write_text('{"status": "running", "monitor_pid": null}')
    going_on(logs)
    return logs


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """The runs, for a test that changes them or needs a server of its own."""
    return make_runs(tmp_path)


@pytest.fixture(scope="module")
def one_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server for the tests that only ask."""
    with served(make_runs(tmp_path_factory.mktemp("answers")).parent) as made:
        yield made


def test_the_list_is_that_of_traceml_runs(logs: Path) -> None:
    """Running runs are in it as such; a replaced run is read again, an unchanged one is not."""
    with served(logs.parent) as server:
        done = traceml("runs", "--reverse", "--json", cwd=logs.parent)
        listed = server.ask("api/runs").json()["runs"]
        assert listed == json.loads(done.stdout), "newest first"
        by_name = {run["name"]: run for run in listed}
        assert by_name["live"]["status"] == "running"
        assert by_name["before"]["verdict"] == "INPUT-BOUND"
        (logs / "replaced" / "final_summary.json").write_bytes(
            (logs / "after" / "final_summary.json").read_bytes()
        )
        (logs / "broken" / "final_summary.json").unlink()
        (logs / "broken").rmdir()
        again = {run["name"]: run for run in server.ask("api/runs").json()["runs"]}
        assert "broken" not in again
        assert again["replaced"]["step_ms"] == again["after"]["step_ms"] != by_name["replaced"]["step_ms"]


def test_an_ended_run_has_its_final_summary(logs: Path) -> None:
    """The summary is the one in the file, and the state says that the run is over."""
    with served(logs.parent) as server:
        answer = server.ask("api/run/before").json()
        assert answer["live"]["state"] == "finished"
        shown = json.loads(traceml("view", "before", "--json", cwd=logs.parent).stdout)
        assert answer["summary"] == shown


def test_a_running_run_has_its_newest_steps(logs: Path) -> None:
    """Each answer has what was recorded until then, and how fresh it is."""
    run = going_on(logs, "other", steps=30)
    with served(logs.parent) as server:
        answer = server.ask("api/run/other").json()
        assert set(answer["live"]) == {"state", "quiet_s", "since_step", "since_start", "steps_per_s"}
        assert answer["live"]["state"] == "live"
        assert answer["summary"]["run"]["steps"]["total"] == 30
        run.append(5)
        within(
            30,
            lambda: server.ask("api/run/other").json()["summary"]["run"]["steps"]["total"] == 35,
            "new steps",
        )


def test_the_comparison_is_that_of_traceml_compare(logs: Path) -> None:
    """The same object as `--format json` prints."""
    with served(logs.parent) as server:
        done = traceml("compare", "before", "after", "--format", "json", cwd=logs.parent)
        answer = server.ask("api/compare?a=before&b=after").json()
        assert answer["comparison"] == json.loads(done.stdout)
        assert not (logs.parent / "compare" / "after_vs_before.json").exists()
        assert server.ask("api/compare?a=after&b=before").json()["comparison"]["verdict"] == "REGRESSION"
        assert not (logs.parent / "compare" / "after_vs_before.json").exists(), "a look writes no file"


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("api/run/nothing", 404, "no such run"),
        ("api/run/broken", 409, "truncated"),
        ("api/run/broken/events", 409, "truncated"),
        ("api/run/dead", 409, "cannot be read"),
        ("api/compare", 400, "name two runs"),
        ("api/compare?a=before", 400, "name two runs"),
        ("api/compare?a=before&b=live", 409, "no final_summary.json yet"),
        ("api/nothing", 404, "Not Found"),
        ("api/runs/", 404, "Not Found"),
    ],
)
def test_errors_are_one_line(one_server: Server, path: str, status: int, says: str) -> None:
    """What cannot be shown is a JSON object with one line."""
    answer = one_server.ask(path)
    assert answer.status == status
    assert list(answer.json()) == ["error"]
    assert says in answer.json()["error"]
    assert "\n" not in answer.json()["error"]


def test_a_busy_port_leads_to_another(logs: Path) -> None:
    """Two servers with the same --port both answer, and the second says which port it has."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with served(logs.parent, "--port", str(port)) as server:
            assert server.port != port
            assert f"port {port} is busy; using {server.port}" in server.lines[0]
            assert server.ask("api/runs").status == 200


def test_a_run_folder_opens_with_that_run(logs: Path) -> None:
    """`traceml ui logs/before` and `traceml ui before` show this run first, among its neighbours."""
    for given in ("logs/before", "before"):
        with served(logs.parent, given) as server:
            assert server.fragment == "/run/before"
            assert "after" in [run["name"] for run in server.ask("api/runs").json()["runs"]]


def test_over_ssh_the_way_to_the_port_is_printed(logs: Path) -> None:
    """The ssh -L line with the port in use, and no browser on the remote machine."""
    with served(
        logs.parent, SSH_CONNECTION="192.0.2.1 5 192.0.2.2 22", DISPLAY=":9", PATH=opener(logs)
    ) as server:
        assert server.process.stderr is not None
        line = server.process.stderr.readline()
        assert f"ssh -L {server.port}:localhost:{server.port} " in line
        assert line.rstrip().endswith(socket.gethostname())
        server.ask()
    assert not (logs.parent / "opened").exists()


def opener(logs: Path) -> str:
    """A PATH on which the desktop's command for opening an address notes it down."""
    folder = logs.parent / "bin"
    folder.mkdir()
    (folder / "xdg-open").write_text(
        f'#!/bin/sh\necho "$1" > {logs.parent}/opened.new\nmv {logs.parent}/opened.new {logs.parent}/opened\n'
    )
    (folder / "xdg-open").chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def test_on_a_desktop_the_browser_opens(logs: Path) -> None:
    """With a screen the address is opened once the server answers; --no-browser leaves it."""
    path = opener(logs)
    with served(logs.parent, "--no-browser", DISPLAY=":9", PATH=path) as server:
        server.ask()
    assert not (logs.parent / "opened").exists()
    with served(logs.parent, PATH=path) as server:
        server.ask()
    assert not (logs.parent / "opened").exists(), "there is no screen"
    with served(logs.parent, DISPLAY=":9", PATH=path) as server:
        within(120, (logs.parent / "opened").exists, "the browser opens")
        assert (logs.parent / "opened").read_text().strip() == server.url


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("nowhere",), "nowhere: no such file, run folder"),
        (("--port", "70000"), "use a whole number from 0 to 65535"),
        (("--host", "no.such.host.invalid"), "is not an address of this machine"),
        (("--host", "192.0.2.1"), "cannot listen on 192.0.2.1"),
        (("logs/before/final_summary.json",), "give the folder with the runs"),
    ],
)
def test_what_cannot_start_says_why(logs: Path, words: tuple[str, ...], says: str) -> None:
    """One line and exit code 2."""
    done = traceml("ui", *words, cwd=logs.parent)
    assert done.returncode == 2
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_missing_package_is_one_line(logs: Path) -> None:
    """Without uvicorn the command says what to install."""
    (logs.parent / "uvicorn.py").write_text("raise ModuleNotFoundError('no', name='uvicorn')")
    done = traceml("ui", cwd=logs.parent)
    assert done.returncode == 2
    assert done.stderr == "traceml: uvicorn is missing here; pip install starlette uvicorn\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_the_server_ends_at_once_with_open_pages(logs: Path, number: int, code: int) -> None:
    """Ctrl-C and `kill` end it in a moment, although a page still listens, and it says nothing."""
    process = start(logs.parent)
    server = Server(process)
    page = server.events("api/run/live/events")
    next(iter(page))
    process.send_signal(number)
    _, err = process.communicate(timeout=10)
    assert process.returncode == code
    assert err == ""


def test_a_run_that_is_being_finished_is_not_over(logs: Path) -> None:
    """Between the last step and the summary the run still counts as live; it never looks crashed."""
    run = going_on(logs, "ending")
    manifest = run.folder / "manifest.json"
    whole = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**whole, "status": "completed"}))
    with served(logs.parent) as server:
        assert server.ask("api/run/ending").json()["live"]["state"] == "live"
        end(run)
        within(120, lambda: server.ask("api/run/ending").json()["live"]["state"] == "finished", "it ends")
