"""Builds the optional C switch; everything else is in pyproject.toml.

Without a compiler the build goes on and the Python class does the work. Interpreters without the stable ABI
(free-threaded builds, PyPy) get a pure Python package. TRACEML_PURE_PYTHON=1 builds one anywhere.
"""

import os
import sys
import sysconfig
from typing import Any

from setuptools import Extension, setup


def c_switch() -> dict[str, Any]:
    """The arguments of `setup` that build the C switch."""
    extension = Extension(
        "traceml.capture._switch",
        ["src/traceml/capture/_switch.c"],
        py_limited_api=True,
        extra_compile_args=["-fwrapv"],  # as for Python itself: sums of times wrap
        optional=True,
    )
    return {"ext_modules": [extension], "options": {"bdist_wheel": {"py_limited_api": "cp310"}}}


has_stable_abi = sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")
wants_pure = os.environ.get("TRACEML_PURE_PYTHON", "0") not in ("", "0")

setup(**(c_switch() if has_stable_abi and not wants_pure else {}))
