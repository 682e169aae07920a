"""Lightning, by both of its names: the callback of the documented one-liner."""

import sys
from typing import Any, Final

from traceml.integrations import load

NAMES: Final[tuple[str, ...]] = ("lightning.pytorch", "pytorch_lightning")


class TraceMLCallback:
    """`Trainer(callbacks=[TraceMLCallback()])`: starts a recording, if none runs.

    Its objects are also callbacks of the Lightning that is loaded, be it `lightning` or `pytorch_lightning`.
    """

    def __new__(cls, *_: Any, **__: Any) -> "TraceMLCallback":  # noqa: PYI034 - of a class made here
        loaded = [name for name in NAMES if name in sys.modules] or [_installed()]
        bases = (load(name, name.partition(".")[0], 2, "TraceMLCallback").Callback for name in loaded)
        return object.__new__(type(cls.__name__, (cls, *bases), {"__module__": cls.__module__}))

    def __init__(self, run_name: str | None = None, logs_dir: str | None = None) -> None:
        from traceml.capture.api import init  # which loads torch

        init(run_name, logs_dir)

    def setup(self, *_: Any, **__: Any) -> None:
        """Lightning begins, perhaps in a process that a strategy spawned: it joins the same run."""
        TraceMLCallback.__init__(self)

    def __reduce__(self) -> Any:
        """Pickled for such a process, where its class is made anew."""
        made_by = next(cls for cls in type(self).__mro__[1:] if issubclass(cls, TraceMLCallback))
        return made_by.__new__, (made_by,), vars(self)


def _installed() -> str:
    from importlib.util import find_spec

    return next((name for name in NAMES if find_spec(name.partition(".")[0]) is not None), NAMES[0])
