"""DeepSpeed: one update of its engine is one step, however often the optimizers inside it step."""

from typing import Final

from traceml.capture.patches import Patch
from traceml.capture.wrappers import wrap_optimizer_step, wrap_save

PATCHES: Final = (
    # What `step()` calls at the end of an accumulation, and the pipeline engine too.
    Patch("deepspeed.runtime.engine", "DeepSpeedEngine._take_model_step", wrap_optimizer_step),
    Patch("deepspeed.runtime.engine", "DeepSpeedEngine.save_checkpoint", wrap_save),
)
