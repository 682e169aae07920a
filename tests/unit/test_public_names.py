"""What users rely on: names, import paths, commands, JSON keys. Change these only on purpose."""

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
from traceml.schema.recorded import RunFacts
from traceml.schema.summary import SCHEMA
from traceml.settings import SETTINGS

PUBLIC = {"__version__", "final_summary", "init", "load", "phase", "report", "run", "summary", "trace_step"}


def test_public_names() -> None:
    """Exactly these names are public, and each has a docstring."""
    assert set(traceml.__all__) == PUBLIC
    for name in PUBLIC - {"__version__"}:
        assert inspect.getdoc(getattr(traceml, name))


def test_documented_import_path() -> None:
    """`from traceml.decorators import trace_step` is the same object."""
    from traceml.decorators import trace_step

    assert trace_step is traceml.trace_step


def test_unknown_name_is_an_attribute_error() -> None:
    """The usual error, so that hasattr works."""
    with pytest.raises(AttributeError, match="module 'traceml' has no attribute 'nonsense'"):
        _ = traceml.nonsense
    assert not hasattr(traceml, "nonsense")


def test_version_is_that_of_the_package() -> None:
    """`traceml.__version__` and pyproject.toml agree."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    found = re.search(r'^version = "(.+)"$', text, re.MULTILINE)
    assert found is not None
    assert traceml.__version__ == found[1]


def test_commands() -> None:
    """Every command can be imported, and hidden ones stay hidden."""
    assert [c.name for c in COMMANDS] == [
        *("run", "deep", "watch", "view", "compare", "runs", "export", "ui", "metrics", "attach")
    ]
    assert [c.name for c in COMMANDS if c.hidden] == ["metrics", "attach"]
    for command in COMMANDS:
        assert callable(command.load())
        assert command.help


def test_flags() -> None:
    """The flags of `traceml run` change only on purpose."""
    flags = (
        "--run-name --logs-dir --mode --ui-host --ui-port --no-browser --interval --stall-after "
        "--nproc-per-node --nnodes --node-rank --master-addr --master-port --relay-port --deep --html-report "
        "--report-to --report-every --prometheus --otlp --overwrite --quiet"
    )
    assert [s.flag for s in SETTINGS] == flags.split()


KEYS = {
    "summary": "schema final run primary_diagnosis step_time step_memory system process series blocks events "
    "environment overhead catalog",
    "run": "name status exit_code reason started_at ended_at duration_s command nodes world_size ranks steps "
    "mode",
    "primary": "kind status severity section summary action score ranks potential_speedup evidence",
    "finding": "kind status severity summary action score phase ranks evidence",
    "metric": "average median worst p5 p95 skew",
    "step_time": "step_ms input_ms h2d_ms forward_ms backward_ms sync_ms optimizer_ms validation_ms "
    "checkpoint_ms wait_ms compute_ms gc_ms samples_per_s",
    "step_memory": "peak_allocated_bytes peak_reserved_bytes rss_bytes",
    "system": "cpu_percent ram_bytes ram_percent gpu_util_percent gpu_mem_bytes gpu_mem_percent gpu_temp_c "
    "gpu_power_w",
    "process": "cpu_percent rss_bytes gpu_mem_used_bytes gpu_mem_reserved_bytes",
}


def missing(part: str, data: dict[str, object]) -> set[str]:
    """Documented keys that are not in the data."""
    return set(KEYS[part].split()) - set(data)


@pytest.mark.parametrize("steps", [0, 1, 100])
def test_documented_keys_are_in_the_summary(steps: int) -> None:
    """final_summary.json has every documented key, for a run with no step, one step and many steps."""
    recording = made.run(made.rank(made.steps(steps, input=4, forward=6)))
    text = msgspec.json.encode(summarize(recording, RunFacts("demo")))
    found = msgspec.json.decode(text)
    assert found["schema"] == SCHEMA == "traceml.summary/1"
    assert not missing("summary", found)
    assert not missing("run", found["run"])
    assert {"seen", "used", "lost"} <= set(found["run"]["ranks"])
    assert {"total", "analyzed", "warmup"} <= set(found["run"]["steps"])
    assert not missing("primary", found["primary_diagnosis"])
    for name in ("step_time", "step_memory", "system", "process"):
        section = found[name]
        assert not missing(name, section["metrics"])
        assert section["issues"][0] == section["diagnosis"]
        assert not missing("finding", section["diagnosis"])
        assert not missing("metric", section["metrics"][KEYS[name].split()[0]])
    assert {"start_step", "end_step", "num_steps", "clock"} <= set(found["step_time"]["window"])
    assert "nodes" in found["system"]
    assert {"key", "label", "unit", "help"} <= set(found["catalog"][0])


def test_phase_keys_are_frozen() -> None:
    """Files on disk contain these names in this order."""
    keys = "input h2d forward no_grad backward sync optimizer validation checkpoint"
    assert [p.key for p in c.PHASES] == keys.split()
