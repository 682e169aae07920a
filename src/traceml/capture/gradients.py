"""Finds the moment when a rank's last gradient is ready: what follows in backward is waiting for others.

All parameters of DistributedDataParallel models are watched for a few steps to learn which one of each
model comes last; then only that one is. The hooks read a clock and nothing else, so buckets and results stay
as they are. If none of them gets a gradient in a step (unused parameters), all are watched again for a while.
"""

import functools
import weakref
from typing import Any, Final

from traceml.capture.switch import PythonSwitch

LEARN_STEPS: Final = 3


class GradientWatch:
    """The hooks on the parameters of one process's DDP models."""

    def __init__(self, switch: PythonSwitch) -> None:
        self._switch = switch
        self._models: list[weakref.ref[Any]] = []
        self._handles: list[Any] = []
        self._last: dict[int, weakref.ref[Any]] = {}  # by the model's place in the list
        self.learning = 0  # steps left

    def watch(self, model: Any) -> None:
        """A model whose gradients are exchanged with other ranks was made."""
        self._models.append(weakref.ref(model))
        self._learn()

    def step_ended(self) -> None:
        """A step completed: narrow down to the last parameters, or start over if none was used."""
        if not self._models:
            return
        if self.learning:
            self.learning -= 1
            if not self.learning:
                self._settle()
        elif not self._switch.gradients:
            self._learn()
        self._switch.gradients = 0

    def _learn(self) -> None:
        """Watch every parameter that gets a gradient."""
        self._unhook()
        self.learning = LEARN_STEPS
        self._models = [reference for reference in self._models if reference() is not None]
        self._last.clear()
        for place, reference in enumerate(self._models):
            model, seen = reference(), functools.partial(self._seen, place)
            for parameter in model.parameters() if model is not None else ():
                if parameter.requires_grad:
                    self._handles.append(parameter.register_post_accumulate_grad_hook(seen))

    def _settle(self) -> None:
        """Keep a hook on the parameter of each model that came last."""
        self._unhook()
        for reference in self._last.values():
            last = reference()
            if last is not None:
                self._handles.append(last.register_post_accumulate_grad_hook(self._switch.gradient_ready))

    def _seen(self, place: int, parameter: Any) -> None:
        """While learning: this is the model's last parameter so far, and the switch moves on with each of
        them."""
        self._last[place] = weakref.ref(parameter)
        self._switch.gradient_ready(parameter)

    def _unhook(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
