"""The messages of the relay and their limits.

A request says what the sender has, the answer says what node 0 has on its disk. Every request
can be lost, repeated or late: bytes are taken only at exactly the offset where node 0's file
ends, so the worst that happens is that they are sent again.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

PROTOCOL: Final = 1
FRAME_BYTES: Final = 256 * 1024
"""Most data in one frame."""
MOST_IN_A_FRAME: Final = 64
"""Most requests in one frame."""
MESSAGE_BYTES: Final = FRAME_BYTES + MOST_IN_A_FRAME * 512
"""Most bytes of one frame; the socket drops a peer that announces more."""
WHOLE_BYTES: Final = 64 * 1024
"""Most bytes of a file that travels as a whole."""

_Name = Annotated[str, msgspec.Meta(max_length=80)]
_Data = Annotated[bytes, msgspec.Meta(max_length=FRAME_BYTES)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class Request(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Who asks: a client process and its count of connections, so that late messages are known."""

    client: _Count
    connection: _Count
    ticket: _Count = 0
    """Comes back in the answer."""


class Hello(Request, frozen=True, kw_only=True):
    """The first message of a connection."""

    protocol: int
    node_rank: _Count


class Open(Request, frozen=True, kw_only=True):
    """How far is node 0 with this file? `head` is the fixed half of a recording's header."""

    name: _Name
    head: Annotated[bytes, msgspec.Meta(max_length=4096)] = b""


class Put(Request, frozen=True, kw_only=True):
    """The bytes that follow the first `offset` rows (or bytes, for lines)."""

    name: _Name
    offset: _Count
    data: _Data


class Live(Request, frozen=True, kw_only=True):
    """The live half of a recording's header, without its trailing zeros."""

    name: _Name
    data: Annotated[bytes, msgspec.Meta(max_length=4096)]


class Whole(Request, frozen=True, kw_only=True):
    """A small file, to be replaced."""

    name: _Name
    data: Annotated[bytes, msgspec.Meta(max_length=WHOLE_BYTES)]


class Ping(Request, frozen=True, kw_only=True):
    """Still here, nothing new."""


class Bye(Request, frozen=True, kw_only=True):
    """The node's run is over; `complete` when node 0 has all of it."""

    complete: bool


class Status(enum.Enum):
    """What node 0 made of a request."""

    OK = "ok"
    LATER = "later"  # disk trouble on node 0: ask again
    REFUSED = "refused"  # this file, for good
    UNKNOWN = "unknown"  # not the current connection of this node: say hello


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What node 0 has of the file now; of no file after Hello, Ping and Bye."""

    client: _Count
    connection: _Count
    ticket: _Count
    status: Status
    offset: _Count = 0
    check: Annotated[bytes, msgspec.Meta(max_length=16)] = b""
    """A digest of what lies just before `offset`: the sender sees whether it is its own file."""
    reason: Annotated[str, msgspec.Meta(max_length=200)] = ""


AnyRequest = Hello | Open | Put | Live | Whole | Ping | Bye

_requests: msgspec.msgpack.Decoder[list[AnyRequest]] = msgspec.msgpack.Decoder(
    Annotated[list[AnyRequest], msgspec.Meta(max_length=MOST_IN_A_FRAME)]
)
_answers: msgspec.msgpack.Decoder[list[Answer]] = msgspec.msgpack.Decoder(
    Annotated[list[Answer], msgspec.Meta(max_length=MOST_IN_A_FRAME)]
)
_encoder = msgspec.msgpack.Encoder()


def encode(messages: Sequence[AnyRequest | Answer]) -> bytes:
    """The bytes of one frame."""
    return _encoder.encode(messages)


def frames(requests: Iterable[AnyRequest]) -> Iterator[bytes]:
    """The requests in as few frames as the limits allow: a frame costs more than what is in it."""
    together: list[AnyRequest] = []
    size_bytes = 0
    for request in requests:
        more_bytes = _data_bytes(request)
        if together and (size_bytes + more_bytes > FRAME_BYTES or len(together) == MOST_IN_A_FRAME):
            yield encode(together)
            together, size_bytes = [], 0
        together.append(request)
        size_bytes += more_bytes
    if together:
        yield encode(together)


def decode_requests(frame: bytes | memoryview) -> list[AnyRequest]:
    """The requests in this frame, none when it is not sound."""
    try:
        return _requests.decode(frame)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return []


def decode_answers(frame: bytes | memoryview) -> list[Answer]:
    """The answers in this frame, none when it is not sound."""
    try:
        return _answers.decode(frame)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return []


def _data_bytes(request: AnyRequest) -> int:
    if isinstance(request, Open):
        return len(request.head)
    return len(request.data) if isinstance(request, Put | Live | Whole) else 0


@dataclass(frozen=True, slots=True)
class Limits:
    """What one node may take of node 0's disk."""

    files: int = 1024
    node_bytes: int = 64 * 1024**3
    lines_bytes: int = 64 * 1024**2
    """Of one event file."""
    keep_free_bytes: int = 64 * 1024**2
    """Left on the disk in any case: the training on node 0 needs it too."""
