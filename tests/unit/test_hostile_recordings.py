"""Recordings with sound checksums and senseless contents: there is always a summary, and it is printable."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench.synthetic import SyntheticRun

from traceml.monitor.result import build, encode
from traceml.present.text import render
from traceml.recording import layout

VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 2**31, 2**62, 2**63 - 1, -(2**63), 10**30, 1.5, 1e308),
    *("", "x", "\x1b[31m", "\udcff", "²", [], [1], {}, {"a": 1}),
)
WORDS = (
    *(b"\xff" * 8, bytes(8), b"\x7f" * 8, bytes(7) + b"\x80", (1 << 62).to_bytes(8, "little")),
    *(np.array([value]).tobytes() for value in (float("nan"), 1e300)),
)
FACTS = {
    "process": {
        "clock_ns": 5,
        "wall_ns": 7,
        "python": "3",
        "torch": "2",
        "threads": 2,
        "packages": {"a": "1"},
    },
    "device": {"type": "cpu", "name": "n", "capacity_bytes": 5},
    "overhead": {"switch_ns": 1, "row_ns": 2, "in_c": True},
    "missing": ["a"],
}
MANIFEST = {
    "status": "failed",
    "name": "x",
    "begin_ns": 0,
    "end_ns": 10**12,
    "started_at": "2026",
    "exit_code": 1,
    "command": ["a"],
    "environment": {"host": "h", "cpu_count": 2},
    "cores": 2,
    "notes": ["x"],
}


def mutated(value: Any, chance: random.Random) -> Any:
    """The same value with something else in one place."""
    if isinstance(value, dict) and value and chance.random() < 0.8:
        key = chance.choice(sorted(value))
        return {**value, key: mutated(value[key], chance)}
    return chance.choice(VALUES)


def spoiled(data: bytearray, chance: random.Random) -> bytes:
    """A recording with another header, other numbers in its rows, or other live bytes."""
    magic, version, header_size, row_size, length, _ = layout.PREFIX.unpack_from(data)
    what = chance.choice(("header", "rows", "live"))
    if what == "header":
        header = json.loads(data[layout.PREFIX.size : layout.PREFIX.size + length])
        columns = header.pop("columns")
        changed = mutated(mutated({**header, **FACTS}, chance), chance)
        facts = changed if isinstance(changed, dict) else {}
        text = json.dumps({**facts, "columns": columns}).encode()
        sizes = (header_size, row_size, len(text), layout.checksum(row_size, text))
        head = layout.PREFIX.pack(magic, version, *sizes) + text
        data[: layout.LIVE_OFFSET] = head.ljust(layout.LIVE_OFFSET, b"\0")
    count = (len(data) - layout.HEADER_SIZE) // row_size
    for _ in range(20 if what == "rows" and count else 0):
        at = layout.HEADER_SIZE + chance.randrange(count) * row_size + 8 * chance.randrange(row_size // 8 - 1)
        data[at : at + 8] = chance.choice(WORDS)
    for _ in range(5 if what == "live" else 0):
        data[layout.LIVE_OFFSET + chance.randrange(1000)] = chance.randrange(256)
    return bytes(data)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # sums of senseless numbers overflow
@pytest.mark.parametrize("seed", range(40))
def test_there_is_always_a_summary(tmp_path: Path, seed: int) -> None:
    """Half of the files of a run are spoiled: the summary is made, encodes, and controls no terminal."""
    chance = random.Random(seed)
    SyntheticRun(tmp_path, chance.choice((1, 2, 9))).append(chance.choice((1, 3, 30, 120)))
    for path in sorted((tmp_path / "recording").iterdir()):
        if chance.random() < 0.5:
            continue
        data = path.read_bytes()
        if path.name.endswith(".jsonl"):
            event = {**json.loads(data.splitlines()[0]), "message": "m", "phase": "sync", "pid": 1}
            path.write_text(json.dumps(mutated(event, chance)) + "\n")
        else:
            path.write_bytes(spoiled(bytearray(data), chance))
    manifest = mutated(MANIFEST, chance)
    found = build(tmp_path, manifest if isinstance(manifest, dict) else {}, final=True)
    for text in (render(found), encode(found).decode()):
        assert all(line.isprintable() for line in text.split("\n"))
