"""How many made-up inputs a test tries: no deadline (machines are shared), always the same inputs."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, Phase, settings

settings.register_profile(
    "traceml",
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],  # explaining takes minutes
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("traceml")
quick = False
"""Whether `thorough` tests are left out; set before any test is imported (tests/conftest.py)."""


def examples(most: int, **more: Any) -> settings:
    """This many, but a fifth of them in `make check`."""
    return settings(max_examples=most // 5 if quick else most, **more)
