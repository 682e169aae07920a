"""What the nodes ask, and what node 0 answers.

A question brings pieces of files, the answer says how far each file is on node 0's disk. A question may be
lost, repeated or late: bytes are taken only where node 0's file ends, so at worst they are sent again.
"""

import enum
from typing import Annotated, Final, TypeVar

import msgspec

FRAME_BYTES: Final = 256 * 1024
"""Most bytes of files in one question."""
MOST_PIECES: Final = 64
MESSAGE_BYTES: Final = FRAME_BYTES + 16 * 1024
"""The socket drops a peer that announces a longer message."""

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_T = TypeVar("_T")


class Piece(msgspec.Struct, frozen=True, omit_defaults=True):
    """What follows the first `offset` bytes of a file."""

    name: Annotated[str, msgspec.Meta(max_length=80)]
    offset: _Count | None = None
    """None asks how far node 0 is with this file."""
    data: Annotated[bytes, msgspec.Meta(max_length=FRAME_BYTES)] = b""
    live: Annotated[bytes, msgspec.Meta(max_length=4096)] | None = None
    """The live half of a recording's header, without trailing zeros; valid once `data` is there."""


class Question(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that a node sends. One without pieces shows that the node is still there."""

    number: _Count
    """Grows, even if the node's monitor is restarted: a late question must not undo a newer one."""
    pieces: Annotated[list[Piece], msgspec.Meta(max_length=MOST_PIECES)]
    complete: bool | None = None
    """In the node's last question: whether node 0 has everything."""


class Status(enum.Enum):
    """What node 0 made of a piece."""

    OK = "ok"
    LATER = "later"  # disk trouble on node 0: ask again
    REFUSED = "refused"  # this file, for good


class State(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a file is on node 0's disk."""

    status: Status
    offset: _Count = 0
    check: Annotated[bytes, msgspec.Meta(max_length=16)] = b""
    """A digest of what lies before `offset`: the node sees whether it is its own file."""
    reason: Annotated[str, msgspec.Meta(max_length=200)] = ""


class Answer(msgspec.Struct, frozen=True):
    """One state per piece; none if node 0 has seen a newer question of this node."""

    number: _Count
    newest: _Count
    states: Annotated[list[State], msgspec.Meta(max_length=MOST_PIECES)]


encode = msgspec.msgpack.Encoder().encode


def decode(frame: bytes | memoryview, kind: type[_T]) -> _T | None:
    """The message in this frame, None if it is not a valid one."""
    try:
        return msgspec.msgpack.decode(frame, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
