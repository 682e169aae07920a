"""The import path of the talk: `from traceml.utils.lightning import TraceMLCallback`."""

from traceml.integrations.lightning import TraceMLCallback

__all__ = ["TraceMLCallback"]
