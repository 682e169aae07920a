"""The C seam: it times the usual call without a Python frame and hands everything else to its twin."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from traceml.capture import wrap
from traceml.capture.switch import Switch, c_module
from traceml.schema import catalog as c

pytestmark = pytest.mark.skipif(c_module is None, reason="the C module is not built here")


class Made:
    """A seam around `original`, with a note of who else was called."""

    def __init__(
        self, original: Callable[..., Any], kind: int = wrap.BACKWARD, slot: int = c.BACKWARD
    ) -> None:
        self.switch = Switch()
        self.switch.thread = threading.get_ident()
        self.switch.attention = 0
        self.said: list[Any] = []

        def twin(*args: Any, **kwargs: Any) -> Any:
            self.said.append("twin")
            return original(*args, **kwargs)

        def failed(slot: int, problem: BaseException) -> None:
            self.said.append((slot, type(problem)))

        def extra(*_: Any) -> bool:
            self.said.append("extra")
            return True

        self.seam = wrap.seam(kind, slot, self.switch, original, twin, failed, extra)


def test_usual_call_is_timed_without_its_twin() -> None:
    """Arguments, names and the result pass through, and the time is charged to the phase."""
    made = Made(lambda *args, **kwargs: (args, kwargs, made.switch.current))
    assert made.seam(1, 2, name=3) == ((1, 2), {"name": 3}, c.BACKWARD)
    assert made.switch.charged(c.BACKWARD) > 0
    assert made.switch.current == c.WAIT_BACKWARD
    assert made.said == []


def test_unusual_call_is_the_twins() -> None:
    """While the session wants to look closer, its Python twin does the work."""
    made = Made(lambda: 5)
    made.switch.attention = 1
    assert made.seam() == 5
    assert made.said == ["twin"]


@pytest.mark.parametrize("where", ["inside a phase", "another thread"])
def test_call_that_is_not_ours_passes_straight_through(where: str) -> None:
    """Nothing is charged, and the session is not called."""
    made = Made(lambda: 5)
    if where == "inside a phase":
        made.switch.current = c.FORWARD
    else:
        made.switch.thread = -1
    before = made.switch.switches
    assert made.seam() == 5
    assert made.switch.switches == before
    assert made.said == []


def test_exception_passes_with_its_own_traceback() -> None:
    """The phase is left, the session is called, and no frame of ours is in the traceback."""

    def original() -> None:
        raise ValueError("the user's own")

    made = Made(original)
    with pytest.raises(ValueError, match="the user's own") as raised:
        made.seam()
    assert [entry.name for entry in raised.traceback] == [sys._getframe().f_code.co_name, "original"]
    assert made.said == [(c.BACKWARD, ValueError)]
    assert made.switch.current == c.WAIT_BACKWARD


def test_seam_is_a_method_of_its_class() -> None:
    """`self` is bound as for a function, and inspection sees the original."""

    class Model:
        training = True

        def __call__(self, x: int, *, scale: int = 1) -> int:
            """Doubles."""
            return 2 * x * scale

    made = Made(Model.__call__, wrap.FORWARD, c.FORWARD)
    Model.__call__ = made.seam  # type: ignore[method-assign]
    assert Model()(4, scale=3) == 24
    assert made.said == ["extra"]  # whether gradients are on
    assert Model.__call__.__doc__ == "Doubles."
    assert list(inspect.signature(Model.__call__).parameters) == ["self", "x", "scale"]


def test_batch_is_counted_without_python() -> None:
    """A list whose first item has a shape is the usual batch; any other kind is the session's to count."""

    class Array:
        shape = (32, 8)

    class Iterator:
        _traceml_trains = True

    made = Made(lambda _self: [Array()], wrap.FETCH, c.INPUT)
    made.seam(Iterator())
    assert (made.switch.fetches, made.switch.samples, made.said) == (1, 32, [])
    for batch in ([], {"x": 1}, [object()]):
        made = Made(lambda _self, batch=batch: batch, wrap.FETCH, c.INPUT)
        assert made.seam(Iterator()) is batch
        assert made.said == ["extra"]


def test_length_of_a_tensor_is_its_samples() -> None:
    """It is the length that its base has in C; if that is 0, as for a scalar, its shape decides."""

    class Tensor(dict[int, int]):
        shape = (0, 4)

    c_module.tensors_are(Tensor, dict)
    for batch, samples in ((Tensor({1: 1, 2: 2}), 2), ([Tensor({1: 1})], 1), (Tensor(), 0)):
        made = Made(lambda _self, batch=batch: batch, wrap.FETCH, c.INPUT)
        made.seam(type("Iterator", (), {"_traceml_trains": True})())
        assert (made.switch.fetches, made.switch.samples, made.said) == (1, samples, [])


def test_iterator_is_asked_again_after_another_began() -> None:
    """An iterator is known by its address until a loader begins, whose iterator may have the same."""

    class Iterator:
        _traceml_trains = True

    made, iterator = Made(lambda _self: [], wrap.FETCH, c.INPUT), Iterator()
    made.seam(iterator)
    Iterator._traceml_trains = False
    made.seam(iterator)
    assert "twin" not in made.said
    made.switch.loader = 0
    made.seam(iterator)
    assert "twin" in made.said


def test_training_mode_is_found_through_getattr() -> None:
    """A module whose `training` only `__getattr__` knows (a scripted one) is trained like any other."""

    class Scripted:
        def __getattr__(self, name: str) -> bool:
            return name == "training"

    made = Made(lambda _self: made.switch.current, wrap.FORWARD, c.FORWARD)
    assert made.seam(Scripted()) == c.FORWARD
    assert made.said == ["extra"]


def test_nested_calls_use_no_recursion_depth() -> None:
    """As deep as the plain function can call itself, it can through the seam."""

    def depth(of: Callable[[int], int]) -> int:
        try:
            return of(0)
        except RecursionError:
            return 0

    def plain(level: int) -> int:
        return plain(level + 1) if level < 400 else level

    def through(level: int) -> int:
        return int(made.seam(level + 1)) if level < 400 else level

    made = Made(through)
    assert depth(plain) == depth(made.seam) == 400
