"""A log folder on a network file system: neither a slow nor a silent one reaches the training."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.running.processes import environment
from tests.running.scripts import write
from traceml.monitor import mirror
from traceml.recording.tail import Tail
from traceml.recording.writer import RecordingWriter
from traceml.runs import folder as run_folder
from traceml.schema import catalog as c

NO_DISK = 'mkdir logs && mount -t ramfs none logs && eval "$1"; cp -r logs seen'
"""ramfs is no disk of this machine, as far as we know: it stands for a network that answers."""
TRACED = f"{sys.executable} -m traceml run --run-name r train.py"
SILENT = """
import ctypes, os, struct, subprocess, sys
fuse = os.open("/dev/fuse", os.O_RDWR)
os.mkdir("silent")
options = b"fd=%d,rootmode=40000,user_id=0,group_id=0" % fuse
if ctypes.CDLL(None, use_errno=True).mount(b"silent", b"silent", b"fuse", 0, options):
    sys.exit(77)
number = struct.unpack_from("<IIQ", os.read(fuse, 1 << 17))[2]
about = struct.pack("<IIIIHHIIHH32x", 7, 31, 0, 0, 0, 0, 4096, 1, 0, 0)
os.write(fuse, struct.pack("<IiQ", 16 + len(about), 0, number) + about)  # the first and the last answer
done = subprocess.run(sys.argv[1:])
ctypes.CDLL(None).umount2(b"silent", 2)
sys.exit(done.returncode)
"""


def in_namespace(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run this where mounts are private."""
    inside = ["unshare", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*inside, "true"], check=False).returncode:
        pytest.skip("nothing can be mounted here")
    return subprocess.run(
        [*inside, *words],
        cwd=folder,
        env=environment(TMPDIR=str(folder)),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def left_behind(folder: Path) -> list[Path]:
    return list(folder.glob("traceml-*"))


@pytest.mark.stack
def test_run_is_recorded_locally_and_ends_in_its_folder(tmp_path: Path) -> None:
    """Rows, events, manifest and summary are where they always are, and nothing is left on the local disk."""
    write(tmp_path, "train(60, lambda step: time.sleep(0.05))\nsys.exit(6)")
    done = in_namespace(tmp_path, "sh", "-c", NO_DISK, "sh", f"{TRACED}; echo code $?")
    assert "code 6" in done.stdout, done.stderr
    assert "Summary: logs/r/final_summary.json and .txt" in done.stderr
    home = tmp_path / "seen" / "r"
    found = json.loads((home / "final_summary.json").read_text())
    assert (found["run"]["status"], found["run"]["steps"]["total"]) == ("failed", 60)
    manifest = json.loads((home / "manifest.json").read_text())
    assert manifest["recorded_in"].startswith(str(tmp_path / "traceml-"))
    (rank,) = Tail(home).read().ranks
    assert (len(rank.rows), [e.kind for e in rank.events].count("model")) == (60, 1)
    assert left_behind(tmp_path) == []


@pytest.mark.stack
def test_rows_are_found_after_everything_was_killed(tmp_path: Path) -> None:
    """kill -9 of monitor and training: `traceml view` brings the rows from this machine's disk."""
    ends = (
        "time.sleep(5)\nimport os, signal\n[os.kill(p, signal.SIGKILL) for p in (os.getppid(), os.getpid())]"
    )
    write(tmp_path, f"train(40)\n{ends}")
    view = f"{sys.executable} -m traceml view r --json > viewed.json"
    done = in_namespace(tmp_path, "sh", "-c", NO_DISK, "sh", f"{TRACED}; {view}")
    found = json.loads((tmp_path / "viewed.json").read_text())
    assert (found["run"]["status"], found["run"]["steps"]["total"]) == ("killed", 40), done.stderr
    assert len(left_behind(tmp_path)) == 1


@pytest.mark.stack
@pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="needs FUSE")
def test_silent_file_system_costs_a_few_seconds_at_the_start(tmp_path: Path) -> None:
    """A mounted file system that never answers: the run is recorded elsewhere, with one line."""
    write(tmp_path, "train(20)\nprint('trained')\nsys.exit(6)")
    words = f"{TRACED.replace('--run-name r', '--logs-dir silent/logs')}".split()
    done = in_namespace(tmp_path, sys.executable, "-c", SILENT, *words)
    if done.returncode == 77:
        pytest.skip("FUSE cannot be mounted here")
    assert (done.returncode, done.stdout) == (6, "trained\n"), done.stderr
    assert done.stderr.count("silent/logs (no answer for 10 s); recording in") == 1
    (summary,) = tmp_path.glob("traceml-*/train-*/final_summary.json")
    assert json.loads(summary.read_text())["run"]["steps"]["total"] == 20


def test_folder_that_stops_answering_delays_neither_training_nor_monitor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The thread that copies is blocked in the kernel (by a FIFO without a reader). The monitor ends
    nevertheless, says where the run is, and copies it later."""
    local, home = tmp_path / "local" / "r", tmp_path / "home" / "r"
    for folder in (local, home):
        (folder / "recording").mkdir(parents=True)
    RecordingWriter(str(local / "recording" / "rank-0.42.steps"), c.STEP_COLUMNS, {"identity": {"rank": 0}})
    (local / "recording" / "early.events.jsonl").write_text('{"kind": "error"}\n')
    blocks = home / "recording" / "early.events.jsonl"
    os.mkfifo(blocks)
    monkeypatch.setattr(mirror, "EVERY_S", 0.01)
    monkeypatch.setattr(mirror, "CLOSE_S", 0.5)
    blocked = mirror.Mirror(local, home)
    assert blocked.close() == local
    assert f"see {local}" in capsys.readouterr().err
    os.close(os.open(blocks, os.O_RDWR))  # lets the thread go
    blocks.unlink()
    assert mirror.Mirror(local, home, start=False).copy_once()
    assert (home / "recording" / "rank-0.42.steps").exists()


@pytest.mark.parametrize(
    ("path", "local"), [("/home/me", True), ("/data/logs", False), ("/data2", True), ("/my disk/x", False)]
)
def test_kind_of_file_system(path: str, local: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mount that a path is on decides; a kind that is not known is no disk of this machine."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "1 0 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n"
        "2 1 0:5 / /data rw - ext4 /dev/sdb1 rw\n"
        "3 1 0:6 / /data rw master:2 - nfs4 server:/data rw\n"
        "4 1 0:7 / /my\\040disk rw - newfs server rw\n"
    )
    monkeypatch.setattr(run_folder, "MOUNTS", str(mounts))
    assert run_folder.is_local(path) is local
