"""The file of sampled steps: torn, foreign and hostile lines cost only themselves; the relay carries it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from traceml.monitor.relay.store import landing
from traceml.recording.lines import MOST_SAMPLES, LayersTail

TABLE: dict[str, Any] = {
    "table": 1,
    "clock": "host",
    "paths": ["(Net)", "a"],
    "types": ["Net", "Linear"],
    "parameter_bytes": [0, 8],
    "parameter_bytes_total": [8, 8],
    "hidden": [0, 0],
}
SAMPLE: dict[str, Any] = {"of": 1, "step": 4, "every": 8, "own_ns": 5, "forward": [1, 2], "backward": [3, 4]}


def line(data: Any) -> bytes:
    return json.dumps(data, separators=(",", ":")).encode() + b"\n"


def test_a_torn_last_line_is_left_out_until_it_is_whole(tmp_path: Path) -> None:
    """The writer was killed in the middle of a line, or is still writing it."""
    path = tmp_path / "rank-0.1.layers.jsonl"
    whole = line(TABLE) + line(SAMPLE)
    second = line({**SAMPLE, "step": 8})
    tail = LayersTail(str(path))
    for cut in range(len(second)):
        path.write_bytes(whole + second[:cut])
        assert [s.step for s in LayersTail(str(path)).read()] == [4]
        assert [s.step for s in tail.read()] == [4]
    path.write_bytes(whole + second)
    assert [s.step for s in tail.read()] == [4, 8]
    assert tail.read()[1].columns["backward"] == [3, 4]


@pytest.mark.parametrize(
    "bad",
    [
        b"\n",
        b"nonsense\n",
        b"\x00" * 5000 + b"\n",
        line([]),
        line({**SAMPLE, "of": 2}),
        line({**SAMPLE, "forward": [1]}),
        line({**SAMPLE, "forward": [1, -1]}),
        line({**SAMPLE, "forward": [1, 10**30]}),
        line({**SAMPLE, "forward": "no"}),
        line({**SAMPLE, "step": None}),
        b'{"of":1,"step":' + b"[" * 100_000 + b"\n",
    ],
)
def test_lines_that_are_none_of_ours_are_left_out(tmp_path: Path, bad: bytes) -> None:
    """The samples around them are read."""
    path = tmp_path / "rank-0.1.layers.jsonl"
    path.write_bytes(line(TABLE) + line(SAMPLE) + bad + line({**SAMPLE, "step": 8}))
    assert [s.step for s in LayersTail(str(path)).read()] == [4, 8]


def test_texts_are_printable_and_a_table_that_does_not_fit_has_no_samples(tmp_path: Path) -> None:
    """A path with escape sequences cannot reach the terminal."""
    path = tmp_path / "rank-0.1.layers.jsonl"
    path.write_bytes(line({**TABLE, "paths": ["\x1b[31mred", "a" * 9999]}) + line(SAMPLE))
    (sample,) = LayersTail(str(path)).read()
    assert all(text.isprintable() and len(text) <= 300 for text in sample.paths)
    path.write_bytes(line({**TABLE, "types": ["Net"]}) + line(SAMPLE))
    assert LayersTail(str(path)).read() == []


def test_only_the_newest_samples_are_held(tmp_path: Path) -> None:
    """A run of any length takes the same memory."""
    path = tmp_path / "rank-0.1.layers.jsonl"
    path.write_bytes(line(TABLE) + b"".join(line({**SAMPLE, "step": step}) for step in range(100)))
    assert [s.step for s in LayersTail(str(path)).read()] == list(range(100 - MOST_SAMPLES, 100))


def test_files_of_layers_travel_to_node_0() -> None:
    """Under the name of their node, like all other files of a rank."""
    found = landing("rank-3.77.layers.jsonl", 1)
    assert found is not None
    assert (found.name, found.has_rows) == ("rank-3.node1.77.layers.jsonl", False)
