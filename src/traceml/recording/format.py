"""Layout of a recording file, shared by writer and reader. Standard library only.

    0      magic, version, sizes, checksum, then the immutable header as JSON (columns, identity, clock)
    4096   live area: current phase, state, user phase names; overwritten in place
    8192   rows: the columns, then a sequence number (1, 2, 3, ...) that is written last

A row whose sequence number is not the expected one was never published: the readable rows are always
a prefix. Rows are padded to a power of two so that none crosses a page and a chunk holds whole rows.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

MAGIC: Final = b"TRACEML\x00"
VERSION: Final = 1
PREFIX: Final = struct.Struct("<8sIIIII")  # magic, version, header size, row size, JSON length, checksum
LIVE_OFFSET: Final = 4096
HEADER_SIZE: Final = 8192
SEQUENCE: Final = struct.Struct("<q")

LIVE_PHASE: Final = LIVE_OFFSET
LIVE_STATE: Final = LIVE_OFFSET + 1
LIVE_FAILED: Final = LIVE_OFFSET + 8  # a FAILURE: where an exception last left a phase
LIVE_NAMES: Final = LIVE_OFFSET + 64
NAME_BYTES: Final = 64
FAILURE: Final = struct.Struct("<qq")  # the step (from 1), the phase's slot

STATE_RUNNING: Final = 0
STATE_CLOSED: Final = 1
STATE_LOST: Final = 2  # the writer had to stop (disk full): later steps are missing


def row_struct(columns: tuple[tuple[str, str], ...]) -> struct.Struct:
    """The packed body of a row, without its sequence number."""
    return struct.Struct("<" + "".join(code for _, code in columns))


def checksum(row_size: int, text: bytes) -> int:
    """Of everything in the header that gives the rows their meaning: a damaged one must not be believed."""
    return zlib.crc32(text, row_size)


def padded_row_size(body_bytes: int) -> int:
    """Body plus sequence number, rounded up to a power of two."""
    size = 16
    while size < body_bytes + SEQUENCE.size:
        size *= 2
    return size
