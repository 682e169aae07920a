"""The run folder: claimed once, never somebody else's, written atomically."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from traceml.errors import CommandError
from traceml.files import write_atomic
from traceml.runs.folder import create
from traceml.runs.liveness import is_alive, monitor_lives, this_process
from traceml.runs.manifest import read_manifest, write_manifest

DEAD_PID = 2**22 + 1
"""Above the largest process id that Linux hands out."""


def test_a_named_run_is_a_folder_with_a_recording(tmp_path: Path) -> None:
    """logs/<run_name>/recording/ is there when the command starts; missing parents are made."""
    folder = create(str(tmp_path / "a" / "logs"), "first", "train.py", overwrite=False)
    assert folder == tmp_path / "a" / "logs" / "first"
    assert (folder / "recording").is_dir()


def test_an_existing_name_is_refused(tmp_path: Path) -> None:
    """A run is never written over by accident; the line says what to do."""
    create(str(tmp_path), "first", "train.py", overwrite=False)
    with pytest.raises(CommandError, match="choose another --run-name or pass --overwrite"):
        create(str(tmp_path), "first", "train.py", overwrite=False)


def test_overwrite_replaces_a_run(tmp_path: Path) -> None:
    """With --overwrite the old run is gone, whole."""
    old = create(str(tmp_path), "first", "train.py", overwrite=False)
    write_manifest(old, {"status": "completed"})
    (old / "final_summary.json").write_text("{}")
    assert create(str(tmp_path), "first", "train.py", overwrite=True) == old
    assert sorted(p.name for p in old.iterdir()) == ["manifest.json", "recording"]
    assert list((old / "recording").iterdir()) == []


def test_overwrite_also_removes_what_a_killed_monitor_left_on_a_local_disk(tmp_path: Path) -> None:
    """A run on a network folder is recorded on a local disk first; only a folder of that kind is removed."""
    for place, is_removed in (("traceml-0123abcd/first", True), ("precious/first", False)):
        local = tmp_path / place
        local.mkdir(parents=True)
        old = create(str(tmp_path / "logs"), "first", "train.py", overwrite=True)
        write_manifest(old, {"status": "killed", "recorded_in": str(local)})
        create(str(tmp_path / "logs"), "first", "train.py", overwrite=True)
        assert local.exists() is not is_removed
        write_manifest(old, {"status": "killed"})


def test_overwrite_never_removes_what_is_not_ours(tmp_path: Path) -> None:
    """A folder without our manifest stays, whatever the flag."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "precious").write_text("x")
    with pytest.raises(CommandError, match="is not a TraceML run"):
        create(str(tmp_path), "data", "train.py", overwrite=True)
    assert (tmp_path / "data" / "precious").read_text() == "x"


def test_overwrite_never_removes_a_running_run(tmp_path: Path) -> None:
    """A run whose monitor is alive is left alone."""
    folder = create(str(tmp_path), "first", "train.py", overwrite=False)
    write_manifest(folder, {"status": "running", "monitor_pid": os.getpid()})
    with pytest.raises(CommandError, match="still running"):
        create(str(tmp_path), "first", "train.py", overwrite=True)
    write_manifest(folder, {"status": "running", "monitor_pid": DEAD_PID})
    assert create(str(tmp_path), "first", "train.py", overwrite=True) == folder


@pytest.mark.parametrize("left", ["nothing", "an empty recording", "the first manifest"])
def test_overwrite_replaces_a_run_that_was_killed_at_once(tmp_path: Path, left: str) -> None:
    """Whatever there was when its monitor died: the same command starts again."""
    folder = create(str(tmp_path), "first", "train.py", overwrite=False)
    manifest = read_manifest(folder)
    write_manifest(folder, {**manifest, "monitor_process": {**this_process(), "started": 1}})
    if left != "the first manifest":
        (folder / "manifest.json").unlink()
    if left == "nothing":
        (folder / "recording").rmdir()
    assert create(str(tmp_path), "first", "train.py", overwrite=True) == folder


def test_overwrite_of_another_machines_run_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its process ids mean nothing here: the flag is obeyed, with one line."""
    folder = create(str(tmp_path), "first", "train.py", overwrite=False)
    there = {"status": "running", "monitor_pid": os.getpid(), "environment": {"host": "somewhere-else"}}
    write_manifest(folder, there)
    assert create(str(tmp_path), "first", "train.py", overwrite=True) == folder
    assert (
        capsys.readouterr().err
        == "traceml: replacing run 'first' of another machine, where it had not ended\n"
    )


def test_two_runs_in_one_second_get_two_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a name the script and the time make one; the second gets a number."""
    monkeypatch.setattr(time, "strftime", lambda _format: "20260101-000000")
    names = [create(str(tmp_path), None, "src/my train.py", overwrite=False).name for _ in range(3)]
    assert names == ["my_train-20260101-000000" + tail for tail in ("", "-2", "-3")]


@pytest.mark.parametrize(
    "script",
    ["x" * 250 + ".py", "训" * 80 + ".py", "...py", "/", ""],
    ids=["long", "wide", "dots", "root", "empty"],
)
def test_a_script_of_any_name_gets_a_folder(tmp_path: Path, script: str) -> None:
    """The default name is always one that a file system takes."""
    folder = create(str(tmp_path), None, script, overwrite=False)
    assert folder.parent == tmp_path
    assert (folder / "recording").is_dir()


def test_an_unwritable_logs_folder_costs_the_place_and_not_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training comes first: a temporary folder takes over, with one line that says so."""
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    folder = create(str(tmp_path / "file" / "logs"), "first", "train.py", overwrite=False)
    assert folder.is_relative_to(tmp_path / "tmp")
    assert (folder / "recording").is_dir()
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "--logs-dir" in said


# ---- atomic writes, manifests, processes


def test_a_write_leaves_the_new_file_and_nothing_else(tmp_path: Path) -> None:
    """Temporary file, rename: the folder holds exactly the file, with the mode of the umask."""
    before = os.umask(0o027)
    for data in (b"one", b"two"):
        write_atomic(tmp_path / "x.json", data)
        assert (tmp_path / "x.json").read_bytes() == data
    os.umask(before)
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]
    assert (tmp_path / "x.json").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Disk full in the middle: the old file is whole, no temp file stays, the error is raised."""
    write_atomic(tmp_path / "x.json", b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(f"traceml.files.os.{step}", full)
    with pytest.raises(OSError, match="No space"):
        write_atomic(tmp_path / "x.json", b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]
    assert (tmp_path / "x.json").read_bytes() == b"old"


def test_a_manifest_comes_back(tmp_path: Path) -> None:
    """What was written is read."""
    write_manifest(tmp_path, {"name": "ü", "exit_code": None})
    assert read_manifest(tmp_path) == {"name": "ü", "exit_code": None}


@pytest.mark.parametrize("data", [None, b"", b"[1]", b"{", b"\xff\xfe", b"null"])
def test_a_manifest_that_cannot_be_read_is_empty(tmp_path: Path, data: bytes | None) -> None:
    """Missing, torn or foreign: empty, no traceback."""
    if data is not None:
        (tmp_path / "manifest.json").write_bytes(data)
    assert read_manifest(tmp_path) == {}


def test_who_is_alive() -> None:
    """This process is; an id that no process has is not."""
    assert is_alive(os.getpid())
    assert not is_alive(DEAD_PID)


@pytest.mark.parametrize("pid", [None, "12", 0, -1, 10**30, 1.5, {}])
def test_what_is_no_process_id_is_not_alive(pid: object) -> None:
    """A damaged manifest names no process: 0 and -1 would mean whole groups of them."""
    assert not is_alive(pid)


HOST = socket.gethostname()
US = this_process()


@pytest.mark.parametrize(
    ("manifest", "expected"),
    [
        ({"monitor_process": US}, True),
        ({"monitor_process": {**US, "started": 1}}, False),
        ({"monitor_process": {**US, "boot": "before"}}, False),
        ({"monitor_process": {**US, "boot": "there"}, "environment": {"host": "there"}}, None),
        ({"monitor_process": US, "environment": {"host": "renamed since"}}, True),
        ({"environment": {"host": HOST}}, True),
        ({"environment": {"host": "there"}}, None),
        ({"monitor_pid": DEAD_PID}, False),
        ({"monitor_pid": DEAD_PID, "monitor_process": US}, False),
        ({"monitor_process": [], "environment": 3}, True),
        ({"monitor_process": {}, "monitor_pid": "x"}, False),
    ],
)
def test_whose_process_id_it_is(tmp_path: Path, manifest: dict[str, object], expected: bool | None) -> None:
    """An id counts for the same start, boot and machine. Manifests that have none of these still work."""
    assert monitor_lives(tmp_path, {"monitor_pid": os.getpid(), **manifest}) is expected


def test_a_zombie_is_not_alive() -> None:
    """A killed monitor that its parent has not collected does not block its run's name."""
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(child.pid)
    child.wait()


def test_a_live_monitor_in_another_container_is_known_by_its_lock(tmp_path: Path) -> None:
    """Its process cannot be seen from here, but the folder is locked for as long as it lives."""
    there = {"monitor_pid": 1, "monitor_process": {**US, "namespace": "pid:[1]"}}
    script = (
        "import pathlib, sys, traceml.runs.liveness as liveness\n"
        "liveness.hold(pathlib.Path(sys.argv[1]))\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    assert monitor_lives(tmp_path, there) is True
    holder.kill()
    holder.wait()
    assert monitor_lives(tmp_path, there) is False
