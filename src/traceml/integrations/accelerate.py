"""Accelerate: its loaders fetch one batch ahead and skip batches when a training resumes."""

from typing import Final

from traceml.capture.framework_seams import hands_over_each
from traceml.capture.patches import Patch
from traceml.capture.wrappers import wrap_save

PATCHES: Final = (
    Patch("accelerate.data_loader", "DataLoaderShard.__iter__", hands_over_each),
    Patch("accelerate.data_loader", "DataLoaderDispatcher.__iter__", hands_over_each),
    Patch("accelerate.data_loader", "SkipDataLoader.__iter__", hands_over_each),
    Patch("accelerate.accelerator", "Accelerator.save_state", wrap_save),
    Patch("accelerate.accelerator", "Accelerator.save_model", wrap_save),
)
