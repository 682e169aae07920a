"""Makes the Summary of a run folder, and from it the result files and the text on the screen."""

import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from traceml.analyze.recordings import steps_of
from traceml.analyze.summarize import summarize
from traceml.analyze.window_arrays import Before
from traceml.errors import failsafe, printable
from traceml.files import sound, write_atomic
from traceml.present import page
from traceml.present.columns import fitting
from traceml.present.text import render
from traceml.recording.tail import Tail, live_tail
from traceml.runs.manifest import SUMMARY_JSON, SUMMARY_PAGE, SUMMARY_TEXT, Manifest
from traceml.schema.recorded import RunFacts
from traceml.schema.summary import Summary


def build(
    folder: Path, manifest: Manifest, final: bool, tail: Tail | None = None, before: Before | None = None
) -> Summary:
    """The summary of everything recorded so far; with a `tail` and a `before` that are kept between calls, of
    which only what is new is read and aligned."""
    recording = (tail or Tail(folder)).read()
    facts = facts_of(manifest)
    if facts.end_ns is None:
        ends = [int(r.rows["end_ns"][-1]) for r in recording.ranks if len(r.rows)]
        end = max(ends, default=None) if final else time.perf_counter_ns()
        facts = replace(facts, end_ns=end)
    return summarize(recording, facts, final, before)


def has_more(folder: Path, summary: Summary) -> bool:
    """Whether the recording has steps that this summary was made without."""
    if summary.run.recorded_steps is None:
        return False
    try:
        recorded = live_tail(folder).read()
    except OSError:
        return False  # there is none, or it cannot be read
    return sum(steps_of(rank) for rank in recorded.ranks) > summary.run.recorded_steps


def facts_of(manifest: Manifest) -> RunFacts:
    """The manifest's fields that are there, without those of a wrong type."""
    facts = RunFacts(name="?")
    for name in RunFacts.__dataclass_fields__:
        if (value := manifest.get(name)) is not None:
            with contextlib.suppress(msgspec.ValidationError):
                one = msgspec.convert({"name": "?", name: sound(value)}, RunFacts)
                facts = replace(facts, **{name: getattr(one, name)})
    return facts


def encode(found: object) -> bytes:
    """final_summary.json, or the JSON file of a comparison."""
    return msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n"


def encode_answer(summary: Summary) -> bytes:
    """The answer to a waiting `traceml.final_summary()`."""
    return msgspec.json.encode({"summary": summary, "text": render(summary)})


def report(summary: Summary) -> bytes:
    """final_summary.html."""
    return page.of_summary(encode(summary))


FILES: Final[dict[str, Callable[[Summary], bytes]]] = {
    SUMMARY_JSON: encode,
    SUMMARY_TEXT: lambda summary: render(summary).encode(),
}
"""Each file of a result, and the function that makes its content."""


def write(folder: Path, summary: Summary) -> None:
    """All files of a result; the first that cannot be written raises OSError."""
    for name, view in FILES.items():
        write_atomic(folder / name, view(summary))


@failsafe("making the summary", None)
def finish(
    folder: Path, manifest: dict[str, Any], settle: Callable[[], Path], quiet: bool, html: bool = False
) -> None:
    """Make the summary of an ended run, write it, print it to standard error. `settle` reports where it was
    written.

    Each part is guarded separately: the verdict appears on the screen even if a file cannot be written.
    """
    summary = build(folder, manifest, final=True)
    # The page is large, and `traceml view --html` makes it later.
    views = {**FILES, SUMMARY_PAGE: report} if html else FILES
    written = []

    def write_view(name: str) -> None:
        write_atomic(folder / name, views[name](summary))
        written.append(name)

    for name in views:
        failsafe(f"writing {name}", None)(write_view)(name)
    if not quiet:
        with fitting(sys.stderr):
            sys.stderr.write("\n" + failsafe("rendering the summary", "")(render)(summary))
        sys.stderr.flush()
    home = settle()
    if not quiet:
        if written:
            text = " and .txt" if SUMMARY_TEXT in written[1:] else ""
            sys.stderr.write(f"Summary: {short(home / written[0])}{text}\n")
        if SUMMARY_PAGE in written[1:]:
            sys.stderr.write(f"Report: {short(home / SUMMARY_PAGE)}\n")
        sys.stderr.flush()


def short(path: Path) -> str:
    """A path as we print it: from the current folder, if it is in there."""
    try:
        return printable(str(path.relative_to(Path.cwd())))
    except (OSError, ValueError):
        return printable(str(path))
