"""What a look at a run leaves for the next look at the same run, which then looks at new rows only.

It never changes what is found: without it, or if more than the newest steps has changed, all rows are looked
at again.
"""

from dataclasses import dataclass, field
from typing import Any

from traceml.analyze.window_arrays import WindowArrays


@dataclass(slots=True)
class Before:
    """Kept by a live view between two summaries of the same run."""

    arrays: WindowArrays | None = None
    """The last window's."""
    checked: dict[int, tuple[dict[str, Any], int]] = field(default_factory=dict)
    """By the id of a recording's header: the header, and the number of the last row that can be."""
