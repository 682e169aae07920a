"""Finds and reads the summary that a user means: a file, a run folder or a run name. Errors are one line."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from traceml.errors import CommandError, printable
from traceml.files import open_regular
from traceml.recording import layout
from traceml.runs import released
from traceml.runs.manifest import SUMMARY_JSON
from traceml.runs.untrusted import Document, our_names
from traceml.schema import fmt
from traceml.schema.catalog import METRICS, Metric
from traceml.schema.summary import SCHEMA, Finding, Primary, Section, Summary

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


def name_of(path: Path) -> str:
    """What to call the run of this file: the file's own name, or its folder's if that is generic."""
    is_generic = path.stem.lower() in GENERIC
    return (path.resolve().parent.name if is_generic else "") or path.stem


def read(path: Path) -> Reading:
    """The summary in this file."""
    data = _content(path)
    schema = data.get("schema")
    if isinstance(schema, str) and schema.startswith("traceml.summary/"):
        number = re.fullmatch(r"traceml\.summary/(\d{1,6})(\..*)?", schema)
        is_newer = number is None or int(number[1]) > VERSION
        document = Document(shown(path), data, is_newer)
        summary = document.convert(Summary, our_names(document.data))
    elif released.is_released(data):
        version = released.version(data)
        is_newer = version > released.NEWEST_KNOWN
        document = Document(shown(path), data, is_newer)
        summary = released.convert(document, version)
    else:
        raise CommandError(f"{shown(path)}: {NOT_ONE}")
    newer = f"{shown(path)} was written by a newer version ({summary.schema}); what is unknown was ignored."
    notes = [newer, *document.notes] if is_newer else document.notes
    return Reading(name_of(path), str(path), _completed(summary), notes)


def _completed(summary: Summary) -> Summary:
    """Add a diagnosis to every section, and a catalogue row for every metric that can be shown."""
    primary = summary.primary_diagnosis
    more = [row for row in summary.catalog if row.unit in fmt.BY_UNIT]
    rows: dict[tuple[str, str], Metric] = {(row.section, row.key): row for row in (*more, *METRICS)}
    return replace(
        summary,
        primary_diagnosis=NO_DIAGNOSIS if primary == Primary() else primary,
        step_time=_with_diagnosis(summary.step_time),
        step_memory=_with_diagnosis(summary.step_memory),
        system=_with_diagnosis(summary.system),
        process=_with_diagnosis(summary.process),
        catalog=list(rows.values()),
    )


def _with_diagnosis(section: Section) -> Section:
    found = section.diagnosis
    if found == Finding():
        found = section.issues[0] if section.issues else NO_SECTION
    return replace(section, diagnosis=found, issues=section.issues or [found])


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
