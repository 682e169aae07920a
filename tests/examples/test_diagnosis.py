"""Each example gets the label that its first lines promise, and every diagnosis has one or a reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.examples.promises import FOLDER, Example, check, in_folder
from tests.running.cgroups import FIFTH_OF_A_CORE, control_group, traceml_in
from tests.scenarios.preloaded import PreloadedTraceml
from traceml.analyze.diagnose import all_rules

EXAMPLES = in_folder("diagnosis")
PLAIN = [example for example in EXAMPLES if not example.needs_container]
LIMITED = [example for example in EXAMPLES if example.needs_container]


@pytest.mark.scenario
@pytest.mark.timed
@pytest.mark.parametrize("example", PLAIN, ids=lambda e: e.name)
def test_example_gets_the_label_that_it_promises(
    example: Example, tmp_path: Path, preloaded: PreloadedTraceml
) -> None:
    """`# TraceML says:` holds: the label, and the phase if the line names one."""
    done = preloaded("run", str(example.path), "--run-name", "r", *example.words, cwd=tmp_path)
    check(example, tmp_path, done)


@pytest.mark.long
@pytest.mark.timed
@pytest.mark.parametrize("example", LIMITED, ids=lambda e: e.name)
def test_example_for_a_container_gets_the_label_that_it_promises(example: Example, tmp_path: Path) -> None:
    """With the CPU quota of a container, by the real command line."""
    with control_group(FIFTH_OF_A_CORE) as group:
        done = traceml_in(group, tmp_path, "run", str(example.path), "--run-name", "r", *example.words)
    check(example, tmp_path, done)


def test_every_diagnosis_has_an_example_or_a_reason() -> None:
    """A new rule needs an example, or a place in the list of those that cannot have one."""
    labels = {rule.label for rules in all_rules().values() for rule in rules}
    with_one, without = (
        re.findall(r"^\| ([A-Z0-9][A-Z0-9 -]+) \|(.*)", part, re.MULTILINE)
        for part in (FOLDER / "README.md").read_text().split("## Without an example")
    )
    assert sorted(label for label, _ in [*with_one, *without]) == sorted(labels)
    listed = {label: re.findall(r"\(([\w/]+\.py)\)", links) for label, links in with_one}
    examples = [*EXAMPLES, *in_folder("distributed")]
    assert {example.label for example in examples} == set(listed)
    assert [example.name for example in examples if example.name not in listed[example.label]] == []


def test_examples_are_short() -> None:
    """An example is read in a minute."""
    lengths = {e.name: len(e.path.read_text().splitlines()) for e in [*EXAMPLES, *in_folder("distributed")]}
    assert {name: lines for name, lines in lengths.items() if lines > 65} == {}
