"""TraceML: why is this PyTorch training slow or unstable, on which rank, in which phase, what to do next.

Importing this loads neither torch nor numpy: the public names below load what they need when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = ["__version__", "final_summary", "init", "load", "phase", "report", "run", "summary", "trace_step"]

if TYPE_CHECKING:
    from traceml.capture.api import final_summary, init, phase, report, summary, trace_step
    from traceml.export.tables import load
    from traceml.notebook import run
_ELSEWHERE = {
    "load": "traceml.export.tables",
    "run": "traceml.notebook",
    "load_ipython_extension": "traceml.notebook",
    "unload_ipython_extension": "traceml.notebook",
}


def __getattr__(name: str) -> Any:
    if name in __all__ or name in _ELSEWHERE:
        found = globals()[name] = getattr(import_module(_ELSEWHERE.get(name, "traceml.capture.api")), name)
        return found
    raise AttributeError(f"module 'traceml' has no attribute {name!r}")
