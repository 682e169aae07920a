"""Timing of DataLoader: worker start-up and each batch. `iter(loader)` still returns what PyTorch returns."""

from __future__ import annotations

import functools
from collections.abc import Callable
from threading import get_ident
from typing import Any

from traceml.capture.session import Session
from traceml.capture.switch import PASS, PENDING_FETCH
from traceml.capture.wrap import ORIGINAL, hide_frame
from traceml.errors import failsafe
from traceml.schema import catalog as c


def wrap_next(original: Callable[..., Any], session: Session) -> Callable[..., Any]:
    """`__next__` of PyTorch's loader iterators: the training thread waits for a batch."""
    switch = session.switch
    enter, leave = switch.enter, switch.leave
    tensor, count = session.torch.Tensor, switch.fetched
    role_of = failsafe("loader detection", c.INPUT, session.off)(session.role_of)
    fetched = failsafe("batch size detection", None, session.off)(session.fetched)

    @functools.wraps(original)
    def __next__(self: Any) -> Any:
        try:
            role = self._traceml_role
        except AttributeError:
            if switch.current < c.FIRST_USER or get_ident() != switch.thread:
                return original(self)
            role = role_of(self)
        outer = enter(role) if role != c.VALIDATION else switch.enter_validation()
        if outer == PASS:
            return original(self)
        if session.aborted:
            session.drop_step()  # the step that failed ends here; this batch is the next one's
        try:
            batch = original(self)
        except BaseException as problem:
            leave(outer)
            hide_frame(problem)
            raise
        leave(outer)
        if role == c.VALIDATION:
            return batch
        if not session.attention and type(batch) is list and type(batch[0]) is tensor:
            shape = batch[0].shape  # the usual case, without a detour
            count(shape[0] if shape else 0, 0)
        else:
            fetched(batch)
        return batch

    setattr(__next__, ORIGINAL, original)
    return __next__


def wrap_iter(original: Callable[..., Any], session: Session) -> Callable[..., Any]:
    """`DataLoader.__iter__`: starts the workers, once an epoch."""
    switch = session.switch
    starts = failsafe("loader detection", None, session.off)(session.loader_starts)
    started = failsafe("loader detection", None, session.off)(session.loader_started)

    @functools.wraps(original)
    def __iter__(self: Any) -> Any:
        if switch.current < c.FIRST_USER or get_ident() != switch.thread:
            return original(self)
        if session.aborted:
            session.drop_step()
        starts()
        grad = session.torch.is_grad_enabled()
        outer = switch.enter_inside(PENDING_FETCH) if grad else switch.enter_validation()
        began = switch.since
        try:
            iterator = original(self)
        except BaseException as problem:
            switch.leave(outer)
            hide_frame(problem)
            raise
        ended = switch.leave(outer)
        # Persistent workers hand out the same iterator each epoch: its role is open again.
        vars(iterator).pop("_traceml_role", None)
        started(iterator, began, ended)
        return iterator

    setattr(__iter__, ORIGINAL, original)
    return __iter__
