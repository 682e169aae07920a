"""What tests of several folders share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.scenarios.preloaded import PreloadedTraceml


@pytest.fixture(scope="session")
def preloaded() -> Iterator[PreloadedTraceml]:
    """`traceml run` with torch already loaded; see tests/scenarios/preload_server.py."""
    made = PreloadedTraceml()
    yield made
    made.close()
