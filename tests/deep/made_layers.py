"""Sampled steps made by hand."""

from __future__ import annotations

from typing import Any

from tests.unit import made
from traceml.schema.recorded import LayerSample, RankRecording

PATHS = ("(Net)", "embed", "blocks.0", "blocks.1", "head")
TYPES = ("Net", "Embedding", "Block", "Block", "Linear")


def sample(step: int = 8, **columns: Any) -> LayerSample:
    """One sampled step of a model with five layers; columns of times in ms."""
    count = len(PATHS)
    times = {
        name: [int(value * 1e6) for value in column] if "bytes" not in name and name != "calls" else column
        for name, column in columns.items()
    }
    usual = {"calls": [1] * count, "forward": [0, 1_000_000, 2_000_000, 3_000_000, 4_000_000]}
    usual["backward"] = [2 * value for value in usual["forward"]]
    return LayerSample(
        step=step,
        every=16,
        own_ns=400_000,
        clock="host",
        reads_saved=True,
        outside_ns=0,
        outside_bytes=0,
        paths=list(PATHS),
        types=list(TYPES),
        parameter_bytes=[0, 4000, 1000, 1000, 4000],
        parameter_bytes_total=[10000, 4000, 1000, 1000, 4000],
        hidden=[0] * count,
        columns=usual | times,
    )


def rank(samples: list[LayerSample], number: int = 0, world_size: int = 1) -> RankRecording:
    """A rank with these sampled steps."""
    rows = made.steps(100, forward=10, backward=20)
    return made.rank(rows, number, world_size=world_size, layers=samples)
