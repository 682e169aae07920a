"""Typed reading of a JSON object that may be old, new or damaged.

What is missing is None. What is there but of the wrong type ends the command with one line that
names the place; in a file of a newer version than ours it is passed over, and the reader keeps a
note.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from traceml.errors import CommandError

T = TypeVar("T")
LARGEST: Final = 1e18
"""No time, size or count of a training run is larger; what is would only overflow later."""
LONGEST_TEXT: Final = 2000


class Trouble:
    """Where a file's faults go: raised at once, or noted when the file is newer than we are."""

    def __init__(self, source: str, lenient: bool = False) -> None:
        self.source = source
        self.lenient = lenient
        self.notes: list[str] = []

    def found(self, place: str, expected: str) -> None:
        """Something of the wrong type is at this place."""
        if not self.lenient:
            raise CommandError(f"{self.source}: {expected} is expected at {place}; the file is damaged")
        if len(self.notes) < 5:
            self.notes.append(f"{self.source}: {place} was passed over ({expected} expected)")


class Fields:
    """One JSON object and the place it stands at."""

    def __init__(self, data: dict[str, Any], trouble: Trouble, place: str = "$") -> None:
        self.data = data
        self.trouble = trouble
        self.place = place

    def __contains__(self, key: str) -> bool:
        return self.data.get(key) is not None

    def _at(self, key: str) -> str:
        return f"{self.place}.{clean(key)[:60]}"

    def _wrong(self, key: str, expected: str) -> None:
        self.trouble.found(self._at(key), expected)

    def text(self, key: str) -> str | None:
        """A string without control characters."""
        value = self.data.get(key)
        if value is None:
            return None
        if not isinstance(value, str):
            self._wrong(key, "text")
            return None
        return clean(value)[:LONGEST_TEXT]

    def number(self, key: str) -> float | None:
        """A finite number; true and false are none."""
        value = self.data.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._wrong(key, "a number")
            return None
        if not math.isfinite(value) or abs(value) > LARGEST:
            self._wrong(key, "a finite number of sensible size")
            return None
        return float(value)

    def amount(self, key: str) -> float | None:
        """A number that cannot be negative: a time, a size, a count."""
        value = self.number(key)
        if value is not None and value < 0:
            self._wrong(key, "a number of at least 0")
            return None
        return value

    def whole(self, key: str) -> int | None:
        """A count or an index."""
        value = self.number(key)
        if value is not None and value != int(value):
            self._wrong(key, "a whole number")
            return None
        return None if value is None else int(value)

    def flag(self, key: str) -> bool | None:
        """True or false."""
        value = self.data.get(key)
        if value is not None and not isinstance(value, bool):
            self._wrong(key, "true or false")
            return None
        return value

    def inner(self, key: str) -> Fields:
        """The object under this key; empty when there is none."""
        value = self.data.get(key)
        if value is not None and not isinstance(value, dict):
            self._wrong(key, "an object")
            value = None
        return Fields(value or {}, self.trouble, self._at(key))

    def objects(self, key: str) -> list[Fields]:
        """A list of objects."""
        found = []
        for i, value in enumerate(self.items(key)):
            if isinstance(value, dict):
                found.append(Fields(value, self.trouble, f"{self._at(key)}[{i}]"))
            else:
                self.trouble.found(f"{self._at(key)}[{i}]", "an object")
        return found

    def items(self, key: str) -> list[Any]:
        """A list of anything."""
        value = self.data.get(key)
        if value is not None and not isinstance(value, list):
            self._wrong(key, "a list")
            value = None
        return value or []

    def numbers(self, key: str) -> list[float | None]:
        """A list of numbers, some perhaps not measured."""
        return self._each_of(key, Fields.number)

    def indices(self, key: str) -> list[int]:
        """A list of ranks or nodes."""
        return [v for v in self._each_of(key, Fields.whole) if v is not None]

    def texts(self, key: str) -> list[str]:
        """A list of strings."""
        return [v for v in self._each_of(key, Fields.text) if v is not None]

    def _each_of(self, key: str, read: Callable[[Fields, str], T]) -> list[T]:
        values = {str(i): value for i, value in enumerate(self.items(key))}
        as_object = Fields(values, self.trouble, self._at(key))
        return [read(as_object, index) for index in values]

    def each(self) -> Iterator[tuple[str, Fields]]:
        """The objects in this object."""
        for key in self.data:
            yield clean(key)[:100], self.inner(key)


def clean(text: str) -> str:
    """Text that cannot steer a terminal: control characters become spaces."""
    return "".join(c if c.isprintable() else " " for c in text)
