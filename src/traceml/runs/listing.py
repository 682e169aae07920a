"""Lists the runs of a folder: what the summary, or else the manifest, of each one says."""

import os
from pathlib import Path

from traceml.errors import CommandError, printable
from traceml.runs import summary_file
from traceml.runs.liveness import is_going_on
from traceml.runs.manifest import MANIFEST, SUMMARY_JSON, read_manifest
from traceml.schema.summary import ListedRun


def list_runs(logs: Path) -> list[ListedRun]:
    """Every run folder in `logs`. One that cannot be read is listed with its problem."""
    runs = (listed(logs / name) for name in names_of_folders(logs))
    return [run for run in runs if run is not None]


def names_of_folders(logs: Path, links: bool = True) -> list[str]:
    """All of them, sorted; with or without links to folders."""
    with summary_file.or_one_line(logs), os.scandir(logs) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=links))


def listed(folder: Path) -> ListedRun | None:
    """The run in this folder, None if there is none."""
    name, path = printable(folder.name), printable(str(folder))
    try:
        if not summary_file.exists(folder / SUMMARY_JSON):
            is_run = summary_file.exists(folder / MANIFEST)
            return _from_manifest(folder, name, path) if is_run else None
        summary = summary_file.read(folder / SUMMARY_JSON).summary
    except CommandError as problem:
        return ListedRun(name, path, problem=str(problem).partition(": ")[2] or str(problem))
    step = summary.step_time.metrics.get("step_ms")
    return ListedRun(
        name=name,
        path=path,
        started_at=summary.run.started_at or summary.run.ended_at,
        status=summary.run.status,
        exit_code=summary.run.exit_code,
        verdict=summary.primary_diagnosis.status,
        severity=summary.primary_diagnosis.severity,
        step_ms=step.average if step is not None else None,
        steps=summary.run.steps.total,
        world_size=summary.run.world_size,
        duration_s=summary.run.duration_s,
    )


def _from_manifest(folder: Path, name: str, path: str) -> ListedRun:
    """A run that is still running, or whose monitor was killed before it wrote the summary."""
    manifest = read_manifest(folder)
    started, status = manifest.get("started_at"), manifest.get("status")
    running = status == "running" and is_going_on(folder, manifest)
    return ListedRun(
        name=name,
        path=path,
        started_at=started if isinstance(started, str) else None,
        status="running" if running else "unfinished",
        problem=None if running else f"no summary; `traceml view {path}` makes it",
    )
