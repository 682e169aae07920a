"""fastai's Learner with an optimizer of its own whose update takes a while. Knows no TraceML."""

from __future__ import annotations

import time
from typing import Any

import torch
from fastai.data.core import DataLoaders
from fastai.learner import Learner
from fastai.optimizer import Optimizer, sgd_step
from torch import nn


def slowly(*_: Any, **__: Any) -> None:
    time.sleep(0.005)


def slow(parameters: Any, lr: float) -> Any:
    return Optimizer(parameters, [slowly, sgd_step], lr=lr)


x = torch.ones(80, 8)
data = list(zip(x, x[:, :1], strict=True))
loaders = DataLoaders.from_dsets(data, data[:8], bs=4)
learner = Learner(loaders, nn.Linear(8, 1), loss_func=nn.MSELoss(), opt_func=slow)
learner.fit(2, lr=0.01)
