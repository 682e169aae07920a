"""Reads what wandb recorded offline: a log of records, as in LevelDB."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

BLOCK = 32 * 1024
HEAD = struct.Struct("<IHB")  # checksum, length, kind
WHOLE, LAST = 1, 4


def records(folder: Path) -> Iterator[Any]:
    """The records of the only offline run in this folder."""
    proto: Any = import_module("wandb.proto.wandb_internal_pb2")
    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    data, at, parts = path.read_bytes(), 7, b""
    while at + HEAD.size <= len(data):
        left = BLOCK - at % BLOCK
        if left < HEAD.size:
            at += left
            continue
        _, length, kind = HEAD.unpack_from(data, at)
        at += HEAD.size
        parts += data[at : at + length]
        at += length
        if kind in (WHOLE, LAST):
            yield proto.Record.FromString(parts)
            parts = b""


def summary_of(folder: Path) -> dict[str, Any]:
    """The run's summary at the end."""
    found: dict[str, Any] = {}
    for record in records(folder):
        if record.WhichOneof("record_type") == "summary":
            found |= {
                u.key or "/".join(u.nested_key): json.loads(u.value_json) for u in record.summary.update
            }
    return found


def artifacts_of(folder: Path) -> dict[str, list[str]]:
    """Each artifact's type, and the files in it."""
    kept = [r.artifact for r in records(folder) if r.WhichOneof("record_type") == "artifact"]
    return {artifact.type: sorted(entry.path for entry in artifact.manifest.contents) for artifact in kept}


def history_of(folder: Path) -> list[dict[str, Any]]:
    """The rows of the run's history."""
    kept = [r.history for r in records(folder) if r.WhichOneof("record_type") == "history"]
    return [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in row.item}
        for row in kept
    ]
