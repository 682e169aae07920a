"""From what a user names (a file, a run folder, a run name) to a Summary, or one clear line."""

from __future__ import annotations

import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from traceml.collect import summary_ours, summary_released
from traceml.collect.fields import Fields, Trouble, clean
from traceml.collect.rundir import RECORDING, SUMMARY_JSON
from traceml.errors import CommandError
from traceml.schema.summary import Summary

MOST_BYTES: Final = 64 * 1024 * 1024
HEAD_BYTES: Final = 4096
GENERIC: Final = frozenset({"final_summary", "summary", "final", "traceml_summary", "result", "results"})
"""File names that say nothing about the run: its folder's name is used instead."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A summary and what is to be known about the file it comes from."""

    name: str
    path: str
    summary: Summary
    notes: list[str] = field(default_factory=list)


def locate(given: str, logs: Path) -> Path:
    """The summary file that is meant by a file, a run folder or the name of a run under `logs`."""
    path = Path(given)
    try:
        if not path.exists() and (logs / given).exists():
            path = logs / given
        if path.is_dir():
            folder, path = path, path / SUMMARY_JSON
            if not path.exists() and (folder / RECORDING).is_dir():
                where = shown(folder)
                raise CommandError(f"{where}: no {SUMMARY_JSON} yet; `traceml view {where}` makes it")
            if not path.exists():
                raise CommandError(f"{shown(folder)}: not a TraceML run folder (no {SUMMARY_JSON} in it)")
        if not path.exists():
            raise CommandError(f"{shown(path)}: no such file, run folder, or run under {shown(logs)}/")
    except (OSError, ValueError) as problem:
        raise CommandError(f"{clean(given)[:200]}: cannot be read ({_reason(problem)})") from None
    return path


def name_of(path: Path) -> str:
    """What a run is called in the names of files: the file's own name, or its folder's if that
    is generic.
    """
    named = path.stem
    if named.lower() in GENERIC:
        named = path.resolve().parent.name or named
    return named


def read(path: Path) -> Reading:
    """The summary in this file."""
    data = _content(path)
    if summary_ours.is_ours(data):
        number = summary_ours.version(data)
        trouble = Trouble(shown(path), lenient=number > summary_ours.VERSION)
        summary = summary_ours.convert(Fields(data, trouble))
        newer = trouble.lenient
    elif summary_released.is_released(data):
        released = summary_released.version(data)
        trouble = Trouble(shown(path), lenient=released > summary_released.NEWEST_KNOWN)
        summary = summary_released.convert(Fields(data, trouble), released)
        newer = trouble.lenient
    else:
        raise CommandError(f"{shown(path)}: {_other(data)}")
    notes = list(trouble.notes)
    if newer:
        notes.insert(0, f"{shown(path)} is of a newer version ({summary.schema}): read as far as it goes.")
    return Reading(name_of(path), str(path), summary, notes)


def shown(path: Path) -> str:
    """A path in a message."""
    return clean(str(path))


def _content(path: Path) -> dict[str, Any]:
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):
            raise CommandError(f"{shown(path)}: not a file")
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
            wrong = _not_json(head)
            if wrong:
                raise CommandError(f"{shown(path)}: {wrong}")
            if about.st_size > MOST_BYTES:
                raise CommandError(
                    f"{shown(path)}: too large to be a summary ({about.st_size / 1e6:,.0f} MB)"
                )
            data = head + file.read(MOST_BYTES)
    except OSError as problem:
        raise CommandError(f"{shown(path)}: cannot be read ({_reason(problem)})") from None
    try:
        found = msgspec.json.decode(data.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as problem:
        raise CommandError(f"{shown(path)}: {_bad_json(data, str(problem))}") from None
    if not isinstance(found, dict):
        raise CommandError(f"{shown(path)}: JSON, but not a TraceML summary ({SUMMARY_JSON})")
    return found


def _not_json(head: bytes) -> str | None:
    """What a file is that cannot be JSON, told from its beginning."""
    if not head.strip():
        return "the file is empty"
    if head.startswith(b"SQLite format 3\0"):
        return f"a database; give the {SUMMARY_JSON} of a finished run"
    text = head.lstrip(b"\xef\xbb\xbf").lstrip()
    if text[:1] in (b"{", b"["):
        return None
    if b"TraceML" in head and text[:1] in (b"-", b"+", b"T", b"="):
        return f"a rendered text; give the JSON file beside it ({SUMMARY_JSON})"
    if b"\0" in head:
        return f"a binary file; give the {SUMMARY_JSON} of a finished run"
    return f"not JSON; give the {SUMMARY_JSON} of a finished run"


def _bad_json(data: bytes, problem: str) -> str:
    if "truncated" in problem:
        return "the JSON ends in the middle: the file is truncated"
    if any(word in data for word in (b"NaN", b"Infinity")) or "out of range" in problem:
        return "holds NaN, an infinity or a number out of range: not valid JSON"
    return f"not valid JSON ({clean(problem)[:120]})"


def _other(data: dict[str, Any]) -> str:
    schema = data.get("schema")
    if isinstance(schema, str) and schema.startswith("traceml.compare/"):
        return "a comparison, not a summary; give the summaries of two runs"
    if "monitor_pid" in data:
        return f"the manifest of a run; give the {SUMMARY_JSON} beside it"
    return f"JSON, but not a TraceML summary ({SUMMARY_JSON})"


def _reason(problem: OSError | ValueError) -> str:
    return getattr(problem, "strerror", None) or clean(str(problem))
