"""The import path of the talk: `from traceml.decorators import trace_step`."""

from traceml.capture.api import trace_step

__all__ = ["trace_step"]
