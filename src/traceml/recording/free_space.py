"""Gives the space of a part of a file back to the disk; the file keeps its size and reads as zeros there."""

import ctypes
import errno
import mmap
import os
from typing import Any, Final

_KEEP_SIZE_AND_PUNCH_HOLE: Final = 0x01 | 0x02  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
_NOT_SUPPORTED: Final = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM, errno.ETXTBSY)


def _find_fallocate() -> Any:
    try:
        found = ctypes.CDLL(None, use_errno=True).fallocate
    except (OSError, AttributeError, TypeError):
        return None  # not Linux
    found.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return found if ctypes.sizeof(ctypes.c_long) == 8 else None  # offsets are 32 bits wide on small systems


_fallocate: Final = _find_fallocate()


def free_space(fd: int, begin: int, end: int) -> bool:
    """Free the whole pages between these offsets; False where the system or the disk cannot do it."""
    begin, end = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if end <= begin:
        return True
    if _fallocate is None:
        return False
    if _fallocate(fd, _KEEP_SIZE_AND_PUNCH_HOLE, begin, end - begin) == 0:
        return True
    problem = ctypes.get_errno()
    if problem in _NOT_SUPPORTED:
        return False
    raise OSError(problem, os.strerror(problem))
