"""Lists the runs of a folder: what the summary, or else the manifest, of each one says."""

from __future__ import annotations

from pathlib import Path

from traceml.errors import CommandError
from traceml.runs import summary_file
from traceml.runs.liveness import is_going_on
from traceml.runs.manifest import MANIFEST, SUMMARY_JSON, read_manifest
from traceml.runs.untrusted import clean
from traceml.schema.summary import ListedRun


def list_runs(logs: Path) -> list[ListedRun]:
    """Every run folder in `logs`. One that cannot be read is listed with its problem."""
    try:
        folders = sorted(path for path in logs.iterdir() if path.is_dir())
    except OSError as problem:
        reason = problem.strerror or "unreadable"
        raise CommandError(f"{clean(str(logs))}: cannot be read ({reason})") from None
    return [_listed(folder) for folder in folders if _is_run(folder)]


def _is_run(folder: Path) -> bool:
    return any((folder / name).exists() for name in (MANIFEST, SUMMARY_JSON))


def _listed(folder: Path) -> ListedRun:
    name, path = clean(folder.name), clean(str(folder))
    if not (folder / SUMMARY_JSON).exists():
        return _from_manifest(folder, name, path)
    try:
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
        started_at=clean(started) if isinstance(started, str) else None,
        status="running" if running else "unfinished",
        problem=None if running else f"no summary; `traceml view {path}` makes it",
    )
