import torch, lightning as L
from torch import nn


class M(L.LightningModule):
    def __init__(s):
        super().__init__()
        s.l = nn.Linear(8, 1)

    def training_step(s, b, i):
        loss = s.l(b).pow(2).mean()
        s.log("loss", loss)
        return loss

    def configure_optimizers(s):
        return torch.optim.SGD(s.parameters(), 0.01)


from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger, MLFlowLogger

L.Trainer(
    max_steps=30,
    accelerator="cpu",
    logger=[
        TensorBoardLogger("tbl"),
        WandbLogger(offline=True),
        MLFlowLogger(tracking_uri="sqlite:///pl.db"),
    ],
    enable_progress_bar=False,
    enable_checkpointing=False,
).fit(M(), torch.utils.data.DataLoader(torch.randn(200, 8), batch_size=4))
