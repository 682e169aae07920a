"""`traceml run`: start the command with capture injected, watch it, end with the verdict."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from traceml.cli.arguments import Parsed, parse
from traceml.cli.config import read_file_settings
from traceml.collect import launch, monitor, rundir
from traceml.collect.child import Child, end_like
from traceml.collect.nodes import Place, Relay, find_place
from traceml.collect.surroundings import Surroundings
from traceml.errors import CommandError, failsafe
from traceml.settings import SETTINGS, Settings, is_disabled, resolve


def main(words: list[str]) -> int:
    """Run the command; the exit code is the command's own."""
    parsed = parse(words)
    if parsed.help:
        sys.stdout.write(usage())
        return 0
    if parsed.target is None:
        raise CommandError("give a script, `-m module` or a command: traceml run train.py")
    file_values, file_name = read_file_settings(Path.cwd())
    settings = resolve(parsed.flags, file_values, file_name)
    named = [(parsed.target or "").rpartition(".")[2] if parsed.is_module else parsed.target or ""]
    place = find_place(settings, os.environ, Path(named[0]).stem)
    command = _command(parsed, settings, place)
    if parsed.disabled or is_disabled(os.environ):
        native = {**launch.native_environment(os.environ), "TRACEML_DISABLED": "1"}
        os.execvpe(command[0], command, native)
    folder = rundir.create(settings.logs_dir, place.folder_name, named, settings.overwrite)
    environment = launch.injected_environment(os.environ, folder)
    try:
        child = Child(command, environment)
    except OSError as problem:
        shutil.rmtree(folder, ignore_errors=True)
        raise CommandError(f"{command[0]}: cannot be started ({problem.strerror})") from None
    surroundings = Surroundings(Path.cwd())
    manifest = monitor.begin_manifest(folder, command, settings.mode, surroundings.facts)
    relay = Relay(place, folder, os.environ)
    safe_rows = None if place.is_first else relay.safe_rows
    watcher = monitor.Monitor(folder, settings.interval, settings.stall_after, answer, environment, safe_rows)
    code = watcher.watch(child.wait)
    manifest["environment"] = surroundings.facts
    manifest = monitor.end_manifest(folder, manifest, code, child.signals)
    failsafe("writing the manifest", None)(rundir.write_manifest)(folder, manifest)
    if missing := relay.close():
        manifest["notes"] = missing
        failsafe("writing the manifest", None)(rundir.write_manifest)(folder, manifest)
    finish(folder, manifest, settings.quiet or not place.is_first)
    return end_like(code)


def _command(parsed: Parsed, settings: Settings, place: Place) -> list[str]:
    """What to start: the target itself, or torchrun around it."""
    target, is_script = parsed.target or "", parsed.is_module or (parsed.target or "").endswith(".py")
    ranks = settings.nproc_per_node or ("1" if settings.nnodes > 1 and is_script else None)
    if ranks is None:
        return launch.python_command(target, parsed.arguments, parsed.is_module)
    if not is_script:
        raise CommandError("--nproc-per-node starts a script or `-m module`; a command starts its own ranks")
    plain = launch.python_command(target, parsed.arguments, parsed.is_module)
    return launch.torchrun_command(plain, ranks, place)


def answer(folder: Path, path: Path) -> None:
    """Give a waiting `traceml.final_summary()` the summary of everything so far."""
    from traceml.cli.result import build, encode_answer

    rundir.write_atomic(path, encode_answer(build(folder, rundir.read_manifest(folder), final=False)))


@failsafe("making the summary", None)
def finish(folder: Path, manifest: dict[str, Any], quiet: bool) -> None:
    """Make the summary of an ended run, write it, print it to standard error.

    Each part is guarded by itself: a file that cannot be written does not cost the verdict on the screen.
    """
    from traceml.cli import result
    from traceml.present.text import render

    summary = result.build(folder, manifest, final=True)
    written = failsafe("writing final_summary.json", False)(result.write_json)(folder, summary)
    text = failsafe("rendering the summary", "")(render)(summary)
    failsafe("writing final_summary.txt", None)(result.write_text)(folder, text)
    if not quiet:
        sys.stderr.write(f"\n{text}")
        if written:
            sys.stderr.write(f"Summary: {_short(folder / rundir.SUMMARY_JSON)} and .txt\n")
        sys.stderr.flush()


def _short(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def usage() -> str:
    """`traceml run --help`."""
    rows = "\n".join(f"  {s.flag + ('' if s.is_switch else ' VALUE'):<26}{s.help}" for s in SETTINGS)
    return (
        "usage: traceml run [flags] train.py [flags] [--args|--] [the script's arguments]\n"
        "       traceml run [flags] -m package.module [flags] [--args|--] [arguments]\n"
        "       traceml run [flags] command [its arguments]\n\n"
        "Runs the command untouched and ends with a diagnosis in <logs-dir>/<run-name>/.\n\n"
        f"flags:\n{rows}\n"
        "  --disable-traceml         start the command natively: nothing imported, nothing wrapped\n\n"
        "Each flag is also a TRACEML_* variable and a key of traceml.yaml or [tool.traceml].\n"
    )
