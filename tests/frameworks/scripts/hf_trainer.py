"""Hugging Face Trainer on a tiny random model; knows nothing of TraceML."""

import sys

import torch
from naps import clocked, nap
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

sample_ms, forward_ms, eval_ms = (float(v) for v in sys.argv[1:4])
steps = int(sys.argv[4])


class Data(torch.utils.data.Dataset):
    def __init__(self, count, sleep_ms, name):
        self.count, self.sleep_ms, self.name = count, sleep_ms, name

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        nap(self.sleep_ms, self.name)
        return {
            "input_ids": torch.randint(0, 100, (16,)),
            "attention_mask": torch.ones(16, dtype=torch.long),
            "labels": torch.tensor(index % 2),
        }


class Model(BertForSequenceClassification):
    def forward(self, input_ids=None, attention_mask=None, labels=None, **more):
        nap(forward_ms if self.training else 0, "forward")
        return super().forward(input_ids=input_ids, attention_mask=attention_mask, labels=labels, **more)


class ClockedTrainer(Trainer):
    def evaluate(self, *args, **kwargs):
        with clocked("evaluation"):
            return super().evaluate(*args, **kwargs)


config = BertConfig(
    hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=100
)
arguments = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=4,
    per_device_eval_batch_size=4,
    gradient_accumulation_steps=2,
    max_steps=steps,
    eval_strategy="steps",
    eval_steps=10,
    save_strategy="steps",
    save_steps=20,
    logging_steps=10,
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
)
trainer = ClockedTrainer(
    model=Model(config),
    args=arguments,
    train_dataset=Data(1000, sample_ms, "input"),
    eval_dataset=Data(8, eval_ms, "validation"),
)
trainer.train()
