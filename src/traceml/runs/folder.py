"""The run folder: its name, and who may claim or remove it."""

import errno
import os
import re
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from traceml.errors import CommandError, say
from traceml.recording import layout
from traceml.runs.liveness import monitor_lives
from traceml.runs.manifest import MANIFEST, mark_as_run, read_manifest

RECORDING, ENDED = layout.FOLDER, layout.ENDED
ANSWER_S: Final = 10.0
MOST_STEM_BYTES: Final = 150
"""Of a script's name in the run's: file systems take 255, and the time and a number follow."""
LOCAL: Final = frozenset(
    {
        *("ext2", "ext3", "ext4", "xfs", "btrfs", "bcachefs", "zfs", "f2fs", "jfs", "reiserfs", "nilfs2"),
        *("vfat", "exfat", "ntfs", "ntfs3", "fuseblk", "hfsplus", "apfs"),
        *("tmpfs", "overlay", "aufs", "rootfs"),
    }
)
"""Kinds of file systems that are disks of this machine. Everything else counts as a network, which may stop
answering and block all who touch it: a new kind of one must not stall a training."""
MOUNTS: Final = "/proc/self/mountinfo"


def plain_stem(target: str) -> str:
    """The name of a script or program, as a part of a folder's name."""
    stem = re.sub(r"[^\w.-]+", "_", Path(target).stem).strip("._-") or "run"
    return stem.encode()[:MOST_STEM_BYTES].decode(errors="ignore")


def create(logs_dir: str, run_name: str | None, target: str, overwrite: bool, numbered: bool = False) -> Path:
    """Make the run folder. An explicit name that exists is an error; a default one gets a number, and with
    `numbered` any other: cells of a notebook are run again."""
    # With the time, so that runs sort by date within a script.
    name = run_name or f"{plain_stem(target)}-{time.strftime('%Y%m%d-%H%M%S')}"
    logs = Path(logs_dir)
    try:
        logs = logs.absolute()  # fails in a folder that has been removed
        return _answered(
            lambda: _claim(logs, name, explicit=run_name is not None and not numbered, overwrite=overwrite)
        )
    except OSError as problem:
        import tempfile  # rarely needed, and `traceml run` should start the command soon

        # Training comes first: an unwritable folder costs the place of the logs, not the run.
        fallback, wanted = _temporary_folder(tempfile.gettempdir()), str(logs)[:300]
        say(f"cannot write to {wanted} ({problem.strerror}); recording in {fallback} (see --logs-dir)")
        return _claim(fallback, name, explicit=False, overwrite=False)


def recorded_in(home: Path) -> Path:
    """Where to record: in the run's folder, or on a local disk if that is on a network file system."""
    if is_local(home):
        return home
    import tempfile

    for place in (tempfile.gettempdir(), "/dev/shm"):  # noqa: S108 - a folder of our own is made there
        if is_local(place) and os.access(place, os.W_OK):
            local = _temporary_folder(place) / home.name
            (local / RECORDING).mkdir(parents=True)
            return local
    return home


def is_local(path: str | Path) -> bool:
    """Whether this path is on a disk of this machine; True where that is not known (not Linux)."""
    try:
        mounts = Path(MOUNTS).read_text(errors="surrogateescape")
    except OSError:
        return True
    place, kind, depth = os.path.realpath(path), "", -1
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        mount = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), before.split()[4])
        is_above = mount in ("/", place) or place.startswith(mount + "/")
        if is_above and len(mount) >= depth:  # of two on the same place, the later one hides the other
            kind, depth = after.split()[0], len(mount)
    return kind in LOCAL


def _temporary_folder(place: str) -> Path:
    """Like `mkdtemp`, but with the mode that the user's umask gives."""
    folder = Path(place) / f"traceml-{os.urandom(4).hex()}"
    folder.mkdir()
    return folder


def _answered(work: Callable[[], Path]) -> Path:
    """What `work` returns or raises; OSError if the file system does not answer, as a network's may not."""
    answer: list[Path | Exception] = []

    def run() -> None:
        try:
            answer.append(work())
        except (OSError, CommandError) as problem:
            answer.append(problem)

    thread = threading.Thread(target=run, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # at the process limit
        run()
    else:
        thread.join(ANSWER_S)
    if not answer:
        raise OSError(errno.ETIMEDOUT, f"no answer for {ANSWER_S:.0f} s")
    if isinstance(answer[0], Exception):
        raise answer[0]
    return answer[0]


def _claim(logs: Path, name: str, explicit: bool, overwrite: bool) -> Path:
    logs.mkdir(parents=True, exist_ok=True)
    folder, number = logs / name, 1
    while True:
        try:
            folder.mkdir()
            break
        except FileExistsError:
            if explicit and overwrite:
                _remove_run(folder)
            elif explicit:
                raise CommandError(
                    f"run {name!r} exists in {logs}; choose another --run-name or pass --overwrite"
                ) from None
            else:
                number += 1
                folder = logs / f"{name}-{number}"
    (folder / RECORDING).mkdir()
    mark_as_run(folder)
    return folder


def _remove_run(folder: Path) -> None:
    """Only what is certainly a run of ours is ever removed."""
    found = {path.name for path in folder.iterdir()}
    if MANIFEST not in found and found - {RECORDING} | set((folder / RECORDING).glob("*")):
        raise CommandError(f"{folder} is not a TraceML run; remove it yourself or choose another name")
    manifest = read_manifest(folder)
    if manifest.get("status") == "running":
        lives = monitor_lives(folder, manifest)
        if lives:
            raise CommandError(f"run {folder.name!r} is still running; choose another --run-name")
        if lives is None:
            say(f"replacing run {folder.name!r} of another machine, where it had not ended")
    shutil.rmtree(folder)
    local = manifest.get("recorded_in")
    if isinstance(local, str) and re.search(rf"/traceml-[0-9a-f]{{8}}/{re.escape(folder.name)}$", local):
        # Left on this machine's disk by a monitor that was killed; see `recorded_in`.
        shutil.rmtree(Path(local).parent, ignore_errors=True)
