"""The import path of the talk: `from traceml.hf_decorators import TraceMLTrainer`."""

from traceml.integrations.huggingface import TraceMLTrainer, TraceMLTrainerCallback

__all__ = ["TraceMLTrainer", "TraceMLTrainerCallback"]
