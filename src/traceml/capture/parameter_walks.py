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

    def begin(self, module: Any) -> tuple[int, int]:
        """Returns what `end` wants: when it began, and how many operations autograd had recorded."""
        switch = self._switch
        gap = (switch.step, switch.switches)
        if gap != self._gap:
            self._gap = gap
            self._open.clear()
        self._open.append(id(module))
        return switch.clock(), switch.count_nodes() if switch.count_nodes is not None else 0

    def end(self, module: Any, began: int, nodes: int) -> None:
        """All parameters of this module have been handed out, and what was to be done with them is done."""
        switch, place = self._switch, self._switch.current
        is_same_gap = (switch.step, switch.switches) == self._gap and get_ident() == switch.thread
        if not is_same_gap or not is_wait(place) or id(module) not in self._open:
            return
        at = self._open.index(id(module))
        others = set(self._open[at + 1 :]) - {id(module)}
        del self._open[at:]
        by_hand = switch.backwards > 0 and not self._session.has_optimizer
        if not (others or by_hand) or (switch.count_nodes is not None and switch.count_nodes() != nodes):
            return
        self._session.updated_by_hand |= by_hand
        switch.flush(began)
        switch.current = c.OPTIMIZER
        switch.flush(switch.clock())
        switch.current = place


def wrap_members(original: Any, session: Session) -> Any:
    """`Module._named_members`, from which all iterators over parameters and buffers come."""
    switch, is_compiling = session.switch, session.torch.compiler.is_dynamo_compiling
    walks = ParameterWalks(session)
    begin = failsafe("watching updates", (0, 0))(walks.begin)
    end = failsafe("watching updates", None)(walks.end)

    @functools.wraps(original)
    def _named_members(self: Any, *args: Any, **kwargs: Any) -> Any:
        members = original(self, *args, **kwargs)
        if is_compiling() or not is_wait(switch.current) or get_ident() != switch.thread:
            return members
        began, nodes = begin(self)

        def ended() -> Iterator[Any]:
            end(self, began, nodes)
            yield from ()

        return chain(members, ended())

    setattr(_named_members, ORIGINAL, original)
    return _named_members
