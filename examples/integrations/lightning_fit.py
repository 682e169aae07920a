"""Lightning with a recording: `python lightning_fit.py`, or `traceml run lightning_fit.py`."""

import lightning as L
import torch
from torch import nn

from traceml.utils.lightning import TraceMLCallback


class Regression(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))

    def training_step(self, batch, index):
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def validation_step(self, batch, index):
        x, y = batch
        nn.functional.mse_loss(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


data = torch.utils.data.TensorDataset(torch.randn(240, 16), torch.randn(240, 1))
trainer = L.Trainer(
    callbacks=[TraceMLCallback()],
    max_epochs=1,
    accelerator="cpu",
    devices=1,
    logger=False,
    enable_progress_bar=False,
    val_check_interval=15,
)
trainer.fit(
    Regression(),
    torch.utils.data.DataLoader(data, batch_size=8),
    torch.utils.data.DataLoader(data, batch_size=8),
)
