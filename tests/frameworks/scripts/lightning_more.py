"""Lightning, imported by the name in the first word: manual optimization or accumulation over an unsized loader.

Words: package, mode (manual, ragged, ddp or saves-in-validation), and `callback` to use TraceML's callback. 10 batches of 2 samples per
epoch. Naps: 5 ms per sample, 20 ms per forward, 150 ms at the end of each validation and in each checkpoint.
"""

import importlib
import sys

import torch
from naps import nap
from torch import nn

package, mode, *more = sys.argv[1:]
pl = importlib.import_module({"lightning": "lightning.pytorch"}.get(package, package))


def sample(ms):
    nap(ms, "input")
    return torch.randn(8), torch.randn(1)


class Sized(torch.utils.data.Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return sample(5)


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return (sample(5) for _ in range(20))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 1)

    def forward(self, x):
        nap(20 if self.training else 0, "forward")
        return self.body(x)


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net()
        self.automatic_optimization = mode != "manual"

    def loss(self, batch):
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def training_step(self, batch, index):
        loss = self.loss(batch)
        if mode != "manual":
            return loss
        self.manual_backward(loss)
        if index % 2:  # a step for two batches
            self.optimizers().step()
            self.optimizers().zero_grad()

    def validation_step(self, batch, index):
        self.loss(batch)

    def on_validation_epoch_end(self):
        nap(150, "sanity check" if self.trainer.sanity_checking else "validation")

    def on_save_checkpoint(self, checkpoint):
        nap(150, "checkpoint")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


callbacks = [
    pl.callbacks.ModelCheckpoint(
        dirpath="out", save_top_k=-1, save_on_train_epoch_end=mode != "saves-in-validation"
    )
]
if "callback" in more:
    from traceml.utils.lightning import TraceMLCallback

    callbacks.append(TraceMLCallback())
trainer = pl.Trainer(
    callbacks=callbacks,
    max_epochs=3,
    accelerator="cpu",
    devices=2 if mode == "ddp" else 1,
    strategy="ddp" if mode == "ddp" else "auto",
    enable_progress_bar=False,
    enable_model_summary=False,
    logger=False,
    num_sanity_val_steps=1,
    accumulate_grad_batches=4 if mode == "ragged" else 1,
)
loader = torch.utils.data.DataLoader
train = loader(Stream() if mode == "ragged" else Sized(), batch_size=2)
trainer.fit(
    Module(),
    train,
    loader(torch.utils.data.TensorDataset(torch.randn(4, 8), torch.randn(4, 1)), batch_size=2),
)
print("global step", trainer.global_step)
