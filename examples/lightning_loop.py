"""A herd inside Lightning: manual optimisation, one fused step of ten GANs for each batch of the loader."""

import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from torch import nn

import ganherd


class LitHerd(lightning.LightningModule):
    def __init__(self, herd: ganherd.Herd) -> None:
        super().__init__()
        self.automatic_optimization = False  # the herd has its own optimisers
        self.herd = herd

    def training_step(self, batch: torch.Tensor, index: int) -> None:
        losses = self.herd.step(batch)
        self.log_dict({f"{name}/{m}": value for name, each in losses.items() for m, value in enumerate(each.tolist())})

    def configure_optimizers(self) -> None:
        return None

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["herd"] = self.herd.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.herd.load_state_dict(checkpoint["herd"])


def trainer(folder: Path, **settings: Any) -> lightning.Trainer:
    return lightning.Trainer(
        accelerator="cpu", default_root_dir=folder, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, **settings,
    )  # fmt: skip


if __name__ == "__main__":
    from sklearn.datasets import load_digits

    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    digits = torch.tensor(load_digits().images, dtype=torch.float32)[:, None] / 8 - 1  # [n, 1, 8, 8] in [-1, 1]
    loader = torch.utils.data.DataLoader(digits, batch_size=64, shuffle=True, drop_last=True)
    herd = ganherd.Herd(
        lambda: nn.Sequential(nn.Linear(16, 96), nn.SiLU(), nn.Linear(96, 64), nn.Tanh(), nn.Unflatten(1, (1, 8, 8))),
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.SiLU(), nn.Linear(96, 1)),
        members=10, shape=(1, 8, 8), latent=16, loss={"name": "hinge"}, optim={"lr_g": 1e-3, "lr_d": 1e-3},
    )  # fmt: skip
    trainer(Path("lightning"), max_epochs=epochs).fit(LitHerd(herd), loader)
    print(herd, herd.generator(0)(torch.randn(4, 16)).shape)
