"""Tests that judge times are repeated on a machine that lacks cores, and only there."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = "pytester"


@pytest.mark.parametrize(("share", "runs"), [(0.9, 3), (0.1, 1)])
def test_a_failing_timed_test_is_repeated_only_without_cores(
    pytester: pytest.Pytester, share: float, runs: int
) -> None:
    """Three failures are a failure; with cores to spare the first one is. Tests without the mark run once."""
    pytester.makeini(f"[pytest]\nmarkers = timed: x\npythonpath = {Path(__file__).parents[2]}\n")
    pytester.makeconftest(
        f"""
        import time
        import tests.conftest as ours
        from tests.conftest import *
        ours.core_wait_s = lambda: time.monotonic() * {share}
        """
    )
    pytester.makepyfile(
        """
        import pytest
        @pytest.mark.timed
        def test_timed(): print("first", "kind"); assert False
        def test_other(): print("second", "kind"); assert False
        """
    )
    done = pytester.runpytest_subprocess("-s", "-p", "no:cacheprovider")
    done.assert_outcomes(failed=2)
    assert done.stdout.str().count("first kind\n") == runs
    assert done.stdout.str().count("second kind\n") == 1
