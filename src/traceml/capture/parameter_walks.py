"""Updates that no optimizer makes: code that walks over the parameters of a module, and changes them.

Two networks walked over in step are an exponential average, a target network or a copy. Where no optimizer
steps, a walk after the backward pass is the update itself. Any other walk (logging, counting) stays `wait`,
and one in which autograd records operations is a part of the loss.
"""

import functools
from collections.abc import Iterator
from itertools import chain
from threading import get_ident
from typing import Any

from traceml.capture.session import Session
from traceml.capture.slots import is_wait
from traceml.capture.wrap import ORIGINAL
from traceml.errors import failsafe
from traceml.schema import catalog as c


class ParameterWalks:
    """The walks over parameters and buffers that began in the running gap and have not come to their end."""

    def __init__(self, session: Session) -> None:
        self._session, self._switch = session, session.switch
        self._gap = (0, 0)
        self._open: list[int] = []  # ids of modules

    def watched(self, module: int, members: Iterator[Any]) -> Iterator[Any]:
        """The members of a module with this id, and a look at what was done with them after the last one."""
        switch = self._switch
        gap = (switch.step, switch.switches)
        if gap != self._gap:
            self._gap = gap
            self._open.clear()
        self._open.append(module)
        return chain(members, self._ended(module, switch.clock(), self._nodes()))

    def _nodes(self) -> int:
        return self._switch.count_nodes() if self._switch.count_nodes is not None else 0

    def _ended(self, module: int, began: int, nodes: int) -> Iterator[Any]:
        switch, place = self._switch, self._switch.current
        is_same_gap = (switch.step, switch.switches) == self._gap and get_ident() == switch.thread
        if not is_same_gap or not is_wait(place) or module not in self._open:
            return
        at = self._open.index(module)
        others = set(self._open[at + 1 :]) - {module}
        del self._open[at:]
        by_hand = switch.backwards > 0 and not self._session.has_optimizer
        if (others or by_hand) and self._nodes() == nodes:
            self._session.updated_by_hand |= by_hand
            self._charge(began, place)
        yield from ()

    @failsafe("timing an update by hand", None)
    def _charge(self, began: int, place: int) -> None:
        self._switch.flush(max(began, self._switch.since))  # a walk inside this one may have been charged
        self._switch.current = c.OPTIMIZER
        self._switch.flush(self._switch.clock())
        self._switch.current = place


def wrap_members(original: Any, session: Session) -> Any:
    """`Module._named_members`, from which all iterators over parameters and buffers come."""
    switch, is_compiling = session.switch, session.torch.compiler.is_dynamo_compiling
    watched = ParameterWalks(session).watched

    @functools.wraps(original)
    def _named_members(self: Any, *args: Any, **kwargs: Any) -> Any:
        members = original(self, *args, **kwargs)
        if is_compiling() or switch.current < c.FIRST_WAIT or get_ident() != switch.thread:
            return members
        return watched(id(self), members)

    setattr(_named_members, ORIGINAL, original)
    return _named_members
