"""Fills the window's arrays from thousands of ranks' rows: a few ranks at a time, whole columns at once.

Rows are stored by rank, a window's values by phase. The rows of a few ranks fit into the CPU's cache, so
reading their columns one after the other costs only one pass over memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import is_
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from traceml.analyze.window import PHASE_KEYS, WAIT, Floats, Window
from traceml.schema import catalog as c
from traceml.schema.recorded import RankRecording

CACHE_ROWS: Final = 2_048
MEMORY_FLAGS: Final = {
    metric.key: c.FLAG_RSS if metric.key == "rss_bytes" else c.FLAG_DEVICE_MEMORY
    for metric in c.STEP_MEMORY_METRICS
}
"""The bit of a row's flags that says whether this memory was read."""
STEP_FIELDS: Final = (
    *("step_ns", "switches", "overhead_ns", "dropped_ns", "more_batches"),
    *("gc_ns", "gc_wait_ns", "busy_wait_ns"),
)
"""Fields of a window with one (rank, step) plane."""
Rows = NDArray[np.void]


class WindowArrays:
    """The arrays of a window: one (rank, step) plane for each phase, wait place and column. Most runs use few
    of them: a plane of zeros costs no memory until it is written, and a plane of NaN is a single number."""

    def __init__(
        self, recordings: Sequence[RankRecording], steps: NDArray[np.int64], user_names: Sequence[str]
    ) -> None:
        shape = (len(recordings), len(steps))
        self._steps = steps
        self._headers = [r.header for r in recordings]
        self._scales = [r.own_scale or 1.0 for r in recordings]
        self._names_of_ranks = [r.user_names for r in recordings]
        self._user_names = user_names
        self._keys = (*PHASE_KEYS, *(f"user.{name}" for name in user_names), WAIT)
        self.phases = np.zeros((len(self._keys), *shape))
        self.places = np.zeros((len(c.WAIT_PLACES), *shape))
        self.fields = {name: np.zeros(shape) for name in STEP_FIELDS}
        self._planes = {
            **dict(zip(self._keys, self.phases, strict=True)),
            **dict(zip((place.key for place in c.WAIT_PLACES), self.places, strict=True)),
            **self.fields,
        }
        self._used = {"step_ns", "switches"}  # the others hold zeros so far
        self.amounts = {name: np.broadcast_to(np.nan, shape) for name in ("samples", "tokens")}
        self.memory = {key: np.broadcast_to(np.nan, shape) for key in MEMORY_FLAGS}
        self.flags = np.zeros(len(steps), dtype=np.uint32)  # of each step: every bit that any row has

    def take_over(self, before: WindowArrays) -> int:
        """Copy the steps that are in this earlier window of the same ranks; returns from which step on
        `fill` must go on. A row may have superseded the last one since then."""
        first = int(self._steps[0] - before._steps[0]) if len(self._steps) and len(before._steps) else 0
        count = len(before._steps) - first - 2
        same_ranks = (
            self._user_names == before._user_names
            and len(self._headers) == len(before._headers)
            and all(map(is_, self._headers, before._headers))
            and self._names_of_ranks == before._names_of_ranks
        )
        if first < 0 or not 1 <= count <= len(self._steps) or not same_ranks:
            return 0
        self._used = set(before._used)
        for name in self._used:
            self._planes[name][:, :count] = before._planes[name][:, first : first + count]
        dropped_ns = self.fields["dropped_ns"]
        dropped_ns[:, count] = before.fields["dropped_ns"][:, first + count]
        dropped_ns[:, 0] = 0.0  # the step before it is not part of the window any more
        for old, new in ((before.amounts, self.amounts), (before.memory, self.memory)):
            for name, plane in old.items():
                if plane.flags.writeable:
                    _writable(new, name)[:, :count] = plane[:, first : first + count]
        self.flags[:count] = before.flags[first : first + count]
        return count

    def fill(self, picked: Sequence[Rows], begin: int = 0) -> None:
        """From the rows of each rank, one row per step of the window from the `begin`-th on."""
        for at, rows in _blocks(picked):
            self._fill_host(at, begin, rows)
            self._fill_user(self.phases, at, begin, rows)
        self._used.update(f"user.{name}" for name in self._user_names)
        # What TraceML cost: estimated for each step, times what each rank measured of that.
        costs = [header.get("overhead", {}) for header in self._headers]
        switch_ns, row_ns = (
            np.array([[float(cost.get(key, 0))] for cost in costs]) for key in ("switch_ns", "row_ns")
        )
        overhead_ns = np.multiply(self.fields["switches"], switch_ns, out=self.fields["overhead_ns"])
        overhead_ns += row_ns
        overhead_ns *= np.array(self._scales)[:, None]

    def _fill_host(self, ranks: slice, begin: int, rows: Rows) -> None:
        at = (ranks, slice(begin, None))
        flags = rows["flags"]
        always = int(np.bitwise_and.reduce(flags, axis=None))
        of_steps = np.bitwise_or.reduce(flags, axis=0)
        self.flags[begin:] |= of_steps
        ever = int(np.bitwise_or.reduce(of_steps))
        for i, key in enumerate(PHASE_KEYS):
            self._put(key, at, rows[key])
            if _blank(self.phases[i][at], flags, 1 << i, always):
                self._used.add(key)
        for place in c.WAIT_PLACES:
            if self._put(place.key, at, rows[place.key]):
                self._put(WAIT, at, self.phases[-1][at] + rows[place.key])
        self.fields["switches"][at] = rows["switches"]
        self._put("more_batches", at, rows["micro_batches"].astype(np.int64) - 1)
        np.subtract(rows["end_ns"], rows["begin_ns"], out=self.fields["step_ns"][at], casting="unsafe")
        between = rows["begin_ns"][:, 1:] - rows["end_ns"][:, :-1]
        self._put("dropped_ns", (ranks, slice(begin + 1, None)), between)
        for name in ("gc", "gc_wait", "busy_wait"):
            if self._put(f"{name}_ns", at, rows[f"{name}_us"]):
                self.fields[f"{name}_ns"][at] *= 1e3
        for name in self.amounts:
            if rows[name].any():
                amount = _writable(self.amounts, name)[at]
                amount[:] = rows[name]
                amount[rows[name] == 0] = np.nan  # 0: the batch size is unknown
        for key, flag in MEMORY_FLAGS.items():
            if ever & flag:
                read = _writable(self.memory, key)[at]
                read[:] = rows[key]
                _blank(read, flags, flag, always)

    def _put(self, name: str, at: tuple[slice, slice], values: NDArray[np.int64] | Floats) -> bool:
        """Copy the values into a plane, which has zeros there; False if all are 0."""
        if not values.any():
            return False
        self._planes[name][at] = values
        self._used.add(name)
        return True

    def _fill_user(self, phases: Floats, at: slice, begin: int, rows: Rows) -> None:
        """By name: ranks may have the same user phase in different columns."""
        for i, name in enumerate(self._user_names, len(PHASE_KEYS)):
            for rank, names in enumerate(self._names_of_ranks[at]):
                if name in names:
                    phases[i, at.start + rank, begin:] = rows[f"user{names.index(name)}"][rank]

    def window(self, ranks: tuple[int, ...], leading: int, device: Sequence[Rows] = ()) -> Window:
        """The window of these arrays without the first steps; with device rows, on the device's clock."""
        used = slice(leading, None)
        flags = int(np.bitwise_or.reduce(self.flags))
        fields: dict[str, Any] = {k: v[:, used] for k, v in (self.fields | self.amounts).items()}
        phases = self.phases[:, :, used]
        if device:
            phases, fields["step_ns"] = self._on_device(phases, device)
        return Window(
            ranks=ranks,
            steps=self._steps[used],
            keys=self._keys,
            clock="device" if device else "host",
            phases=np.moveaxis(phases, 0, 2),
            wait_places=np.moveaxis(self.places[:, :, used], 0, 2),
            memory={key: plane[:, used] for key, plane in self.memory.items()},
            input_inferred=bool(flags & c.FLAG_INPUT_INFERRED),
            steps_inferred=bool(flags & c.FLAG_STEP_INFERRED),
            **fields,
        )

    def _on_device(self, host: Floats, picked: Sequence[Rows]) -> tuple[Floats, Floats]:
        """(phases, steps) by the device's times; the host's rows still say which phases were measured."""
        phases, total = np.zeros(host.shape), np.zeros(host.shape[1:])
        for at, rows in _blocks(picked):
            for i, key in enumerate(PHASE_KEYS):
                phases[i, at] = np.where(np.isnan(host[i, at]), np.nan, rows[key])
            self._fill_user(phases, at, 0, rows)
            phases[-1, at] = rows[WAIT]
            for name in rows.dtype.names or ():
                if name not in ("step", "sequence"):
                    total[at] += rows[name]
        return phases, total


@dataclass(slots=True)
class Before:
    """What one look at a run keeps for the next one, so that the next one reads only new rows. The result
    stays the same: if anything but the newest steps has changed, all rows are read again."""

    arrays: WindowArrays | None = None
    """The last window's."""
    checked: dict[int, tuple[dict[str, Any], int]] = field(default_factory=dict)
    """By the id of a recording's header: the header, and the number of the last row that can be."""


def _writable(planes: dict[str, Floats], name: str) -> Floats:
    """The plane; allocated first if it was NaN everywhere so far."""
    if not planes[name].flags.writeable:
        planes[name] = np.full(planes[name].shape, np.nan)
    return planes[name]


def _blank(plane: Floats, flags: NDArray[np.uint32], bit: int, always: int) -> bool:
    """Set NaN where this bit of the flags says that nothing was measured; False if it was everywhere."""
    if always & bit:
        return False
    plane[(flags & bit) == 0] = np.nan
    return True


def _blocks(picked: Sequence[Rows]) -> Iterator[tuple[slice, Rows]]:
    """(which ranks, their rows as one array over (rank, step)), as many ranks as fit into the cache."""
    count = len(picked[0]) if picked else 0
    if not count:
        return
    few = max(1, CACHE_ROWS // count)
    dtype = picked[0].dtype
    block = np.empty((few, count), dtype=dtype)
    as_bytes = block.view(np.uint8).reshape(few, -1)
    for begin in range(0, len(picked), few):
        ranks = picked[begin : begin + few]
        for i, rows in enumerate(ranks):
            if rows.dtype == dtype and rows.flags.c_contiguous:
                as_bytes[i] = rows.view(np.uint8)
            else:
                for name in dtype.names or ():
                    block[name][i] = rows[name]
        yield slice(begin, begin + len(ranks)), block[: len(ranks)]
