"""`traceml view`: print the summary of a run again, or rebuild it from the recording."""

import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

from traceml.cli.main import Parser, show
from traceml.errors import CommandError, say
from traceml.files import write_atomic
from traceml.monitor.result import build, encode, has_more, report, write
from traceml.present.columns import fitting
from traceml.present.text import render
from traceml.runs import summary_file
from traceml.runs.folder import RECORDING
from traceml.runs.liveness import monitor_lives, this_process
from traceml.runs.manifest import (
    SUMMARY_JSON,
    SUMMARY_PAGE,
    read_manifest,
    recovered_manifest,
    write_manifest,
)
from traceml.runs.summary_file import Reading
from traceml.schema.summary import Summary

DESCRIPTION: Final = """\
Print the summary of a run. If the run has none, for example because the machine went down,
the summary is rebuilt from what was recorded."""
EPILOG: Final = """\
examples:
  traceml view my_run                         the run in logs/my_run
  traceml view logs/my_run/final_summary.json
  traceml view my_run --json | jq .primary_diagnosis
  traceml view my_run --html                  one file for the browser"""


def main(words: list[str]) -> int:
    """Print the text, or with --json the summary itself, to standard output."""
    parser = Parser("traceml view", "traceml view RUN [options]", DESCRIPTION, EPILOG)
    parser.option("run", "RUN", "a run folder, a final_summary.json, or a name under logs/")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    html = "write a page for the browser instead (default: final_summary.html in the run folder)"
    parser.option("--html", "OUT", html, nargs="?", const="")
    parser.logs_dir()
    merged = "first add the steps in FOLDER, the folder <run>.node<k> of a node that lost its connection "
    parser.option("--merge", "FOLDER", f"{merged}to node 0; can be repeated", action="append", default=[])
    given = parser.parse_args(words)
    logs = Path(given.logs_dir)
    summary = merge(given.run, logs, given.merge) if given.merge else load(given.run, logs)
    if given.html is not None:
        path = summary_file.find(given.run, logs)
        beside = path / SUMMARY_PAGE if os.path.isdir(path) else path.with_suffix(".html")
        write_page(given.html or beside, report(summary))
        return 0
    with fitting(sys.stdout):
        show(encode(summary).decode() if given.json else render(summary), is_json=given.json)
    return 0


def write_page(path: str | Path, content: bytes) -> None:
    """Write it, and say where it is."""
    with summary_file.or_one_line(Path(path), "written"):
        write_atomic(Path(path), content)
    say(f"wrote {path}")


def load(name: str, logs: Path) -> Summary:
    """A summary from a file, a run folder or a run name."""
    path = summary_file.find(name, logs)
    if os.path.isdir(path):
        _fetch(path)
    if os.path.isdir(path) and not summary_file.exists(path / SUMMARY_JSON) and _has_recording(path):
        return rebuild(path)
    reading = current(summary_file.locate(name, logs))
    for note in reading.notes:
        say(note)
    return reading.summary


def current(path: Path) -> Reading:
    """The summary in this file, rebuilt if it was made too early: by a look at a run that went on, or by a
    monitor that ended first."""
    reading = summary_file.read(path)
    if path.name == SUMMARY_JSON and has_more(path.parent, reading.summary):
        return replace(reading, summary=rebuild(path.parent))
    return reading


def _has_recording(folder: Path) -> bool:
    """Whether there is one; one line if there is, and it cannot be read."""
    path = folder / RECORDING
    with summary_file.or_one_line(path):
        try:
            os.listdir(path)
        except FileNotFoundError:
            return False
    return True


def _fetch(folder: Path) -> None:
    """Rows that a killed monitor left on this machine's disk, because the run's folder is on a network."""
    manifest = read_manifest(folder)
    local, who = manifest.get("recorded_in"), manifest.get("monitor_process")
    is_here = isinstance(who, dict) and who.get("boot") == this_process()["boot"]
    if not (is_here and isinstance(local, str) and os.path.isdir(os.path.join(local, RECORDING))):
        return
    if not os.path.samefile(local, folder) and not monitor_lives(folder, manifest):
        from traceml.monitor.mirror import Mirror

        Mirror(Path(local), folder, start=False).copy_once()


def merge(name: str, logs: Path, sources: list[str]) -> Summary:
    """Add what other nodes kept on their own disks, then rebuild the summary."""
    from traceml.monitor.relay.outbox import merge_node_folder

    folder = summary_file.find(name, logs)
    if not _has_recording(folder):
        raise CommandError(f"{name}: not a TraceML run folder (no {RECORDING}/ in it)")
    for source in map(Path, sources):
        node = re.search(r"\.node([1-9][0-9]{0,6})$", source.name)
        if node is None or not _has_recording(source):
            raise CommandError(f"{source}: not the run folder of a node; its name must end in .node<k>")
        merged = merge_node_folder(source, folder, int(node.group(1)))
        for file, problem in merged.problems.items():
            say(f"{source / RECORDING / file} was left out: {problem}")
    manifest = read_manifest(folder)
    if manifest.pop("notes", None):  # they were about the steps that are here now
        write_manifest(folder, manifest)
    return rebuild(folder)


def rebuild(folder: Path) -> Summary:
    """Make the summary from the recording, and write it unless the run is still going."""
    manifest = recovered_manifest(folder)
    is_running = manifest.get("status") == "running"
    summary = build(folder, manifest, final=not is_running)
    if not is_running:
        try:
            write_manifest(folder, manifest)
            write(folder, summary)
        except OSError as problem:
            say(f"the rebuilt summary cannot be written to {folder} ({problem.strerror})")
    return summary
