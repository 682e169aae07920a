"""Build what is published: an sdist, a wheel with the C switch per Linux architecture, and a pure wheel.

`make dist` runs this in an environment of its own. The C compiler is zig, which comes as a Python package and
links against an old glibc for any architecture, so one machine builds every wheel. A wheel with the C switch
is the pure wheel plus one binary; the binary uses the stable ABI and serves every CPython from 3.10 on.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any, Final
from zipfile import ZipFile

from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = "src/traceml/capture/_switch.c"
PLACE: Final = "traceml/capture/_switch.abi3.so"
PAGE: Final = "traceml/present/page.html"
BUILD: Final = (sys.executable, "-m", "build", "--no-isolation")
PYTHON_TAG: Final = "cp310-abi3"
GLIBC: Final = (2, 17)
"""The oldest glibc that the wheels run on: that of manylinux2014, as low as aarch64 goes."""
MACHINES: Final = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
"""Each architecture, and what the header of its binaries says."""

CHOICES: Final = (
    ((3, 10), "cp310", "manylinux_2_17_x86_64", "x86_64"),
    ((3, 14), "cp314", "manylinux_2_17_x86_64", "x86_64"),
    ((3, 14), "cp314", "manylinux_2_17_aarch64", "aarch64"),
    ((3, 14), "cp314t", "manylinux_2_17_x86_64", "none-any"),  # free-threaded: no stable ABI
    ((3, 14), "cp314", "musllinux_1_2_x86_64", "none-any"),
    ((3, 14), "cp314", "macosx_11_0_arm64", "none-any"),
)
"""Pythons and platforms, and the end of the name of the wheel that an installer must choose for each."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--into", type=Path, default=ROOT / "dist")
    into: Path = parser.parse_args().into.resolve()
    shutil.rmtree(into, ignore_errors=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sources = build_sdist(into, folder / "sdist")
        pure = build_pure(sources, into)
        headers = copy_headers(folder / "headers")
        for machine in MACHINES:
            binary = folder / f"{machine}.so"
            compile_switch(sources, machine, headers, binary)
            check(binary, machine)
            repack(pure, binary, machine, folder / machine, into)
    check_choices(into)
    for path in sorted(into.iterdir()):
        print(f"{path.stat().st_size / 1000:7.0f} kB  {path.name}")


def build_sdist(into: Path, folder: Path) -> Path:
    """Make the sdist and unpack it: the wheels are built from it, so it lacks nothing."""
    run([*BUILD, "--sdist", "--outdir", str(into), str(ROOT)])
    (sdist,) = into.glob("*.tar.gz")
    shutil.unpack_archive(sdist, folder)
    (sources,) = folder.iterdir()
    return sources


def build_pure(sources: Path, into: Path) -> Path:
    """The wheel without the C switch, for every other platform and for free-threaded Pythons."""
    run([*BUILD, "--wheel", "--outdir", str(into), str(sources)], TRACEML_PURE_PYTHON="1")
    (wheel,) = into.glob("*-py3-none-any.whl")
    if PAGE not in ZipFile(wheel).namelist():
        sys.exit(f"{wheel.name} has no {PAGE}: it could not be built; see web/build.py")
    return wheel


def copy_headers(into: Path) -> Path:
    """This Python's headers. Every 64-bit Linux shares them: _switch.c checks the sizes that could differ.

    Debian puts pyconfig.h into a folder per architecture and has this machine's only, so it is put back.
    """
    headers = Path(sysconfig.get_path("include"))
    shutil.copytree(headers, into)
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    of_this_machine = headers.parent / multiarch / headers.name / "pyconfig.h"
    if multiarch and of_this_machine.exists():
        shutil.copy(of_this_machine, into / "pyconfig.h")
    return into


def compile_switch(sources: Path, machine: str, headers: Path, binary: Path) -> None:
    """The C switch for this architecture."""
    target = f"{machine}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", target]
    flags = ["-O2", "-fwrapv", "-Wall", "-Werror", "-fPIC", "-shared", "-s", f"-I{headers}"]
    run([*zig, *flags, str(sources / SOURCE), "-o", str(binary)])


def check(binary: Path, machine: str) -> None:
    """Stop unless the binary is of this architecture and needs only libc, no newer than promised."""
    elf: Any = ELFFile(BytesIO(binary.read_bytes()))
    needed = {tag.needed for tag in elf.get_section_by_name(".dynamic").iter_tags("DT_NEEDED")}
    versions = {
        version.name
        for section in elf.iter_sections()
        if isinstance(section, GNUVerNeedSection)
        for _, listed in section.iter_versions()
        for version in listed
    }
    newest = max(tuple(map(int, v.removeprefix("GLIBC_").split("."))) for v in versions)
    found = f"{machine}: {elf.header.e_machine}, needs {', '.join(sorted(needed | versions))}"
    if elf.header.e_machine != MACHINES[machine] or needed - {"libc.so.6"} or newest > GLIBC:
        sys.exit(f"The C switch is not what its wheel would promise. {found}")
    print(found)


def repack(pure: Path, binary: Path, machine: str, folder: Path, into: Path) -> None:
    """The pure wheel again, with this binary in it and its platform in the name."""
    run([sys.executable, "-m", "wheel", "unpack", str(pure), "--dest", str(folder)])
    (content,) = folder.iterdir()
    shutil.copy(binary, content / PLACE)
    (about,) = content.glob("*.dist-info/WHEEL")
    platforms = (f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{machine}", f"manylinux2014_{machine}")
    tags = "\n".join(f"Tag: {PYTHON_TAG}-{platform}" for platform in platforms)
    text = about.read_text().replace("Tag: py3-none-any", tags)
    about.write_text(text.replace("Root-Is-Purelib: true", "Root-Is-Purelib: false"))
    run([sys.executable, "-m", "wheel", "pack", str(content), "--dest-dir", str(into)])


def check_choices(into: Path) -> None:
    """Stop unless each Python on each platform would install the wheel that is meant for it."""
    wheels = {path.name: parse_wheel_filename(path.name)[3] for path in into.glob("*.whl")}
    for version, abi, platform, meant in CHOICES:
        tags = [*cpython_tags(version, [abi], [platform]), *compatible_tags(version, "cp", [platform])]
        chosen = min(
            wheels, key=lambda name: min(tags.index(t) if t in tags else len(tags) for t in wheels[name])
        )
        if not chosen.endswith(f"{meant}.whl"):
            sys.exit(f"{abi} on {platform} would install {chosen}")


def run(command: list[str], **environment: str) -> None:
    """Run a command; show its output only if it fails."""
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}")


if __name__ == "__main__":
    main()
