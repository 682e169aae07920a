"""The import path of the talk: `traceml.utils.lightning`. Nothing else belongs here."""
