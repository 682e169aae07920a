"""Files that are replaced as a whole: a reader sees the old one or the new one, never a part."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def write_atomic(path: Path, data: bytes) -> None:
    """Temporary file, fsync, rename. The mode is what the user's umask gives."""
    # Not `mkstemp`: that makes files which only their owner may read.
    with replacing(path) as temporary, temporary.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Where to write a file. It takes the place of `path` at the end, unless something is raised."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
