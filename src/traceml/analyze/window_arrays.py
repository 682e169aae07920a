"""Fills the window's arrays from thousands of ranks' rows: a few ranks at a time, whole columns at once.

Rows are stored by rank, a window's values by phase. The rows of a few ranks fit into the CPU's cache, so
reading their columns one after the other costs only one pass over memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

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
Rows = NDArray[np.void]


class WindowArrays:
    """The arrays of a window: one (rank, step) plane for each phase, wait place and column. Most runs use few
    of them: a plane of zeros costs no memory until it is written, and a plane of NaN is a single number."""

    def __init__(self, recordings: Sequence[RankRecording], steps: int, user_names: Sequence[str]) -> None:
        shape = (len(recordings), steps)
        self._recordings = recordings
        self._user_names = user_names
        self.phases = np.zeros((len(PHASE_KEYS) + len(user_names) + 1, *shape))
        self.places = np.zeros((len(c.WAIT_PLACES), *shape))
        self.step_ns = np.empty(shape)
        self.overhead_ns = np.empty(shape)
        self.switches, self.dropped_ns = np.empty(shape), np.zeros(shape)
        self.more_batches = np.zeros(shape)
        self.parts = {name: np.zeros(shape) for name in ("gc_us", "gc_wait_us", "busy_wait_us")}
        self.amounts = {name: np.broadcast_to(np.nan, shape) for name in ("samples", "tokens")}
        self.memory = {key: np.broadcast_to(np.nan, shape) for key in MEMORY_FLAGS}
        self.flags = 0  # every bit that any row has

    def fill(self, picked: Sequence[Rows]) -> None:
        """From the rows of each rank, one row per step of the window."""
        for at, rows in _blocks(picked):
            self._fill_host(at, rows)
            self._fill_user(at, rows)
            costs = [r.header.get("overhead", {}) for r in self._recordings[at]]
            self.switches[at] = rows["switches"]
            _put(self.more_batches[at], rows["micro_batches"].astype(np.int64) - 1)
            self.overhead_ns[at] = self.switches[at] * np.array(
                [[float(cost.get("switch_ns", 0))] for cost in costs]
            )
            self.overhead_ns[at] += np.array([[float(cost.get("row_ns", 0))] for cost in costs])
            self.overhead_ns[at] *= np.array([[r.own_scale or 1.0] for r in self._recordings[at]])

    def _fill_host(self, at: slice, rows: Rows) -> None:
        flags = rows["flags"]
        always = int(np.bitwise_and.reduce(flags, axis=None))
        ever = int(np.bitwise_or.reduce(flags, axis=None))
        for i, key in enumerate(PHASE_KEYS):
            _put(self.phases[i, at], rows[key])
            _blank(self.phases[i, at], flags, 1 << i, always)
        for i, place in enumerate(c.WAIT_PLACES):
            if _put(self.places[i, at], rows[place.key]):
                self.phases[-1, at] += self.places[i, at]
        np.subtract(rows["end_ns"], rows["begin_ns"], out=self.step_ns[at], casting="unsafe")
        _put(self.dropped_ns[at, 1:], rows["begin_ns"][:, 1:] - rows["end_ns"][:, :-1])
        for name, plane in self.parts.items():
            if _put(plane[at], rows[name]):
                plane[at] *= 1e3
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
        self.flags |= ever

    def _fill_user(self, at: slice, rows: Rows) -> None:
        """By name: ranks may have the same user phase in different columns."""
        for i, name in enumerate(self._user_names, len(PHASE_KEYS)):
            for rank, recording in enumerate(self._recordings[at]):
                if name in recording.user_names:
                    column = f"user{recording.user_names.index(name)}"
                    self.phases[i, at.start + rank] = rows[column][rank]

    def leave_out(self, leading: int) -> None:
        """Drop the first steps."""
        self.phases, self.places = self.phases[:, :, leading:], self.places[:, :, leading:]
        for name in ("step_ns", "overhead_ns", "switches", "more_batches", "dropped_ns"):
            setattr(self, name, getattr(self, name)[:, leading:])
        for planes in (self.parts, self.amounts, self.memory):
            planes.update({name: plane[:, leading:] for name, plane in planes.items()})

    def window(self, ranks: tuple[int, ...], steps: NDArray[np.int64]) -> Window:
        """The window of these arrays."""
        return Window(
            ranks=ranks,
            steps=steps,
            keys=(*PHASE_KEYS, *(f"user.{name}" for name in self._user_names), WAIT),
            phases=np.moveaxis(self.phases, 0, 2),
            step_ns=self.step_ns,
            overhead_ns=self.overhead_ns,
            switches=self.switches,
            more_batches=self.more_batches,
            dropped_ns=self.dropped_ns,
            wait_places=np.moveaxis(self.places, 0, 2),
            memory=self.memory,
            input_inferred=bool(self.flags & c.FLAG_INPUT_INFERRED),
            steps_inferred=bool(self.flags & c.FLAG_STEP_INFERRED),
            gc_ns=self.parts["gc_us"],
            gc_wait_ns=self.parts["gc_wait_us"],
            busy_wait_ns=self.parts["busy_wait_us"],
            samples=self.amounts["samples"],
            tokens=self.amounts["tokens"],
        )

    def use_device(self, picked: Sequence[Rows]) -> None:
        """Replace the host's times by the device's; the host's rows still say which phases were measured."""
        for at, rows in _blocks(picked):
            total = np.zeros(rows.shape)
            for i, key in enumerate(PHASE_KEYS):
                measured = ~np.isnan(self.phases[i, at])
                self.phases[i, at] = np.where(measured, rows[key], np.nan)
            self._fill_user(at, rows)
            self.phases[-1, at] = rows[WAIT]
            for name in rows.dtype.names or ():
                if name not in ("step", "sequence"):
                    total += rows[name]
            self.step_ns[at] = total


def _put(plane: Floats, values: NDArray[np.int64]) -> bool:
    """Copy the values into a plane of zeros; False if all are 0."""
    if not values.any():
        return False
    plane[:] = values
    return True


def _writable(planes: dict[str, Floats], name: str) -> Floats:
    """The plane; allocated first if it was NaN everywhere so far."""
    if not planes[name].flags.writeable:
        planes[name] = np.full(planes[name].shape, np.nan)
    return planes[name]


def _blank(plane: Floats, flags: NDArray[np.uint32], bit: int, always: int) -> None:
    """Set NaN where this bit of the flags says that nothing was measured."""
    if not always & bit:
        plane[(flags & bit) == 0] = np.nan


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
