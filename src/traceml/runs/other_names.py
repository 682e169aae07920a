"""Gives findings of other versions and of the released package the names that we use."""

from __future__ import annotations

from typing import Any, Final

OURS: Final = {
    **dict.fromkeys(("RESIDUAL-HEAVY", "RESIDUAL_HEAVY", "WAIT_HEAVY"), ("WAIT_HEAVY", "WAIT-HEAVY")),
    **dict.fromkeys(
        ("MEMORY CREEP (EARLY)", "MEMORY_CREEP_EARLY", "CREEP_EARLY"), ("CREEP_EARLY", "MEMORY RISING")
    ),
}
"""Our kind and label by a label or a kind of theirs."""
FINDINGS: Final = frozenset({"diagnosis", "primary_diagnosis", "issues"})


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
