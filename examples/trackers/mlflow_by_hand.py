"""Log TraceML's verdict, figures and summary to MLflow yourself.

    MLFLOW_TRACKING_URI=sqlite:///mlflow.db python examples/trackers/mlflow_by_hand.py

`traceml run --report-to mlflow train.py` does the same without any of these lines. Afterwards,
`traceml compare mlflow:<run id> mlflow:<run id>` compares two runs.
"""

import mlflow
from tiny_training import train

import traceml

traceml.init()  # not needed under `traceml run`
with mlflow.start_run() as run:
    train(40, lambda step, loss: mlflow.log_metric("loss", loss, step) if step % 20 == 0 else None)
    mlflow.log_metrics(traceml.summary(numbers_only=True))
    mlflow.log_dict(traceml.final_summary(), "traceml/final_summary.json")
    print(run.info.run_id)
