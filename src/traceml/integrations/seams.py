"""What frameworks do that no call of torch tells: which of their calls are wrapped, as a table, and how.

A row goes in as soon as its framework is imported, under `traceml run` as well as after `traceml.init()`. The
handlers here only take our own frame out of the user's traceback, and raise again.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from traceml.capture.patches import Patch
from traceml.capture.session import Session
from traceml.capture.wrap import Function, hide_frame, replaces
from traceml.capture.wrappers import Wrap, phase, wrap_optimizer_step, wrap_save
from traceml.errors import failsafe
from traceml.integrations.lightning import NAMES
from traceml.integrations.ray import wrap_old_trainer, wrap_trainer
from traceml.schema import catalog as c


def owns_steps(original: Function, session: Session) -> Function:
    """A framework's training loop: a step is one optimizer step, so `trace_step` inside it ends none."""

    @replaces(original)
    def loop(*args: Any, **kwargs: Any) -> Any:
        session.framework_loops += 1
        try:
            return original(*args, **kwargs)
        except BaseException as problem:
            hide_frame(problem)
            raise
        finally:
            session.framework_loops -= 1

    return loop


def hands_over(original: Function, session: Session, gives: bool = True) -> Function:
    """`__next__` of a loader that may look ahead: a step counts the batches that it is given."""
    before = failsafe("counting batches", None)(lambda: session.inputs.counted())
    after = failsafe("counting batches", None)(lambda *found: session.inputs.handed_over(*found))

    @replaces(original)
    def fetch(*args: Any, **kwargs: Any) -> Any:
        counted = before()
        try:
            result = original(*args, **kwargs)
        except BaseException as problem:
            hide_frame(problem)
            raise
        if counted is not None:
            after(counted, *((result,) if gives else ()))
        return result

    return fetch


looks_ahead: Final = partial(hands_over, gives=False)
"""A call that fetches batches but returns none of them."""


def hands_over_each(original: Function, session: Session) -> Function:
    """`__iter__`, a generator, of such a loader. With `skip_batches` it first fetches some in vain."""
    take = hands_over(next, session)

    @failsafe("skipping batches", None)
    def expect_skips(skips: int) -> None:
        if skips and session.inputs.counted() is not None:
            session.inputs.skips = skips + 1

    @replaces(original)
    def each(self: Any) -> Iterator[Any]:
        expect_skips(getattr(self, "skip_batches", 0))
        batches = original(self)
        try:
            while True:
                try:
                    yield take(batches)  # no variable: it would keep the batch alive during the next fetch
                except StopIteration:
                    return
        except BaseException as problem:
            hide_frame(problem)
            raise
        finally:
            batches.close()

    return each


_VALIDATION: Final = phase(c.VALIDATION)
_OF_LIGHTNING: Final[tuple[tuple[str, str, Wrap], ...]] = (
    ("loops.fit_loop", "_FitLoop.run", owns_steps),
    ("loops.fetchers", "_PrefetchDataFetcher.__iter__", looks_ahead),
    ("loops.fetchers", "_PrefetchDataFetcher.__next__", hands_over),
    ("loops.evaluation_loop", "_EvaluationLoop.run", _VALIDATION),
    ("loops.prediction_loop", "_PredictionLoop.run", _VALIDATION),
    ("trainer.trainer", "Trainer.save_checkpoint", wrap_save),
)
PATCHES: Final = (
    Patch("transformers.trainer", "Trainer.train", owns_steps),
    Patch("transformers.trainer", "Trainer._evaluate", _VALIDATION),
    Patch("transformers.trainer", "Trainer.evaluate", _VALIDATION),
    Patch("transformers.trainer", "Trainer.predict", _VALIDATION),
    Patch("transformers.trainer", "Trainer._save_checkpoint", wrap_save),
    Patch("transformers.trainer", "Trainer.save_model", wrap_save),
    *(Patch(f"{name}.{place}", called, wrap) for name in NAMES for place, called, wrap in _OF_LIGHTNING),
    # Accelerate's loaders fetch one batch ahead and skip batches when a training resumes.
    Patch("accelerate.data_loader", "DataLoaderShard.__iter__", hands_over_each),
    Patch("accelerate.data_loader", "DataLoaderDispatcher.__iter__", hands_over_each),
    Patch("accelerate.data_loader", "SkipDataLoader.__iter__", hands_over_each),
    Patch("accelerate.accelerator", "Accelerator.save_state", wrap_save),
    Patch("accelerate.accelerator", "Accelerator.save_model", wrap_save),
    # What DeepSpeed's `step()` calls at the end of an accumulation, and the pipeline engine too: one update
    # of the engine is one step, however often the optimizers inside it step.
    Patch("deepspeed.runtime.engine", "DeepSpeedEngine._take_model_step", wrap_optimizer_step),
    Patch("deepspeed.runtime.engine", "DeepSpeedEngine.save_checkpoint", wrap_save),
    # The optimizers of fastai and Keras are not torch's. Those of torch that fastai wraps are timed already.
    Patch("fastai.optimizer", "Optimizer.step", wrap_optimizer_step),
    Patch("fastai.optimizer", "Optimizer.zero_grad", phase(c.OPTIMIZER)),
    Patch("keras.src.optimizers.base_optimizer", "BaseOptimizer.apply", wrap_optimizer_step),
    Patch("ray.train.v2.torch.torch_trainer", "TorchTrainer.__init__", wrap_trainer),
    Patch("ray.train.torch.torch_trainer", "TorchTrainer.__init__", wrap_old_trainer),
    Patch("ray.train.torch.train_loop_utils", "_WrappedDataLoader.__iter__", looks_ahead),
    Patch("ray.train.torch.train_loop_utils", "_WrappedDataLoader.__next__", hands_over),
)
