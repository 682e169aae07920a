"""Reads files that may be anything (a FIFO, a device, a terabyte), and replaces files as a whole."""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from traceml.errors import printable

READ_FLAGS: Final = (
    os.O_RDONLY
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NONBLOCK", 0)  # else opening a FIFO waits for a writer
    | getattr(os, "O_NOCTTY", 0)
)
LARGEST: Final = 2**62
"""No time, size or count of a training run is larger; a larger number would only overflow later."""
LONGEST_TEXT: Final = 2000
LONGEST_KEY: Final = 100
DEEPEST: Final = 20
SIGNED: Final = frozenset({"skew"})
"""Statistics that may be negative; all others are times, sizes or counts."""


def open_regular(path: str | Path, flags: int = READ_FLAGS) -> int:
    """A descriptor of a regular file; OSError for anything else."""
    return open_sized(path, flags)[0]


def open_sized(path: str | Path, flags: int = READ_FLAGS) -> tuple[int, int]:
    """The same, and how large the file is."""
    descriptor = os.open(path, flags)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return descriptor, found.st_size


def read_whole(path: str | Path, most_bytes: int) -> bytes:
    """All of it; OSError if that is more than `most_bytes`."""
    with os.fdopen(open_regular(path), "rb") as file:
        if os.fstat(file.fileno()).st_size <= most_bytes:
            data = file.read(most_bytes + 1)
            if len(data) <= most_bytes:
                return data
    raise OSError(errno.EFBIG, f"larger than {most_bytes / 1e6:,.0f} MB", str(path))


def sound(
    value: Any,
    fault: Callable[[str, str], None] = lambda _place, _what: None,
    place: str = "$",
    depth: int = 0,
) -> Any:
    """The value with printable texts and limited depth, and null for numbers that are not sensible.

    `fault` is called with the place of such a number and what is wrong with it.
    """
    if isinstance(value, str):
        return printable(value[:LONGEST_TEXT])
    if isinstance(value, (dict, list)) and depth > DEEPEST:
        return type(value)()
    if isinstance(value, dict):
        pairs = ((printable(str(key)[:LONGEST_KEY]), inner) for key, inner in value.items())
        return {key: sound(inner, fault, f"{place}.{key}", depth + 1) for key, inner in pairs}
    if isinstance(value, list):
        return [sound(inner, fault, f"{place}[{i}]", depth + 1) for i, inner in enumerate(value)]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if not abs(value) <= LARGEST:
            return fault(place, "expected a number of sensible size")
        last = place.rpartition(".")[2]
        if value < 0 and ".metrics." in place and last not in SIGNED:
            return fault(place, "expected a number of at least 0")
    return value


def write_atomic(path: Path, data: bytes) -> None:
    """Temporary file, fsync, rename: a reader sees the old file or the new one, never a part."""
    with replacing(path) as temporary, temporary.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Where to write a file. It takes the place of `path` at the end, unless something is raised."""
    # Not `mkstemp`: that makes files which only their owner may read.
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
