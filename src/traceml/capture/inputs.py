"""Where batches come from: which loader feeds the training, or whether the gap before a forward was input.

The role of a loader's iterator is learned from what its batches are used for: a batch that reaches a backward
pass is training, whatever ran on it before. Roles belong to iterators, not to loaders, so that evaluating on
the training loader works. Iterators and batches are held by weak references.
"""

import inspect
import sys
import weakref
from collections.abc import Mapping, Sequence
from threading import get_ident
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from traceml.capture import slots
from traceml.capture.slots import PENDING_EVAL, PENDING_FETCH
from traceml.capture.switch import Switch
from traceml.schema import catalog as c

if TYPE_CHECKING:
    from traceml.capture.session import Session

EARLY_TRIES: Final = 4
EARLY_ENOUGH: Final = 2
MOST_FRAMES: Final = 3
MOST_TENSORS: Final = 256
_LIBRARIES: Final = ("torch", "traceml")


class Inputs:
    """What is known about the input of this process."""

    def __init__(self, switch: Switch, torch: Any, session: "Session") -> None:
        self._switch, self._torch, self._session = switch, torch, session
        self.unresolved: list[weakref.ref[Any]] = []  # iterators whose role is not known yet
        self.used = False  # a forward pass without gradients has used a batch of theirs
        self._sizes: list[tuple[int, int]] = []  # of their batches
        self.skips = 0  # batches that a resumed training skips, and one for the batch after them
        self.feeds_validation = False  # the newest batch is of a validation loader
        self.candidate: weakref.ref[Any] | None = None  # the iterator that may feed the first step
        self._last: weakref.ref[Any] | None = None
        self.has_loader = False  # a loader feeds the training
        self.read_elsewhere = False  # one was started, but this thread has not read it
        self.early = EarlyBatch(torch)
        self._trained_rows = 0
        self._trained: weakref.ref[Any] | None = None  # a module that was trained
        self._evaluated: weakref.ref[Any] | None = None  # a module that ran in eval mode with gradients
        self._evaluated_at = -9  # the step before which a model in eval mode last ran between steps
        self._evaluates_always = False  # and whether it did so before the steps before, too

    def is_open(self, iterator: Any) -> bool:
        """Whether this is one of the iterators without a role."""
        return any(reference() is iterator for reference in self.unresolved)

    def role_of(self, iterator: Any) -> int | None:
        """What a batch is fetched for, if that is known."""
        self.read_elsewhere = False
        if self.used and not self.is_open(iterator):
            self.resolve(c.VALIDATION)  # the loader before fed no backward pass
        if self.skips:
            self.skips -= 1
            if not self._session.stepping:
                self._session.restart()
            if self.skips:
                return slots.SKIPPED
        role: int | None = getattr(iterator, "_traceml_role", None)
        if role is None and not self._torch.is_grad_enabled():
            role = iterator._traceml_role = c.VALIDATION
        self.feeds_validation = role == c.VALIDATION
        return role

    def open(self, iterator: Any, is_training: bool) -> int:
        """First fetch of a loader's iterator, with gradients on: its role is not known yet."""
        if not is_training and (self.candidate is None or iterator is not self.candidate()):
            # Looking at a batch before training is no step: the step starts with what feeds it.
            self._session.restart()
            self._forget()
            self.candidate = weakref.ref(iterator)
        if not self.is_open(iterator):
            self.unresolved.append(weakref.ref(iterator))
            self._switch.attention = 1
            if not hasattr(iterator, "_traceml_started"):  # of a loader class with an `__iter__` of its own
                now = self._switch.since
                iterator._traceml_started = (now, now, getattr(iterator, "_num_workers", 0))
        return PENDING_FETCH

    def loader_started(self, iterator: Any, began: int, ended: int, is_training: bool) -> None:
        """`iter(loader)` returned: worker start-up is input, if this turns out to be training."""
        # Persistent workers hand out the same iterator each epoch: its role is open again. To ask for its
        # `__dict__` would make every attribute of it slower from then on.
        iterator._traceml_role, iterator._traceml_trains = None, False
        self._switch.loader = 0  # it may have the address of one that is gone
        self.read_elsewhere = True
        self._switch.attention = 1
        if self._torch.is_grad_enabled():
            iterator._traceml_started = (began, ended, getattr(iterator, "_num_workers", 0))
            if not is_training:
                self.candidate = weakref.ref(iterator)

    def fetched(self, batch: Any, is_open: bool) -> None:
        """A batch of a loader that is, or may be, the training loader."""
        if is_open:
            self._sizes.append(size_of(batch))
        else:
            self._switch.fetched(*size_of(batch))

    def counted(self) -> tuple[int, int, int, int, int] | None:
        """Before a framework's loader is asked for a batch: the step, how many sizes are open, and the
        batches, samples and tokens that the step has got so far. None where nothing is counted."""
        switch = self._switch
        if switch.current < c.FIRST_USER or get_ident() != switch.thread:
            return None
        return switch.step, len(self._sizes), switch.fetches, switch.samples, switch.tokens

    def handed_over(self, before: tuple[int, int, int, int, int], *batches: Any) -> None:
        """The loader gave these batches. They count, not those that a loader which fetches ahead has read."""
        switch, (step, sizes, *counts) = self._switch, before
        if self.feeds_validation:
            return
        if self.unresolved:
            del self._sizes[sizes if sizes <= len(self._sizes) else 0 :]
            self._sizes.extend(map(size_of, batches))
            return
        if switch.step == step:
            switch.fetches, switch.samples, switch.tokens = counts
        else:
            switch.fetches = switch.samples = switch.tokens = 0  # a step ended in between
        for batch in batches:
            switch.fetched(*size_of(batch))

    def resolve(self, role: int) -> None:
        """The role of the open iterators is now known, and with it that of the passes without gradients so
        far."""
        switch, trains = self._switch, role == c.INPUT
        self._session.rename(PENDING_FETCH, role)
        self._session.rename(slots.PENDING_NO_GRAD, c.NO_GRAD if trains else c.VALIDATION)
        self._session.rename(slots.PENDING_GAP, c.WAIT_NO_GRAD if trains else c.VALIDATION)
        self._session.rename(slots.AFTER_PENDING, c.WAIT_NO_GRAD if trains else c.WAIT_OTHER)
        if not trains:
            self._session.rename(PENDING_EVAL, c.VALIDATION)
        if switch.current == slots.AFTER_PENDING:
            switch.current = c.WAIT_NO_GRAD if trains else slots.AFTER_VALIDATION
        for iterator in [i for i in (reference() for reference in self.unresolved) if i is not None]:
            iterator._traceml_role, iterator._traceml_trains = role, trains
            started = getattr(iterator, "_traceml_started", None)
            iterator._traceml_started = None
            if trains and started is not None:
                began, ended, workers = started
                step = switch.step + 1
                self._session.events.add("epoch_start", step, began, ended - began, workers=workers)
        for size in self._sizes if trains else ():
            switch.fetched(*size)
        self.has_loader |= trains
        self.feeds_validation = not trains
        self._forget()

    def _forget(self) -> None:
        self.unresolved.clear()
        self._sizes.clear()
        self.used = False

    def infer(self, args: Any, kwargs: Any, is_first: bool, in_block: bool) -> int:
        """No loader in sight: the gap before this forward was input, if the data is new. Its place, or 0.

        Not in the first step, and not in a `trace_step` block, whose begin has settled what was input.
        """
        array = first_array(args) if args else None
        if array is None:
            array = first_array(kwargs)
        if array is None and args:
            array = args[0]  # a batch of a class of its own
        known = self._last() if self._last is not None else None
        self._trained_rows = _rows(array)
        if array is None or array is known:
            return 0
        try:
            self._last = weakref.ref(array)
        except TypeError:
            return 0  # nothing to recognise it by
        place = self._switch.current
        if self.early.is_made_early(array):
            if not self._switch.input_from:
                self._session.events.add("early_batch", self._switch.step + 1, self._switch.since)
            self._switch.input_from = c.WAIT_FORWARD
        elif place in (c.WAIT_START, c.WAIT_BACKWARD) and not in_block and not (is_first and known is None):
            return place
        return 0

    def infer_after_update(self, *data: Any) -> None:
        """A step without an optimizer ends here: what came after its update by hand may have been input."""
        if place := self.infer(*data):
            self._switch.flush(self._switch.clock())
            self._was_input(place)

    def enter_after(self, place: int, slot: int) -> int:
        """Forward work begins. The time in this place, if it is not 0, was input, except for what autograd
        recorded in the gap, which is forward work."""
        switch = self._switch
        busy_ns = switch.busy_wait_ns
        outer = switch.enter_compute(slot)
        if place:
            switch.busy_wait_ns = busy_ns
            self._was_input(place)
        return outer

    def _was_input(self, place: int) -> None:
        """What this step has spent in this place so far was input."""
        switch = self._switch
        switch.move(place, c.INPUT)
        switch.step_flags |= c.FLAG_INPUT_INFERRED
        if self.read_elsewhere:
            self._session.events.add("loader_on_thread", switch.step + 1, switch.since)
            self.read_elsewhere = False

    def note_evaluated(self, module: Any) -> None:
        """This module is called in eval mode with gradients: by a script that evaluates without no_grad?"""
        is_inside = self._switch.fetches or self._switch.forwards
        self._evaluated = None if is_inside else weakref.ref(module)

    def note_trained(self, module: Any) -> None:
        """This module is called in training mode with gradients; before this step it was evaluated."""
        if self._trained is None or self._trained() is not module:
            self._trained = weakref.ref(module)
        if self._evaluated is not None and self._evaluated() is module:
            self._session.rename(PENDING_EVAL, c.VALIDATION)
        self._evaluated = None

    def enter_without_gradients(self, module: Any, args: Any, has_optimizer: bool) -> int:
        """Validation, or a part of the training step: a teacher, a target, a reference, a rollout."""
        switch = self._switch
        if self.feeds_validation or (switch.current == slots.AFTER_VALIDATION and _is_loss(module)):
            return switch.enter_validation()
        if self.unresolved:
            self.used = True
            switch.attention = 1
            return switch.enter_pending()
        # Without an optimizer that we know, a step is over after its backward pass, but has not ended yet.
        is_over = switch.backwards and not has_optimizer
        is_inside = (switch.fetches or switch.forwards or switch.block_depth) and not is_over
        # Before the first step, and without a loader, nothing tells validation from a first rollout.
        if (
            is_inside
            or not self._session.stepping
            or getattr(module, "training", True)
            or self._is_rollout(args)
        ):
            return switch.enter(c.NO_GRAD)
        return switch.enter_validation() if self._is_validation(module) else switch.enter(c.NO_GRAD)

    def _is_validation(self, module: Any) -> bool:
        """A model in eval mode between steps: the trained one, or one that does not run between all steps."""
        if self._trained is not None and self._trained() is module:
            return True
        step = self._switch.step
        if self._evaluated_at != step:
            self._evaluates_always = step - self._evaluated_at <= 2
            self._evaluated_at = step
        return not self._evaluates_always

    def _is_rollout(self, args: Any) -> bool:
        """Whether a pass gets far fewer rows than a training pass: observations, not validation batches."""
        rows = _rows(first_array(args) if args else None)
        return 0 < 2 * rows <= self._trained_rows


def _is_loss(module: Any) -> bool:
    """A module without parameters belongs to the pass before it. Nobody puts a loss into eval mode."""
    return not (getattr(module, "_parameters", True) or getattr(module, "_modules", True))


def _rows(array: Any) -> int:
    """The batch dimension; a lone vector is one row. 0 if it is not known."""
    shape = getattr(array, "shape", None)
    if not isinstance(shape, Sequence) or not shape or not isinstance(shape[0], int):
        return 0
    return shape[0] if len(shape) > 1 else 1


class EarlyBatch:
    """For loops that make the next batch between the forward and the backward pass of this one.

    If no loader is seen and much time passes there, the variables of the training loop are examined in a few
    steps, then never again. If the tensor that the next forward pass gets was there when the backward pass
    began, it was made in that gap, and the gap is input.
    """

    def __init__(self, torch: Any) -> None:
        self._tensor = torch.Tensor
        self._seen: list[weakref.ref[Any]] = []
        self._tries, self._found = EARLY_TRIES, 0

    @property
    def learning(self) -> bool:
        return self._tries > 0

    def look(self) -> None:
        """A backward pass begins after a long gap: note the tensors that the training loop has."""
        if self._tries and sys.gettrace() is None:
            self._seen = _tensors_of_callers(self._tensor)

    def is_made_early(self, array: Any) -> bool:
        """A forward pass gets this tensor, which is new. Always true once it is settled."""
        if self._seen:
            self._tries -= 1
            self._found += any(reference() is array for reference in self._seen)
            self._seen = []
            if self._found >= EARLY_ENOUGH:
                self._tries = 0
        return self._found >= EARLY_ENOUGH


def _tensors_of_callers(kind: type) -> list[weakref.ref[Any]]:
    found: list[weakref.ref[Any]] = []
    frame: FrameType | None = sys._getframe(1)
    frames = 0
    while frame is not None and frames < MOST_FRAMES:
        if not str(frame.f_globals.get("__name__", "")).startswith(_LIBRARIES):
            frames += 1
            variables = frame.f_locals
            for value in list(variables.values()):
                values = value if type(value) in (list, tuple) and len(value) <= 8 else (value,)
                found += [weakref.ref(v) for v in values if isinstance(v, kind)]
            if frame.f_code.co_flags & inspect.CO_OPTIMIZED and sys.version_info < (3, 13):
                variables.clear()  # a copy that the frame would keep, and the user's objects with it
        frame = frame.f_back
    return found[:MOST_TENSORS]


def first_array(batch: Any, depth: int = 4) -> Any:
    """The first thing with a shape in a batch of tuples, lists and mappings."""
    while depth:
        if hasattr(batch, "shape"):
            return batch
        if isinstance(batch, Mapping):
            batch = next(iter(batch.values()), None)
        elif isinstance(batch, (list, tuple)) and batch:
            batch = batch[0]
        else:
            return None
        depth -= 1
    return None


def size_of(batch: Any) -> tuple[int, int]:
    """(samples, tokens), 0 where that is not known."""
    tokens = 0
    if isinstance(batch, Mapping):
        ids = batch.get("input_ids")
        if ids is not None and hasattr(ids, "numel"):
            tokens = ids.numel()
    shape = getattr(first_array(batch), "shape", None)
    known = isinstance(shape, Sequence) and len(shape) > 0 and isinstance(shape[0], int)
    return shape[0] if known and shape is not None else 0, tokens
