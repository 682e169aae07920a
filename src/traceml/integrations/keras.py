"""Keras on torch: its optimizers are its own, and each `apply` is a step, in `fit` and in a loop by hand."""

from typing import Final

from traceml.capture.patches import Patch
from traceml.capture.wrappers import wrap_optimizer_step

PATCHES: Final = (Patch("keras.src.optimizers.base_optimizer", "BaseOptimizer.apply", wrap_optimizer_step),)
