"""The C switch under AddressSanitizer and UBSan: whatever it is given, it answers or raises."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.scenarios.scenario import SRC

FUZZ = Path(__file__).with_name("fuzz_switch.py")
FLAGS = [
    "-g",
    "-O1",
    "-fwrapv",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-shared",
    "-fPIC",
]


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C module, built with both sanitizers."""
    binary = tmp_path_factory.mktemp("sanitized") / "_switch.abi3.so"
    source = SRC / "traceml" / "capture" / "_switch.c"
    include = sysconfig.get_paths()["include"]
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    built = subprocess.run(["gcc", *FLAGS, f"-I{include}", source, "-o", binary], check=False)
    if built.returncode:
        pytest.skip("no sanitizers, or no headers of Python")
    return binary


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8))
def test_hostile_calls_never_touch_foreign_memory(sanitized: Path, seed: int) -> None:
    """Every method and attribute, with anything, in any order, also from within callbacks; and usual calls
    leave no reference behind."""
    libraries = [
        subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout
        for name in ("libasan.so", "libubsan.so")
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": str(SRC),
        "LD_PRELOAD": ":".join(library.strip() for library in libraries),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python itself keeps memory to the end
        "PYTHONMALLOC": "malloc",
    }
    done = subprocess.run(
        [sys.executable, str(FUZZ), str(sanitized), str(seed), "20000"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    leaked, counts = done.stdout.splitlines()
    assert leaked == "leaked 0"
    _, returned, _, raised = counts.split()
    assert int(returned) > 5000
    assert int(raised) > 5000
