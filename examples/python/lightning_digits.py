"""Lightning, with Gleaner exchanging the gradients: a strategy of one method.

    python examples/python/lightning_digits.py --devices 2

Lightning starts the workers itself, and so do torchrun and srun.
"""

import argparse

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

import gleaner.torch


class Gleaner(DDPStrategy):
    """DistributedDataParallel with Gleaner as its hook."""

    def __init__(self, *, method="spardl", density=0.01, **options):
        super().__init__(**options)
        self.of_gleaner = {"method": method, "density": density}
        self.hook = None

    def configure_ddp(self):
        super().configure_ddp()
        self.hook = gleaner.torch.register(self.model, **self.of_gleaner)


class Digits(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))

    def training_step(self, batch, index):
        images, labels = batch
        return torch.nn.functional.cross_entropy(self.net(images), labels)

    def configure_optimizers(self):
        # Its momentum counts the steps that entries have waited.
        return gleaner.torch.SGD(self.parameters(), lr=0.1, momentum=0.9)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=10)
    arguments = parser.parse_args()

    digits = load_digits()
    images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = order[:1400], order[1400:]
    strategy = Gleaner(method="spardl", density=0.01, process_group_backend="gloo")      # new
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=arguments.devices,
        strategy=strategy,                                                               # was strategy="ddp"
        max_epochs=arguments.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Digits()
    trainer.fit(model, DataLoader(TensorDataset(images[train], labels[train]), batch_size=32, shuffle=True))
    if trainer.is_global_zero:
        with torch.no_grad():
            right = (model.net(images[test]).argmax(1) == labels[test]).float().mean()
        print(f"{100 * right:.1f}% of {len(test)} test images are right; {strategy.hook.step} steps by Gleaner")


if __name__ == "__main__":
    main()
