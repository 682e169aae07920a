"""Log TraceML's figures to TensorBoard yourself.

    python examples/trackers/tensorboard_by_hand.py && tensorboard --logdir runs

`traceml run --report-to tensorboard train.py` does the same without any of these lines.
"""

from tiny_training import train
from torch.utils.tensorboard import SummaryWriter

import traceml

traceml.init()  # not needed under `traceml run`
with SummaryWriter("runs/example") as writer:
    train(40, lambda step, loss: writer.add_scalar("loss", loss, step))
    for name, value in traceml.summary(numbers_only=True).items():
        writer.add_scalar(name, value, 40)
    writer.add_text("traceml/diagnosis", traceml.summary()["traceml/diagnosis"])
