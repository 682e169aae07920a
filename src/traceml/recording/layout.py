"""Layout of a recording file, shared by writer and reader. Standard library only.

    0      magic, version, sizes, checksum, then the immutable header as JSON (identity, clock, columns)
    4096   live area: current phase, state, user phase names; overwritten in place
    8192   rows: the columns, then a sequence number (1, 2, 3, ...) that is written last

A row whose sequence number is not the expected one was never published, so the readable rows are always a
prefix. The row size follows from the columns. Every row starts and ends on a multiple of 8 bytes, so that its
sequence number lies within one page and is written in one piece.
"""

import json
import struct
import zlib
from typing import Any, Final

Columns = tuple[tuple[str, str], ...]
"""Names and `struct` codes (q, d or I) of the columns of a row."""

FOLDER: Final = "recording"
"""In a run folder: everything that was recorded."""
EARLY_EVENTS: Final = "early.events.jsonl"
"""In it: what processes without a recording leave behind."""
ENDED: Final = "ended"
"""In it: the run is over, though the process that called `traceml.init()` or `traceml.run()` goes on."""
MAGIC: Final = b"TRACEML\x00"
VERSION: Final = 1
PREFIX: Final = struct.Struct("<8sIIIII")  # magic, version, header size, row size, JSON length, checksum
LIVE_OFFSET: Final = 4096
HEADER_SIZE: Final = 8192
SEQUENCE: Final = struct.Struct("<q")

LIVE_PHASE: Final = LIVE_OFFSET
LIVE_STATE: Final = LIVE_OFFSET + 1
LIVE_FAILED: Final = LIVE_OFFSET + 8  # a FAILURE: where an exception last left a phase
LIVE_OWN: Final = LIVE_OFFSET + 24  # in C, of sampled steps: our time in ns, their number, calls that passed
LIVE_OTHER: Final = LIVE_OFFSET + 48  # optimizer steps on threads that are not recorded
LIVE_OWN_SWITCHES: Final = LIVE_OFFSET + 56  # timed calls of the sampled steps
LIVE_NAMES: Final = LIVE_OFFSET + 64
NAME_BYTES: Final = 64
FAILURE: Final = struct.Struct("<qq")  # the step (from 1), the phase's slot
COUNT: Final = struct.Struct("<q")
LIVE: Final = struct.Struct("<BB6xqqqqqqq")  # all of these, from LIVE_OFFSET on

LIVE_BYTES: Final = 1024
"""The part of the live area that is used."""

STATE_RUNNING: Final = 0
STATE_CLOSED: Final = 1
STATE_LOST: Final = 2  # the writer had to stop (disk full): later steps are missing
STATE_REPLACED: Final = 3  # the process replaced itself (exec), and went on in another recording


def row_struct(columns: Columns) -> struct.Struct:
    """The packed body of a row, without its sequence number."""
    return struct.Struct("<" + "".join(code for _, code in columns))


def padded_row_size(body_bytes: int) -> int:
    """The body, rounded up to a multiple of 8, and the sequence number."""
    return -(-body_bytes // SEQUENCE.size) * SEQUENCE.size + SEQUENCE.size


def checksum(row_size: int, text: bytes) -> int:
    """Covers everything in the header that gives the rows their meaning."""
    return zlib.crc32(text, row_size)


def header_bytes(columns: Columns, facts: dict[str, Any]) -> bytes:
    """The first `HEADER_SIZE` bytes of a recording with these columns; `facts` become the header's JSON."""
    text = json.dumps({**facts, "columns": columns}).encode()
    if len(text) > LIVE_OFFSET - PREFIX.size:
        raise ValueError(f"recording header of {len(text)} bytes does not fit")
    row_size = padded_row_size(row_struct(columns).size)
    sizes = (HEADER_SIZE, row_size, len(text), checksum(row_size, text))
    return (PREFIX.pack(MAGIC, VERSION, *sizes) + text).ljust(HEADER_SIZE, b"\0")
