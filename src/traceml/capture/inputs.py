"""Where batches come from: which loader feeds the training, or whether the gap before a forward was input.

The role of a loader's iterator is learned from what its batch is used for. Roles belong to iterators, not to
loaders, so that evaluating on the training loader works. Iterators and batches are held by weak references.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

from traceml.capture.batch import first_array
from traceml.capture.switch import PENDING_FETCH, Switch
from traceml.schema import catalog as c


class LoaderStart(NamedTuple):
    """`iter(loader)` of a training loader: when, and how many workers it started."""

    began: int
    ended: int
    workers: int


class Inputs:
    """What is known about the input of this process."""

    def __init__(self, switch: Switch, torch: Any) -> None:
        self._switch = switch
        self._torch = torch
        self.unresolved: list[weakref.ref[Any]] = []  # iterators whose role is not known yet
        self.candidate: weakref.ref[Any] | None = None  # the iterator that may feed the first step
        self._last: weakref.ref[Any] | None = None
        self.has_loader = False  # a loader feeds the training
        self.inferred = False  # the running step's input is a gap that looked like it

    def role_of(self, iterator: Any, is_training: bool) -> int:
        """First fetch of a loader's iterator: evaluation if gradients are off, else not known yet."""
        if not self._torch.is_grad_enabled():
            iterator._traceml_role = c.VALIDATION
            return c.VALIDATION
        if not is_training and (self.candidate is None or iterator is not self.candidate()):
            # Looking at a batch before training is no step: the step starts with what feeds it.
            self._switch.restart(self._switch.clock())
            self.unresolved.clear()
            self.candidate = weakref.ref(iterator)
        if all(reference() is not iterator for reference in self.unresolved):
            self.unresolved.append(weakref.ref(iterator))
            self._switch.attention = 1
        return PENDING_FETCH

    def loader_started(self, iterator: Any, began: int, ended: int, is_training: bool) -> None:
        """`iter(loader)` returned: worker start-up is input, if this turns out to be training."""
        # Persistent workers hand out the same iterator each epoch: its role is open again.
        for name in ("_traceml_role", "_traceml_trains"):
            iterator.__dict__.pop(name, None)
        self._switch.attention = 1
        if self._torch.is_grad_enabled():
            iterator._traceml_started = LoaderStart(began, ended, getattr(iterator, "_num_workers", 0))
            if not is_training:
                self.candidate = weakref.ref(iterator)

    def resolve(self, role: int) -> list[LoaderStart]:
        """What the open iterators are for; returns the starts of those that feed the training."""
        self._switch.move(PENDING_FETCH, role)
        starts = []
        for reference in self.unresolved:
            iterator = reference()
            if iterator is not None:
                iterator._traceml_role, iterator._traceml_trains = role, role == c.INPUT
                started = iterator.__dict__.pop("_traceml_started", None)
                if role == c.INPUT and started is not None:
                    starts.append(started)
        self.unresolved.clear()
        if role == c.INPUT:
            self.has_loader = True
        else:
            self._switch.forget_counts()
        return starts

    def infer(self, args: Any, kwargs: Any, is_first: bool, in_block: bool) -> None:
        """No loader in sight: the gap before this forward was input, if the data is new.

        Not in the first step, and not in a `trace_step` block, whose begin has settled what was input.
        """
        array = first_array(args) if args else None
        if array is None:
            array = first_array(kwargs)
        known = self._last() if self._last is not None else None
        place, shape = self._switch.current, getattr(array, "shape", None)
        is_gap = place in (c.WAIT_START, c.WAIT_BACKWARD)
        if is_gap and isinstance(shape, Sequence) and shape and isinstance(shape[0], int):
            self._switch.samples += shape[0]
        if array is None or array is known:
            return
        try:
            self._last = weakref.ref(array)
        except TypeError:
            return  # nothing to recognise it by
        if is_gap and not in_block and not (is_first and known is None):
            self._switch.flush(self._switch.clock())
            self._switch.move(place, c.INPUT)
            self.inferred = True
