"""Tests of `traceml compare` and `traceml runs`."""
