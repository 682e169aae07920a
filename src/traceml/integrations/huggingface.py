"""Hugging Face Trainer: evaluation and saving as a whole, and the classes of the documented one-liners."""

from typing import Any, Final

from traceml.capture.framework_seams import owns_steps
from traceml.capture.patches import Patch
from traceml.capture.wrappers import phase, wrap_save
from traceml.integrations import load
from traceml.schema import catalog as c

PATCHES: Final = (
    Patch("transformers.trainer", "Trainer.train", owns_steps),
    Patch("transformers.trainer", "Trainer._evaluate", phase(c.VALIDATION)),
    Patch("transformers.trainer", "Trainer.evaluate", phase(c.VALIDATION)),
    Patch("transformers.trainer", "Trainer.predict", phase(c.VALIDATION)),
    Patch("transformers.trainer", "Trainer._save_checkpoint", wrap_save),
    Patch("transformers.trainer", "Trainer.save_model", wrap_save),
)


def _trainer() -> type:
    base = load("transformers", "transformers", 5, "TraceMLTrainer").Trainer

    class TraceMLTrainer(base):  # type: ignore[misc, valid-type]
        """Hugging Face's Trainer with a recording: its verdict is printed when the script ends."""

        def __init__(self, *args: Any, traceml_enabled: bool = True, **kwargs: Any) -> None:
            _record(enabled=traceml_enabled)
            super().__init__(*args, **kwargs)

    return TraceMLTrainer


def _callback() -> type:
    base = load("transformers", "transformers", 5, "TraceMLTrainerCallback").TrainerCallback

    class TraceMLTrainerCallback(base):  # type: ignore[misc, valid-type]
        """`callbacks=[TraceMLTrainerCallback()]` for any Trainer: starts a recording, if none runs."""

        def __init__(self, run_name: str | None = None, logs_dir: str | None = None) -> None:
            _record(run_name, logs_dir)

    return TraceMLTrainerCallback


def _record(run_name: str | None = None, logs_dir: str | None = None, enabled: bool = True) -> None:
    from traceml.capture.api import init  # which loads torch

    if enabled:
        init(run_name, logs_dir)


_CLASSES: Final = {"TraceMLTrainer": _trainer, "TraceMLTrainerCallback": _callback}


def __getattr__(name: str) -> Any:
    """The classes are made when first asked for: their bases load transformers."""
    if name not in _CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = globals()[name] = _CLASSES[name]()
    made.__qualname__ = name  # so that pickle finds it here
    return made
