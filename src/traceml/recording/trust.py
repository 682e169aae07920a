"""What a recording says about itself, checked: its file may be damaged, or come from a node that lies."""

from typing import Annotated, Any

import msgspec

from traceml.files import sound
from traceml.recording.reader import UnreadableRecording

_Number = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
_Cost = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


class _Identity(msgspec.Struct):
    """Numbers that are missing or senseless are dealt with by `identity_of`."""

    rank: _Number = 0
    pid: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] = 0


class _Process(msgspec.Struct):
    clock_ns: _Number = 0
    wall_ns: _Number = 0
    thread: _Number | None = None
    threads: _Number | None = None
    python: str | None = None
    torch: str | None = None
    packages: dict[str, str] | None = None


class _Device(msgspec.Struct):
    type: str | None = None
    name: str | None = None
    capacity_bytes: _Number | None = None


class _Overhead(msgspec.Struct):
    switch_ns: _Cost = 0.0
    row_ns: _Cost = 0.0
    pass_ns: _Cost = 0.0
    step_ns: _Cost = 0.0
    in_c: bool | None = None


class _Header(msgspec.Struct):
    """The types that the analysis relies on; more may be there."""

    identity: _Identity
    process: _Process = msgspec.field(default_factory=_Process)
    device: _Device = msgspec.field(default_factory=_Device)
    overhead: _Overhead = msgspec.field(default_factory=_Overhead)
    missing: list[str] | None = None


def checked(header: dict[str, Any], path: object) -> dict[str, Any]:
    """A rank's header, if everything in it has the type that it must have; its texts are printable."""
    try:
        found = {key: value if key == "columns" else sound(value) for key, value in header.items()}
        msgspec.convert(found, _Header)
    except (msgspec.ValidationError, UnicodeError, RecursionError):
        raise UnreadableRecording(f"{path}: its header does not make sense") from None
    return found
