"""Hugging Face Trainer, 10 batches of 2 samples per epoch in groups of 4, 4 and 2.

Words: `stream` for an iterable dataset, `resume` to go on after 2 of the steps, `callback` for TraceML's callback, `trace`
for trace_step around each micro-batch. Naps: 5 ms per sample (40 ms if it is skipped), 20 ms per forward, 150 ms in each
evaluation's metrics, 100 ms in each checkpoint.
"""

import sys

import torch
from naps import nap
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

words = sys.argv[1:]
SKIPPED = 16 if "resume" in words else 0  # samples of the 2 steps that were done before


def sample(index, name, ms):
    nap(ms, name)
    return {"input_ids": torch.randint(0, 100, (16,)), "labels": torch.tensor(index % 2)}


class Data(torch.utils.data.Dataset):
    def __init__(self, count, name, ms):
        self.count, self.name, self.ms = count, name, ms

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return sample(index, self.name, self.ms)


class Stream(torch.utils.data.IterableDataset):
    passes = 0

    def __iter__(self):
        skipped = 0 if self.passes else SKIPPED
        self.passes += 1
        for index in range(20):
            yield sample(index, *(("skipped", 40) if index < skipped else ("input", 5)))


class Model(BertForSequenceClassification):
    def forward(self, input_ids=None, labels=None, **more):
        nap(20 if self.training else 0, "forward")
        return super().forward(input_ids=input_ids, labels=labels, **more)


class NappingTrainer(Trainer):
    def _save(self, *args, **kwargs):
        nap(100, "checkpoint")
        super()._save(*args, **kwargs)

    def training_step(self, *args, **kwargs):
        if "trace" not in words:
            return super().training_step(*args, **kwargs)
        import traceml

        with traceml.trace_step(self.model):
            return super().training_step(*args, **kwargs)


def metrics(_):
    nap(150, "validation")
    return {"one": 1.0}


callbacks = []
if "callback" in words:
    from traceml.hf_decorators import TraceMLTrainerCallback

    callbacks.append(TraceMLTrainerCallback())
config = BertConfig(
    hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=100
)
length = {"max_steps": 4} if "stream" in words else {"num_train_epochs": 3}
arguments = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=2,
    per_device_eval_batch_size=2,
    gradient_accumulation_steps=4,
    eval_strategy="steps",
    eval_steps=3,
    save_steps=2,
    logging_steps=100,
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
    **length,
)
trainer = NappingTrainer(
    model=Model(config),
    args=arguments,
    train_dataset=Stream() if "stream" in words else Data(20, "input", 5),
    eval_dataset=Data(4, "validation", 15),
    compute_metrics=metrics,
    callbacks=callbacks,
)
trainer.train(resume_from_checkpoint="out/checkpoint-2" if SKIPPED else None)
