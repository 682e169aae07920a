"""Calls everything that a sanitized build of the C switch offers, with hostile arguments, in random order.

`python fuzz_switch.py MODULE SEED CALLS`, under the sanitizers that MODULE was built with. It prints how many
calls returned and how many raised, and how many references were left behind.
"""

from __future__ import annotations

import gc
import importlib.machinery
import importlib.util
import mmap
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any


def load(path: str) -> Any:
    """This binary as `traceml.capture._switch`, set up by switch.py as always."""
    name = "traceml.capture._switch"
    loader = importlib.machinery.ExtensionFileLoader(name, path)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    from traceml.capture.switch import c_module

    assert c_module is module, "another build is in use"
    return module


class Fuzz:
    """A few objects of each type of the module, and everything that can be done with them."""

    def __init__(self, module: Any, seed: int) -> None:
        self.random = random.Random(seed)
        self.types: list[Any] = [kind for kind in vars(module).values() if isinstance(kind, type)]
        self.switches = [module.Switch() for _ in range(3)]
        for switch in self.switches:
            switch.thread = threading.get_ident()
        self.objects: list[Any] = [*self.switches]
        self.depth = 0
        self.done: Counter[str] = Counter()

    def step(self) -> None:
        """One random operation; any exception is fine, a crash is not."""
        what = self.random.choice((self.call, self.call, self.call, self.attribute, self.make))
        try:
            what()
            self.done["returned"] += 1
        except SystemError:
            raise  # the C code broke a rule of Python's
        except Exception:  # noqa: BLE001 - every answer but a crash is an answer
            self.done["raised"] += 1

    def call(self) -> None:
        target = self.random.choice(self.objects)
        names = [name for name in dir(target) if not name.startswith("__") or name == "__init__"]
        method = getattr(target, self.random.choice(names), None)
        if callable(target) and self.random.random() < 0.5:
            method = target
        if callable(method):
            method(*(self.value() for _ in range(self.random.choice((0, 1, 1, 2, 2, 3, 5, 7)))))

    def attribute(self) -> None:
        target = self.random.choice(self.objects)
        name = self.random.choice([name for name in dir(target) if not name.startswith("__")] or ["mark"])
        if self.random.random() < 0.15:
            delattr(target, name)
        else:
            setattr(target, name, self.value())
        getattr(target, name, None)

    def make(self) -> None:
        """A new object, made as it is meant to be or with anything."""
        kind = self.random.choice(self.types)
        switch = self.random.choice(self.switches)
        meant = [
            *(self.callback() for _ in range(4)),
            switch,
            self.random.randrange(6),
            self.random.randrange(20),
        ]
        arguments = (
            meant if self.random.random() < 0.5 else [self.value() for _ in range(self.random.randrange(9))]
        )
        made = kind.__new__(kind)
        made.__init__(*arguments)  # a second time, too, and with what failed the first time
        if len(self.objects) < 24:
            self.objects.append(made)
        else:
            self.objects[self.random.randrange(3, 24)] = made

    def callback(self) -> Callable[..., Any]:
        """Something that the C code may call: it answers anything, raises, or does one more operation."""
        answers: tuple[Any, ...] = (None, True, False, 0, -1, 2**63, [], [Shaped()], [Vanishing()], "x")

        def called(*_args: Any, **_kwargs: Any) -> Any:
            kind = self.random.random()
            if kind < 0.15:
                raise RuntimeError("on purpose")
            if kind < 0.5 and self.depth < 3:
                self.depth += 1
                try:
                    self.step()
                finally:
                    self.depth -= 1
            return self.random.choice(answers)

        return called

    def value(self) -> Any:
        draw = self.random
        small, edge = (
            draw.randrange(-12, 70),
            draw.choice((2**31, 2**32, 2**63 - 1, -(2**63), 2**64, -(2**70))),
        )
        return draw.choice(
            (
                *(small, small, small, edge, 0, 8, 400, 0.5, None, True, "text", b"frozen", (), Shaped()),
                *(
                    bytearray(draw.choice((0, 1, 64, 400, 4000))),
                    memoryview(bytearray(400))[1:],
                    mmap.mmap(-1, 4096),
                ),
                *(self.callback(), self.callback(), draw.choice(self.objects), draw.choice(self.switches)),
            )
        )


class Shaped:
    """Looks like a batch and like a module; its size is anything."""

    training = True
    _traceml_trains = True
    shape = (2**70,)


class Vanishing:
    """The last reference to it goes while its attribute is read."""

    @property
    def shape(self) -> Any:
        for holder in gc.get_referrers(self):
            if isinstance(holder, list):
                holder.clear()
        return (3,)


def leaked(module: Any, rounds: int) -> int:
    """References that usual calls leave behind."""
    from traceml.capture import wrap
    from traceml.capture.slots import ROW
    from traceml.recording.layout import padded_row_size
    from traceml.schema import catalog as c

    size = padded_row_size(ROW.size)
    switch = module.Switch()
    switch.thread = threading.get_ident()
    rows, live, mark = bytearray(8000), bytearray(8), lambda *_: None
    wrapped = wrap.seam(wrap.BACKWARD, c.BACKWARD, switch, lambda *_: live, print, mark, mark)

    def use() -> None:
        switch.attention, switch.mark = 0, mark
        switch.rows_into(rows, 0, 8000 // size * size, size, 0)
        switch.show_in(live, 0)
        wrapped(rows, live)
        outer = switch.enter_compute(c.OPTIMIZER)
        switch.leave(outer)
        switch.ends_step(rows)
        switch.publish(switch.since, 0)
        for name, arguments in (("move", (99, 0)), ("rows_into", (b"", 0, 0, 8, 0)), ("enter", ("",))):
            try:
                getattr(switch, name)(*arguments)
            except (ValueError, TypeError, BufferError):
                pass
        switch.__init__()
        switch.thread = threading.get_ident()

    watched = (rows, live, mark, None, switch, module.Switch, wrapped)
    use()
    before = [sys.getrefcount(one) for one in watched]
    for _ in range(rounds):
        use()
    grown = [sys.getrefcount(one) - count for one, count in zip(watched, before, strict=True)]
    return sum(abs(more) for more in grown if abs(more) > rounds // 2)  # None is used by everybody


def main() -> None:
    module = load(sys.argv[1])
    print("leaked", leaked(module, 200))
    fuzz = Fuzz(module, int(sys.argv[2]))
    for _ in range(int(sys.argv[3])):
        fuzz.step()
    print("returned", fuzz.done["returned"], "raised", fuzz.done["raised"])


if __name__ == "__main__":
    main()
