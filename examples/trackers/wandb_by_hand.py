"""Log TraceML's verdict and figures to Weights & Biases yourself.

    WANDB_MODE=offline python examples/trackers/wandb_by_hand.py

`traceml run --report-to wandb train.py` does the same without any of these lines.
"""

import wandb
from tiny_training import train

import traceml

traceml.init()  # not needed under `traceml run`
with wandb.init(project="traceml-example") as run:
    train(40, lambda step, loss: run.log({"loss": loss}))
    figures = traceml.summary()
    run.summary.update(figures)
    print(figures["traceml/diagnosis"], figures["traceml/step_time/step_ms"])
