"""What user code may rely on: names, import paths, commands, schema. Change these on purpose only."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import msgspec
import pytest

import traceml
from tests.unit import made
from traceml.analyze.summarize import summarize
from traceml.cli.main import COMMANDS
from traceml.schema import catalog as c
from traceml.schema.facts import RunFacts
from traceml.schema.summary import SCHEMA
from traceml.settings import SETTINGS

PUBLIC = {"__version__", "final_summary", "init", "phase", "summary", "trace_step"}


def test_the_public_names() -> None:
    """Exactly these, each of them there and documented."""
    assert set(traceml.__all__) == PUBLIC
    for name in PUBLIC - {"__version__"}:
        assert inspect.getdoc(getattr(traceml, name))


def test_the_import_path_of_the_seeds() -> None:
    """`from traceml.decorators import trace_step` is the same object."""
    from traceml.decorators import trace_step

    assert trace_step is traceml.trace_step


def test_an_unknown_name_is_an_attribute_error() -> None:
    """The usual error with the usual words, so that hasattr works."""
    with pytest.raises(AttributeError, match="module 'traceml' has no attribute 'nonsense'"):
        _ = traceml.nonsense
    assert not hasattr(traceml, "nonsense")


def test_the_version_is_the_packages() -> None:
    """`traceml.__version__` and pyproject.toml agree."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    found = re.search(r'^version = "(.+)"$', text, re.MULTILINE)
    assert found is not None
    assert traceml.__version__ == found[1]


def test_the_commands() -> None:
    """Each row of the table loads, and hidden ones stay hidden."""
    assert [c.name for c in COMMANDS] == ["run", "view", "compare", "runs", "attach"]
    assert [c.name for c in COMMANDS if c.hidden] == ["attach"]
    for command in COMMANDS:
        assert callable(command.load())
        assert command.help


def test_the_flags() -> None:
    """The command line's surface, frozen."""
    assert [s.flag for s in SETTINGS] == [
        "--run-name",
        "--logs-dir",
        "--mode",
        "--interval",
        "--stall-after",
        "--nproc-per-node",
        "--nnodes",
        "--node-rank",
        "--master-addr",
        "--master-port",
        "--relay-port",
        "--overwrite",
        "--quiet",
    ]


TOP = [
    "schema",
    "final",
    "run",
    "primary_diagnosis",
    "step_time",
    "step_memory",
    "system",
    "process",
    "series",
    "blocks",
    "events",
    "environment",
    "overhead",
    "catalog",
]
RUN = [
    "name",
    "status",
    "exit_code",
    "reason",
    "started_at",
    "ended_at",
    "duration_s",
    "command",
    "nodes",
    "world_size",
    "ranks",
    "steps",
    "mode",
]
PRIMARY = [
    "kind",
    "status",
    "severity",
    "section",
    "summary",
    "action",
    "score",
    "ranks",
    "potential_speedup",
    "evidence",
]
FINDING = ["kind", "status", "severity", "summary", "action", "score", "phase", "ranks", "evidence"]
STEP_TIME = [
    "step_ms",
    "input_ms",
    "h2d_ms",
    "forward_ms",
    "backward_ms",
    "sync_ms",
    "optimizer_ms",
    "validation_ms",
    "checkpoint_ms",
    "wait_ms",
    "compute_ms",
    "gc_ms",
    "samples_per_s",
]
STEP_MEMORY = ["peak_allocated_bytes", "peak_reserved_bytes", "rss_bytes"]
SYSTEM = [
    "cpu_percent",
    "ram_bytes",
    "ram_percent",
    "gpu_util_percent",
    "gpu_mem_bytes",
    "gpu_mem_percent",
    "gpu_temp_c",
    "gpu_power_w",
]
PROCESS = ["cpu_percent", "rss_bytes", "gpu_mem_used_bytes", "gpu_mem_reserved_bytes"]


@pytest.mark.parametrize("steps", [0, 1, 100])
def test_the_shape_of_the_summary(steps: int) -> None:
    """Every name of SUMMARY.md is in final_summary.json, for a run of no step, one step and many."""
    recording = made.run(made.rank(made.steps(steps, input=4, forward=6)))
    text = msgspec.json.encode(summarize(recording, RunFacts("demo")))
    found = msgspec.json.decode(text)
    assert found["schema"] == SCHEMA == "traceml.summary/1"
    assert set(TOP) <= set(found)
    assert set(RUN) <= set(found["run"])
    assert {"seen", "used", "lost"} <= set(found["run"]["ranks"])
    assert {"total", "analyzed", "warmup"} <= set(found["run"]["steps"])
    assert set(PRIMARY) <= set(found["primary_diagnosis"])
    for name, keys in (
        ("step_time", STEP_TIME),
        ("step_memory", STEP_MEMORY),
        ("system", SYSTEM),
        ("process", PROCESS),
    ):
        section = found[name]
        assert set(keys) <= set(section["metrics"])
        assert section["issues"][0] == section["diagnosis"]
        assert set(FINDING) <= set(section["diagnosis"])
        assert {"average", "median", "worst", "p5", "p95", "skew"} <= set(section["metrics"][keys[0]])
    assert {"start_step", "end_step", "num_steps", "clock"} <= set(found["step_time"]["window"])
    assert "nodes" in found["system"]
    assert {"key", "label", "unit", "help"} <= set(found["catalog"][0])


def test_the_keys_of_phases_are_frozen() -> None:
    """Files on disk carry these names and this order."""
    assert [p.key for p in c.PHASES] == [
        "input",
        "h2d",
        "forward",
        "backward",
        "sync",
        "optimizer",
        "validation",
        "checkpoint",
    ]
