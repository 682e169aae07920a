"""Builds the optional C switch and the page for the browser; everything else is in pyproject.toml.

Without a compiler the build goes on and the Python class does the work. Without Node.js or a registry it goes
on without the page, with a warning. Interpreters without the stable ABI (free-threaded builds, PyPy) get a
pure Python package. TRACEML_PURE_PYTHON=1 builds one anywhere.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist


def build_page() -> None:
    """Build page.html, if its sources are here and newer."""
    script = Path(__file__).parent / "web" / "build.py"
    if script.exists():
        subprocess.run([sys.executable, str(script)], check=False)


class BuildWithPage(build_py):
    """The Python files and the page."""

    def run(self) -> None:
        build_page()
        super().run()


class SdistWithPage(sdist):
    """The sources and the page, so that a wheel made from them needs no Node.js."""

    def run(self) -> None:
        build_page()
        super().run()


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

setup(
    cmdclass={"build_py": BuildWithPage, "sdist": SdistWithPage},
    **(c_switch() if has_stable_abi and not wants_pure else {}),
)
