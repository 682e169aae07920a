"""`traceml view`: print a summary again; for a run folder without one, rebuild it from the recording."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from traceml.cli.result import build, encode, write_json, write_text
from traceml.collect import summary_file
from traceml.collect.monitor import recovered_manifest
from traceml.collect.rundir import RECORDING, SUMMARY_JSON, read_manifest, write_manifest
from traceml.errors import CommandError, say
from traceml.present.text import render
from traceml.schema.summary import Summary


def main(words: list[str]) -> int:
    """Print the text, or with --json the summary itself, to standard output."""
    parser = argparse.ArgumentParser(prog="traceml view", description=__doc__)
    parser.add_argument("path", help="final_summary.json, a run folder, or a run name under logs/")
    parser.add_argument("--json", action="store_true", help="print the JSON instead of the text")
    parser.add_argument("--logs-dir", default="logs", help="where run names are looked up")
    parser.add_argument(
        "--merge",
        action="append",
        default=[],
        metavar="FOLDER",
        help="a folder <run>.node<k> whose rows did not all reach node 0; may be given several times",
    )
    given = parser.parse_args(words)
    if given.merge:
        summary = merge(_run_folder(Path(given.path), Path(given.logs_dir)), [Path(f) for f in given.merge])
    else:
        summary = load(Path(given.path), Path(given.logs_dir))
    sys.stdout.write(encode(summary).decode() if given.json else render(summary))
    return 0


def load(path: Path, logs: Path) -> Summary:
    """A summary from a file, a run folder or a run name."""
    if not path.exists() and (logs / path).exists():
        path = logs / path
    if path.is_dir():
        if (path / SUMMARY_JSON).exists():
            return read_summary(path / SUMMARY_JSON)
        return rebuild(path)
    if not path.exists():
        raise CommandError(f"{path}: no such file or run folder")
    return read_summary(path)


def _run_folder(path: Path, logs: Path) -> Path:
    found = path if path.is_dir() else logs / path
    if not (found / RECORDING).is_dir():
        raise CommandError(f"{path}: not a TraceML run folder (no {RECORDING}/ in it)")
    return found


def merge(folder: Path, sources: list[Path]) -> Summary:
    """Take over what other nodes kept on their own disks, then make the summary anew."""
    from traceml.collect.relay.merge import merge_node_folder

    for source in sources:
        node = re.search(r"\.node(\d+)$", source.name)
        if node is None or not (source / RECORDING).is_dir():
            raise CommandError(f"{source}: not a node's run folder; its name ends in .node<k>")
        merged = merge_node_folder(source, folder, int(node.group(1)))
        for name, problem in merged.problems.items():
            say(f"{source / RECORDING / name} was left out: {problem}")
    manifest = read_manifest(folder)
    if manifest.pop("notes", None):  # of what had not come
        write_manifest(folder, manifest)
    return rebuild(folder)


def read_summary(path: Path) -> Summary:
    """Read final_summary.json, ours or the released package's; anything else is one clear line."""
    reading = summary_file.read(path)
    for note in reading.notes:
        say(note)
    return reading.summary


def rebuild(folder: Path) -> Summary:
    """Make the summary of a run whose monitor did not get to it."""
    if not (folder / RECORDING).is_dir():
        raise CommandError(f"{folder}: not a TraceML run folder (no {RECORDING}/ in it)")
    manifest = recovered_manifest(folder)
    running = manifest.get("status") == "running"
    summary = build(folder, manifest, final=not running)
    if not running:
        try:
            write_manifest(folder, manifest)
            write_json(folder, summary)
            write_text(folder, render(summary))
        except OSError as problem:
            say(f"the rebuilt summary could not be written to {folder} ({problem.strerror})")
    return summary
