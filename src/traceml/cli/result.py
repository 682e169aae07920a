"""From a run folder to its Summary, and from the Summary to the files. Shared by the commands."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from traceml.analyze.summarize import summarize
from traceml.collect.rundir import SUMMARY_JSON, SUMMARY_TEXT, write_atomic
from traceml.collect.tail import Tail
from traceml.present.text import render
from traceml.schema.facts import RunFacts
from traceml.schema.summary import Summary


def build(folder: Path, manifest: dict[str, Any], final: bool) -> Summary:
    """The summary of everything recorded in this folder so far."""
    recording = Tail(folder).read()
    facts = facts_of(manifest)
    if facts.end_ns is None:
        ends = [int(r.rows["end_ns"][-1]) for r in recording.ranks if len(r.rows)]
        end = max(ends, default=None) if final else time.perf_counter_ns()
        facts = replace(facts, end_ns=end)
    return summarize(recording, facts, final)


def facts_of(manifest: dict[str, Any]) -> RunFacts:
    """The manifest's fields, as far as they are there and of the right type."""
    known = {f: manifest[f] for f in RunFacts.__dataclass_fields__ if manifest.get(f) is not None}
    try:
        return msgspec.convert({"name": "?", **known}, RunFacts)
    except msgspec.ValidationError:
        return RunFacts(name=str(manifest.get("name", "?")))


def encode(summary: Summary) -> bytes:
    """final_summary.json."""
    return msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n"


def encode_answer(summary: Summary) -> bytes:
    """What a waiting `traceml.final_summary()` gets."""
    return msgspec.json.encode({"summary": summary, "text": render(summary)})


def write_json(folder: Path, summary: Summary) -> bool:
    """final_summary.json; True when it is there."""
    write_atomic(folder / SUMMARY_JSON, encode(summary))
    return True


def write_text(folder: Path, text: str) -> None:
    """final_summary.txt."""
    write_atomic(folder / SUMMARY_TEXT, text.encode())
