"""The examples with several ranks, in a file of their own: a worker of the test run takes one file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.promises import Example, check, in_folder
from tests.scenarios.preloaded import PreloadedTraceml


@pytest.mark.scenario
@pytest.mark.timed
@pytest.mark.parametrize("example", in_folder("distributed"), ids=lambda e: e.name)
def test_example_gets_the_label_that_it_promises(
    example: Example, tmp_path: Path, preloaded: PreloadedTraceml
) -> None:
    """`# TraceML says:` holds: the label, and the rank and phase if the line names them."""
    done = preloaded("run", str(example.path), "--run-name", "r", *example.words, cwd=tmp_path)
    check(example, tmp_path, done)
