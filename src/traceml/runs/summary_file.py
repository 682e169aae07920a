"""Finds, reads and lists summaries: of a file, a run folder, a run's name, or a run of MLflow.

A file may be old, newer than us, damaged or hostile. A missing value, or a null where the type allows none,
is the default of its type. A wrong value ends the command with one line that names its place; in a file of a
newer version it is left out, with a note. Findings of others (also of the released package) get our names.
"""

import logging
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from traceml.errors import CommandError, printable
from traceml.files import open_regular, sound
from traceml.recording import layout
from traceml.runs import released
from traceml.runs.liveness import sign_of_life
from traceml.runs.manifest import MANIFEST, SUMMARY_JSON, read_manifest
from traceml.schema import fmt
from traceml.schema.catalog import METRICS
from traceml.schema.summary import SCHEMA, Finding, ListedRun, MetricStat, Primary, Section, Summary

MOST_BYTES: Final = 64 * 1024 * 1024
MOST_VALUES: Final = 2_000_000
"""Numbers, texts, lists and objects; the summary of 10,000 ranks has half as many."""
HEAD_BYTES: Final = 4096
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
NOT_ONE: Final = f"JSON, but not the summary of a run; give its {SUMMARY_JSON}"
LONGEST_SHOWN: Final = 300
VERSION: Final = int(SCHEMA.rpartition("/")[2])
NO_SECTION: Final = Finding(summary="The summary has no such section.")
NO_DIAGNOSIS: Final = Primary(summary="The summary names no diagnosis.")
GENERIC: Final = frozenset({"final_summary", "summary", "final", "traceml_summary", "result", "results"})
"""File names that say nothing about the run: its folder's name is used instead."""
MOST_FAULTS: Final = 20
MOST_NOTES: Final = 5
OURS: Final = {
    **dict.fromkeys(("RESIDUAL-HEAVY", "RESIDUAL_HEAVY", "WAIT_HEAVY"), ("WAIT_HEAVY", "WAIT-HEAVY")),
    **dict.fromkeys(
        ("MEMORY CREEP (EARLY)", "MEMORY_CREEP_EARLY", "CREEP_EARLY"), ("CREEP_EARLY", "MEMORY RISING")
    ),
}
"""Our kind and label by a label or a kind of theirs."""
MLFLOW: Final = "mlflow:"
IN_MLFLOW: Final = (f"traceml/{SUMMARY_JSON}", SUMMARY_JSON)
"""Where in the artifacts of a run of MLflow it may be."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reading:
    """A summary, and notes about the file it comes from."""

    name: str
    path: str
    summary: Summary
    notes: list[str] = field(default_factory=list)


def locate(given: str, logs: Path) -> Path:
    """The summary file that is meant by a file, a run folder or the name of a run under `logs`."""
    path = find(given, logs)
    if not os.path.isdir(path):
        return path
    if exists(path / SUMMARY_JSON):
        return path / SUMMARY_JSON
    where = shown(path)
    if exists(path / layout.FOLDER):
        raise CommandError(f"{where}: no {SUMMARY_JSON} yet; `traceml view {where}` makes it")
    raise CommandError(f"{where}: not a TraceML run folder (no {SUMMARY_JSON} in it)")


def find(given: str, logs: Path) -> Path:
    """The file or folder that is meant by a path or the name of a run under `logs`."""
    for path in (Path(given), logs / given):
        if given and exists(path):
            return path
    raise CommandError(f"{shown(Path(given))}: no such file, run folder, or run under {shown(logs)}/")


def exists(path: Path) -> bool:
    """Whether it exists; one line if we are not allowed to know."""
    with or_one_line(path):
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
    return True


@contextmanager
def or_one_line(path: Path, what: str = "read") -> Iterator[None]:
    """If the file cannot be read or written, the command ends with one line that says why."""
    try:
        yield
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or printable(str(problem))
        raise CommandError(f"{shown(path)}: cannot be {what} ({reason})") from None


def read(path: Path) -> Reading:
    """The summary in this file."""
    data = _content(path)
    schema = data.get("schema")
    if isinstance(schema, str) and schema.startswith("traceml.summary/"):
        number = re.fullmatch(r"traceml\.summary/(\d{1,6})(\..*)?", schema)
        is_newer = number is None or int(number[1]) > VERSION
        summary, notes = _typed(shown(path), data, Summary, is_newer)
    elif released.is_released(data):
        version = released.version(data)
        is_newer = version > released.NEWEST_KNOWN
        file, notes = _typed(shown(path), data, released.File, is_newer, nulls=False)
        summary = released.convert(file, version)
    else:
        raise CommandError(f"{shown(path)}: {NOT_ONE}")
    if is_newer:
        newer = f"was written by a newer version ({summary.schema}); what is unknown was ignored."
        notes = [f"{shown(path)} {newer}", *notes]
    # The file's own name, or its folder's if that says nothing about the run.
    name = (path.resolve().parent.name if path.stem.lower() in GENERIC else "") or path.stem
    return Reading(name, str(path), _completed(summary), notes)


def _completed(summary: Summary) -> Summary:
    """Add a diagnosis to every section, and a catalogue row for every metric that can be shown."""
    more = [row for row in summary.catalog if row.unit in fmt.BY_UNIT]
    rows = {(row.section, row.key): row for row in (*more, *METRICS)}
    parts: dict[str, Any] = {"catalog": list(rows.values())}
    if summary.primary_diagnosis == Primary():
        parts["primary_diagnosis"] = NO_DIAGNOSIS
    for name in released.SECTIONS:
        section: Section = getattr(summary, name)
        found = section.diagnosis
        if found == Finding():
            found = section.issues[0] if section.issues else NO_SECTION
        parts[name] = replace(section, diagnosis=found, issues=section.issues or [found])
    return replace(summary, **parts)


def shown(path: Path) -> str:
    """A path in a message."""
    text = printable(str(path))
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def _content(path: Path) -> dict[str, Any]:
    with or_one_line(path), os.fdopen(open_regular(path), "rb") as file:
        head, size = file.read(HEAD_BYTES), os.fstat(file.fileno()).st_size
        if not head.strip():
            raise CommandError(f"{shown(path)}: the file is empty")
        if not head.removeprefix(BYTE_ORDER_MARK).lstrip().startswith((b"{", b"[")):
            raise CommandError(f"{shown(path)}: not JSON; give the {SUMMARY_JSON} of a finished run")
        if size > MOST_BYTES:
            raise CommandError(f"{shown(path)}: too large for a summary ({size / 1e6:,.0f} MB)")
        data = head + file.read(MOST_BYTES)
    if sum(data.count(mark) for mark in (b",", b"[", b"{")) > MOST_VALUES:
        raise CommandError(f"{shown(path)}: too many values for a summary")
    try:
        found = msgspec.json.decode(data.removeprefix(BYTE_ORDER_MARK))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as problem:
        raise CommandError(f"{shown(path)}: not valid JSON ({printable(str(problem))[:120]})") from None
    if not isinstance(found, dict):
        raise CommandError(f"{shown(path)}: {NOT_ONE}")
    return found


def _typed(
    source: str, data: dict[str, Any], shape: type[T], is_newer: bool, nulls: bool = True
) -> tuple[T, list[str]]:
    """The document as this type, and notes about what was left out because it is of a newer version.

    Without `nulls`, a null stands for a value that is missing.
    """
    notes: list[str] = []

    def fault(place: str, what: str) -> None:
        if not is_newer:
            raise CommandError(f"{source}: {what} at {place}; the file is damaged")
        if len(notes) < MOST_NOTES:
            notes.append(f"{source}: {place} was ignored ({what})")

    given = sound(data, fault)
    given = given if nulls else _without_nulls(given)
    sections = (given.get(name) for name in released.SECTIONS)
    for part in (given, *(section for section in sections if isinstance(section, dict))):
        for key in ("primary_diagnosis", "diagnosis"):
            if key in part:
                part[key] = _our_finding(part[key])
        if isinstance(part.get("issues"), list):
            part["issues"] = [_our_finding(found) for found in part["issues"]]
    for _ in range(MOST_FAULTS):
        try:
            return msgspec.convert(given, shape), notes
        except msgspec.ValidationError as problem:
            what, _, place = str(problem).partition(" - at ")
            if what.endswith("got `null`"):
                given = _without_nulls(given)
                continue
            fault(place.strip("`") or "$", what[:1].lower() + what[1:])
            given = _without(given, place.strip("`"))
    raise CommandError(f"{source}: too many values of unexpected types")


def _without_nulls(value: Any) -> Any:
    """The value without the nulls in its objects: a field that is missing has its default."""
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def _without(data: Any, place: str) -> Any:
    """The same data without the value at this place, as precisely as msgspec names it."""
    steps = re.findall(r"\.([^.\[]+)|\[(\d+)\]|(\[\.\.\.\])", place)
    if not steps or steps[0][2]:
        return {}
    key = steps[0][0] or int(steps[0][1])
    rest = "$" + place[1:].removeprefix(f".{key}" if steps[0][0] else f"[{key}]")
    copied = dict(data) if isinstance(data, dict) else list(data)
    if rest == "$":
        del copied[key]
    else:
        copied[key] = _without(copied[key], rest)
    return copied


def _our_finding(given: Any) -> Any:
    """With our kind and label."""
    if not isinstance(given, dict):
        return given
    kind, status = given.get("kind") or "", given.get("status") or ""
    if not isinstance(kind, str) or not isinstance(status, str) or not (kind or status):
        return given
    kind, status = OURS.get(status) or OURS.get(kind) or (kind, status)
    kind = kind or status.replace(" ", "_").replace("-", "_")
    named = {**given, "kind": kind, "status": status or kind.replace("_", " ")}
    named.setdefault("summary", given.get("reason", ""))
    evidence = given.get("evidence")
    if isinstance(evidence, dict):  # other versions nest it, and nothing reads the nested values
        named["evidence"] = {
            key: value
            for key, value in evidence.items()
            if not isinstance(value, dict)
            and not (isinstance(value, list) and any(not isinstance(inner, str) for inner in value))
        }
    return named


def read_mlflow(given: str) -> Reading:
    """The summary of `mlflow:<run id>`, from the server of MLFLOW_TRACKING_URI."""
    run_id = given.removeprefix(MLFLOW)
    # A server that cannot be reached is an error at once, not after minutes of new attempts.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    try:
        from mlflow import MlflowClient
        from mlflow.artifacts import download_artifacts
        from mlflow.exceptions import MlflowException
    except ImportError:
        raise CommandError(f"{printable(given)} needs mlflow: pip install mlflow") from None
    logging.getLogger("mlflow").setLevel(logging.ERROR)
    try:
        client = MlflowClient()
        name = client.get_run(run_id).info.run_name or run_id
        folders = ("traceml", None)
        there = {artifact.path for folder in folders for artifact in client.list_artifacts(run_id, folder)}
        place = next((place for place in IN_MLFLOW if place in there), None)
        if place is None:
            raise CommandError(
                f"{printable(given)}: this run has no artifact {IN_MLFLOW[0]}; see --report-to mlflow"
            )
        with tempfile.TemporaryDirectory(prefix="traceml-mlflow-") as folder:
            path = download_artifacts(run_id=run_id, artifact_path=place, dst_path=folder)
            found = read(Path(path))
    except (MlflowException, OSError) as problem:
        reason = printable(str(problem).splitlines()[0])[:200]
        raise CommandError(
            f"{printable(given)}: not found ({reason}); is MLFLOW_TRACKING_URI right?"
        ) from None
    return replace(found, name=printable(name), path=given)


def list_runs(logs: Path) -> list[ListedRun]:
    """Every run folder in `logs`. One that cannot be read is listed with its problem."""
    return [run for name in names_of_folders(logs) if (run := listed(logs / name)) is not None]


def names_of_folders(logs: Path, links: bool = True) -> list[str]:
    """All of them, sorted; with or without links to folders."""
    with or_one_line(logs), os.scandir(logs) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=links))


def listed(folder: Path) -> ListedRun | None:
    """The run in this folder, None if there is none."""
    name, path = printable(folder.name), printable(str(folder))
    try:
        if not exists(folder / SUMMARY_JSON):
            is_run = exists(folder / MANIFEST)
            return _from_manifest(folder, name, path) if is_run else None
        summary = read(folder / SUMMARY_JSON).summary
    except CommandError as problem:
        return ListedRun(name, path, problem=str(problem).partition(": ")[2] or str(problem))
    run, verdict = summary.run, summary.primary_diagnosis
    return ListedRun(
        name=name,
        path=path,
        started_at=run.started_at or run.ended_at,
        status=run.status,
        exit_code=run.exit_code,
        verdict=verdict.status,
        severity=verdict.severity,
        step_ms=summary.step_time.metrics.get("step_ms", MetricStat()).average,
        steps=run.steps.total,
        world_size=run.world_size,
        duration_s=run.duration_s,
    )


def _from_manifest(folder: Path, name: str, path: str) -> ListedRun:
    """A run that is still running, or whose monitor was killed before it wrote the summary."""
    manifest = read_manifest(folder)
    started, status = manifest.get("started_at"), manifest.get("status")
    running = status == "running" and sign_of_life(folder, manifest) is not None
    return ListedRun(
        name=name,
        path=path,
        started_at=started if isinstance(started, str) else None,
        status="running" if running else "unfinished",
        problem=None if running else f"no summary; `traceml view {path}` makes it",
    )
