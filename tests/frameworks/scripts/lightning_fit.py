"""Lightning on a tiny model, automatic optimization; knows nothing of TraceML."""

import sys

import lightning
import torch
from naps import clocked, nap
from torch import nn

sample_ms, forward_ms, eval_ms = (float(v) for v in sys.argv[1:4])
steps = int(sys.argv[4])


class Data(torch.utils.data.Dataset):
    def __init__(self, count, sleep_ms, name):
        self.count, self.sleep_ms, self.name = count, sleep_ms, name

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        nap(self.sleep_ms, self.name)
        return torch.randn(16), torch.randn(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x):
        nap(forward_ms if self.training else 0, "forward")
        return self.body(x)


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def training_step(self, batch, index):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index):
        x, y = batch
        self.log("val", nn.functional.mse_loss(self.net(x), y))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


class EvaluationClock(lightning.Callback):
    def on_validation_start(self, trainer, module):
        self.clock = clocked("evaluation" if trainer.global_step else "sanity check")
        self.clock.__enter__()

    def on_validation_end(self, trainer, module):
        self.clock.__exit__(None, None, None)


trainer = lightning.Trainer(
    callbacks=[EvaluationClock()],
    max_epochs=1,
    accelerator="cpu",
    enable_progress_bar=False,
    logger=False,
    accumulate_grad_batches=2,
    val_check_interval=20,
    default_root_dir="out",
)
loader = torch.utils.data.DataLoader
trainer.fit(
    Module(),
    loader(Data(8 * steps, sample_ms, "input"), batch_size=4),
    loader(Data(8, eval_ms, "validation"), batch_size=4),
)
