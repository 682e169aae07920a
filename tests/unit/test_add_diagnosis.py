"""Adding a diagnosis takes one row in one rules file: it is applied, sorted in, and documented."""

from __future__ import annotations

import importlib.util
import re
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.unit import made
from tests.unit.test_rules_system import process_of
from traceml.analyze.rules import change, memory, ranks, system, time
from traceml.analyze.rules.rule import Measured, Rule
from traceml.analyze.summarize import summarize
from traceml.schema.recorded import RunFacts
from traceml.schema.summary import WARN, Summary

TOOL = Path(__file__).parents[2] / "tools" / "write_diagnoses.py"
PAGE = Path(__file__).parents[2] / "docs" / "contributing.md"
TUPLES = [
    (time, "RULES", "step_time"),
    (ranks, "RULES", "step_time"),
    (change, "RULES", "step_time"),
    (memory, "RULES", "step_memory"),
    (system, "SYSTEM_RULES", "system"),
    (system, "PROCESS_RULES", "process"),
]


def full_moon(_view: object) -> Measured:
    """Training is slower while the moon is full."""
    return Measured(0.15, score=0.15, words={"share": "15.0 %"}, ranks=(1,), evidence={"moon": "full"})


ADDED: Rule[Any] = Rule("FULL_MOON", full_moon, "The moon costs {share} of the step.", "Wait for {share}.")


def two_ranks() -> Summary:
    """The summary of a run in which every section has data."""
    keys = (*made.ALL_MEASURED, "sync")
    rows = [made.rank(made.steps(60, measured=keys, forward=10.0, sync=0.5), n, world_size=2) for n in (0, 1)]
    processes = np.concatenate([made.process(pid=100), made.process(pid=101)])
    return summarize(made.run(*rows, system_rows=made.system(), process_rows=processes), RunFacts("demo"))


def docs_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_diagnoses", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("module", "name", "section"), TUPLES, ids=lambda v: getattr(v, "__name__", v))
def test_a_rule_added_to_a_rules_file_is_applied_and_documented(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, section: str
) -> None:
    """A new row in any rules file is a finding of its section and an entry of the diagnoses page, with its
    label, sentences and thresholds; no other file has to change."""
    before = getattr(two_ranks(), section).issues
    assert "FULL_MOON" not in {f.kind for f in before}
    monkeypatch.setattr(module, name, (*getattr(module, name), ADDED))
    (finding,) = [f for f in getattr(two_ranks(), section).issues if f.kind == "FULL_MOON"]
    assert (finding.status, finding.severity, finding.ranks) == ("FULL MOON", WARN, [1])
    assert (finding.summary, finding.action) == ("The moon costs 15.0 % of the step.", "Wait for 15.0 %.")
    entry = (
        "### FULL MOON\n\n`FULL_MOON`. Training is slower while the moon is full.\n\n"
        "Next: Wait for <share>.\n\nWarning at 10.0 % of the step, critical at 20.0 %.\n"
    )
    assert docs_tool().page().count(entry) == 1


def test_the_example_in_the_documentation_is_a_working_diagnosis(monkeypatch: pytest.MonkeyPatch) -> None:
    """The function and the row of docs/contributing.md, copied unchanged, warn above the threshold and not
    below it."""
    steps = PAGE.read_text().partition("## Add a diagnosis")[2]
    blocks = re.findall(r"^ +```python\n(.*?)^ +```", steps, re.MULTILINE | re.DOTALL)
    function, row = (textwrap.dedent(block) for block in blocks[:2])
    names = dict(vars(system))
    exec(function, names)
    added = eval(row, names)
    monkeypatch.setattr(system, "PROCESS_RULES", (*system.PROCESS_RULES, *added))
    said = [process_of(made.process(cpu_delay_percent=p)).diagnosis.status for p in (10.0, 30.0)]
    assert said == ["NORMAL", "NO FREE CORE"]
