"""Keras with the torch backend: `fit` with an optimizer whose update takes a while. Knows no TraceML."""

from __future__ import annotations

import os
import time
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np


class Slow(keras.optimizers.SGD):  # type: ignore[misc]
    def update_step(self, *args: Any, **kwargs: Any) -> None:
        time.sleep(0.005)
        super().update_step(*args, **kwargs)


model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
model.compile(Slow(), "mse")
x = np.ones((80, 8), "float32")
model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0, validation_data=(x, x[:, :1]))
