"""How the loops and loaders of frameworks are wrapped: what no call of torch tells about them.

The handlers here only take our own frame out of the user's traceback, and raise again.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

from traceml.capture.session import Session
from traceml.capture.wrap import ORIGINAL, hide_frame
from traceml.errors import failsafe

Function = Callable[..., Any]


def owns_steps(original: Function, session: Session) -> Function:
    """A framework's training loop: a step is one optimizer step, so `trace_step` inside it ends none."""

    @functools.wraps(original)
    def loop(*args: Any, **kwargs: Any) -> Any:
        session.framework_loops += 1
        try:
            return original(*args, **kwargs)
        except BaseException as problem:
            hide_frame(problem)
            raise
        finally:
            session.framework_loops -= 1

    setattr(loop, ORIGINAL, original)
    return loop


def hands_over(original: Function, session: Session) -> Function:
    """`__next__` of a loader that may look ahead: a step counts the batches that it is given."""
    return _recounted(original, session, lambda batch: (batch,))


def looks_ahead(original: Function, session: Session) -> Function:
    """A call that fetches batches and gives none of them."""
    return _recounted(original, session, lambda _: ())


def _recounted(
    original: Function, session: Session, batches_in: Callable[[Any], tuple[Any, ...]]
) -> Function:
    before = failsafe("counting batches", None)(lambda: session.inputs.counted())
    after = failsafe("counting batches", None)(lambda *found: session.inputs.handed_over(*found))

    @functools.wraps(original)
    def fetch(*args: Any, **kwargs: Any) -> Any:
        counted = before()
        try:
            result = original(*args, **kwargs)
        except BaseException as problem:
            hide_frame(problem)
            raise
        if counted is not None:
            after(counted, *batches_in(result))
        return result

    setattr(fetch, ORIGINAL, original)
    return fetch


def hands_over_each(original: Function, session: Session) -> Function:
    """`__iter__`, a generator, of such a loader. With `skip_batches` it first fetches some in vain."""
    take = hands_over(next, session)

    def expect_skips(skips: int) -> None:
        if skips and session.inputs.counted() is not None:
            session.inputs.skips = skips + 1

    expect = failsafe("skipping batches", None)(expect_skips)

    @functools.wraps(original)
    def __iter__(self: Any) -> Iterator[Any]:
        expect(getattr(self, "skip_batches", 0))
        batches = original(self)
        try:
            while True:
                try:
                    yield take(batches)  # no variable: it would keep the batch alive during the next fetch
                except StopIteration:
                    return
        except BaseException as problem:
            hide_frame(problem)
            raise
        finally:
            batches.close()

    setattr(__iter__, ORIGINAL, original)
    return __iter__
