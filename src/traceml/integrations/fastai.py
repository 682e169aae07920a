"""fastai: the optimizers of its own are no torch optimizers. What it wraps of torch's is seen anyway."""

from typing import Final

from traceml.capture.patches import Patch
from traceml.capture.wrappers import phase, wrap_optimizer_step
from traceml.schema import catalog as c

PATCHES: Final = (
    Patch("fastai.optimizer", "Optimizer.step", wrap_optimizer_step),
    Patch("fastai.optimizer", "Optimizer.zero_grad", phase(c.OPTIMIZER)),
)
