"""Finding the outermost module call, then timing only that.

Wrapping every module's call would cost a wrapper a submodule. So `Module.__call__` is wrapped only while we
learn: until two training steps have completed, and again when another optimizer takes the lead (a second
training in the same process). The classes that were called outermost then get a `__call__` of their own, and
`Module.__call__` is put back. Instances are never touched: they pickle, copy and
compile as before.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, Final

from traceml.capture.session import Session
from traceml.capture.switch import PASS
from traceml.capture.wrap import ORIGINAL, hide_frame
from traceml.errors import failsafe
from traceml.schema import catalog as c

LEARN_STEPS: Final = 2


def _tell_compiler(module_class: Any) -> None:
    """torch.compile keeps a note of the plain `Module.__call__` and looks past exactly that one.

    While ours is in its place the note says ours, so that the compiler looks past it just the same: it
    neither traces it nor depends on it, and taking it out again makes nothing compile anew.
    """
    for name in ("torch._dynamo.utils", "torch._dynamo.variables.nn_module"):
        module = sys.modules.get(name)
        if hasattr(module, "unpatched_nn_module_call"):
            module.unpatched_nn_module_call = module_class.__call__  # type: ignore[union-attr]


class ForwardPatch:
    """The patched classes; knows how to take itself out."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.module_class = session.torch.nn.Module
        self.is_compiling: Callable[[], bool] = session.torch.compiler.is_dynamo_compiling
        self.roots = session.outermost
        self.patched: list[tuple[type, bool]] = []
        self.learning = False
        self.learn_until = LEARN_STEPS
        self.enter_doubtful = failsafe("forward detection", PASS, session.off)(session.enter_forward)

    def install(self) -> None:
        """Start to learn: wrap `Module.__call__` itself."""
        if not self.learning:
            self.learning = self.session.settling = True
            self.learn_until = self.session.step + LEARN_STEPS
            self._patch(self.module_class)
            _tell_compiler(self.module_class)

    def settle(self) -> None:
        """A step completed: from now on wrap only the classes that were seen outermost."""
        if not self.learning or not self.roots or self.session.step < self.learn_until:
            return
        self.learning = self.session.settling = False
        self._unpatch(self.module_class)
        _tell_compiler(self.module_class)
        for cls in self.roots:
            if not any(done is cls for done, _ in self.patched):
                self._patch(cls)

    def uninstall(self) -> None:
        """Put every class back."""
        for cls, _ in list(self.patched):
            self._unpatch(cls)
        _tell_compiler(self.module_class)
        self.learning = False

    def _patch(self, cls: type) -> None:
        own = "__call__" in cls.__dict__
        original = cls.__call__
        if hasattr(original, ORIGINAL):
            return  # a base class is wrapped already
        self.patched.append((cls, own))
        cls.__call__ = self._wrap(original)  # type: ignore[method-assign]

    def _unpatch(self, cls: type) -> None:
        for entry in self.patched:
            if entry[0] is cls:
                self.patched.remove(entry)
                current = cls.__dict__.get("__call__")
                if not hasattr(current, ORIGINAL):
                    return  # somebody wrapped or replaced ours: theirs stays
                if entry[1]:
                    cls.__call__ = getattr(current, ORIGINAL)  # type: ignore[method-assign]
                else:
                    del cls.__call__
                return

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        session, switch = self.session, self.session.switch
        is_compiling, roots, learning = self.is_compiling, self.roots, self.learning
        grad_enabled = session.torch.is_grad_enabled
        enter_compute, leave, enter_doubtful = (
            switch.enter_compute,
            switch.leave,
            self.enter_doubtful,
        )

        @functools.wraps(original)
        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return original(self, *args, **kwargs)
            if session.attention or not grad_enabled() or not self.training:
                outer = enter_doubtful(self, args, kwargs)
            else:
                outer = enter_compute(c.FORWARD)
            if outer == PASS:
                return original(self, *args, **kwargs)
            if learning:
                roots.add(type(self))
            try:
                result = original(self, *args, **kwargs)
            except BaseException as problem:
                leave(outer)
                session.phase_failed(c.FORWARD, problem)
                hide_frame(problem)
                raise
            leave(outer)
            return result

        setattr(__call__, ORIGINAL, original)
        return __call__
