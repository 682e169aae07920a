"""Hugging Face Trainer: the classes of the documented one-liners."""

from typing import Any, Final

from traceml.integrations import load


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
