"""Modules whose class has a `__call__` of its own, which never reaches that of torch: gpytorch's, for one."""

from types import FunctionType
from typing import Any

from traceml.capture.session import Session
from traceml.capture.wrap import ORIGINAL, seen_through
from traceml.capture.wrappers import wrap_module_call


class OwnCalls:
    """Wraps the `__call__` of such classes like torch's. After the first step they are known."""

    def __init__(self, session: Session) -> None:
        self._session, self._looked = session, False

    def look(self) -> None:
        """The first time, go through all classes of modules."""
        if not self._looked:
            self._looked = True
            self._below(self._session.torch.nn.Module)

    def _below(self, base: Any) -> None:
        for cls in base.__subclasses__():
            original = vars(cls).get("__call__")
            is_torchs = cls.__module__.partition(".")[0] == "torch"  # those call `Module.__call__`
            if isinstance(original, FunctionType) and not is_torchs and not hasattr(original, ORIGINAL):
                self._wrap(cls, original)
            self._below(cls)

    def _wrap(self, cls: Any, original: FunctionType) -> None:
        inner = wrap_module_call(original, self._session)
        is_compiling = self._session.torch.compiler.is_dynamo_compiling
        cls.__call__ = seen_through(original, inner, is_compiling)
        self._session.patched.append((cls, "__call__", original))
