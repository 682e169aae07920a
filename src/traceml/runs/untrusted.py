"""Turns JSON that may be old, newer than us, damaged or hostile into typed objects, or one clear line.

A missing value, or a null where the type allows none, becomes the default of its type. A wrong value ends the
command with one line that names its place; in a file of a newer version it is left out, with a note. Findings
of other versions and of the released package get the names that we use.
"""

import re
from typing import Any, Final, TypeVar

import msgspec

from traceml.errors import CommandError
from traceml.files import sound

T = TypeVar("T")
MOST_FAULTS: Final = 20
OURS: Final = {
    **dict.fromkeys(("RESIDUAL-HEAVY", "RESIDUAL_HEAVY", "WAIT_HEAVY"), ("WAIT_HEAVY", "WAIT-HEAVY")),
    **dict.fromkeys(
        ("MEMORY CREEP (EARLY)", "MEMORY_CREEP_EARLY", "CREEP_EARLY"), ("CREEP_EARLY", "MEMORY RISING")
    ),
}
"""Our kind and label by a label or a kind of theirs."""
FINDINGS: Final = frozenset({"diagnosis", "primary_diagnosis", "issues"})


class Document:
    """One JSON document; `notes` says what was left out because the file is of a newer version."""

    def __init__(self, source: str, data: dict[str, Any], is_newer: bool) -> None:
        self.source = source
        self.notes: list[str] = []
        self._is_newer = is_newer
        self.data: dict[str, Any] = sound(data, self._fault)

    def convert(self, shape: type[T], data: Any = None) -> T:
        """The document, or a part of it, as this type."""
        given = self.data if data is None else data
        for _ in range(MOST_FAULTS):
            try:
                return msgspec.convert(given, shape)
            except msgspec.ValidationError as problem:
                what, _, place = str(problem).partition(" - at ")
                if what.endswith("got `null`"):
                    given = without_nulls(given)
                    continue
                self._fault(place.strip("`") or "$", what[:1].lower() + what[1:])
                given = _without(given, place.strip("`"))
        raise CommandError(f"{self.source}: too many values of unexpected types")

    def _fault(self, place: str, what: str) -> None:
        if not self._is_newer:
            raise CommandError(f"{self.source}: {what} at {place}; the file is damaged")
        if len(self.notes) < 5:
            self.notes.append(f"{self.source}: {place} was ignored ({what})")


def without_nulls(value: Any) -> Any:
    """The value without the nulls in its objects: a field that is missing has its default."""
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


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


def our_names(data: Any) -> Any:
    """The same document with our kinds and labels in all of its findings."""
    if isinstance(data, list):
        return [our_names(inner) for inner in data]
    if not isinstance(data, dict):
        return data
    named = {key: our_names(inner) for key, inner in data.items()}
    for key in FINDINGS & named.keys():
        found = named[key]
        named[key] = [_our_finding(f) for f in found] if isinstance(found, list) else _our_finding(found)
    return named


def _our_finding(given: Any) -> Any:
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
        named["evidence"] = {key: value for key, value in evidence.items() if _is_flat(value)}
    return named


def _is_flat(value: Any) -> bool:
    texts = isinstance(value, list) and all(isinstance(inner, str) for inner in value)
    return texts or value is None or isinstance(value, (str, int, float))
