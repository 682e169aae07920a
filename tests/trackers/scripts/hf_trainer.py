import torch
from torch import nn
from transformers import Trainer, TrainingArguments


class M(nn.Module):
    def __init__(s):
        super().__init__()
        s.l = nn.Linear(8, 1)

    def forward(s, x, labels=None):
        y = s.l(x)
        return {"loss": ((y - labels) ** 2).mean(), "logits": y}


data = [{"x": torch.randn(8), "labels": torch.randn(1)} for _ in range(160)]
a = TrainingArguments(
    output_dir="out",
    max_steps=30,
    per_device_train_batch_size=4,
    report_to=["tensorboard", "wandb", "mlflow"],
    logging_steps=5,
    use_cpu=True,
    save_strategy="no",
    disable_tqdm=True,
)
Trainer(M(), a, train_dataset=data).train()
