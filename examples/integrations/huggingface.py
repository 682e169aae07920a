"""Hugging Face Trainer with a recording: `python huggingface.py`, or `traceml run huggingface.py`."""

import torch
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

from traceml.hf_decorators import TraceMLTrainer


class Sentences(torch.utils.data.Dataset):
    def __len__(self):
        return 240

    def __getitem__(self, index):
        return {"input_ids": torch.randint(0, 100, (16,)), "labels": torch.tensor(index % 2)}


model = BertForSequenceClassification(
    BertConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=100
    )
)
arguments = TrainingArguments(
    output_dir="checkpoints",
    num_train_epochs=1,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    eval_strategy="steps",
    eval_steps=15,
    save_steps=15,
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
)
TraceMLTrainer(
    model=model,
    args=arguments,
    train_dataset=Sentences(),
    eval_dataset=Sentences(),
    traceml_enabled=True,
).train()
