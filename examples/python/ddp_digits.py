"""A small network on scikit-learn's digits, trained by DistributedDataParallel; three lines make Gleaner exchange its gradients.

    torchrun --nproc-per-node 4 examples/python/ddp_digits.py --method spardl --density 0.01

With --method none it is the script without those lines.
"""

import argparse
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import gleaner.torch


def data():
    """Images of 8 by 8 pixels and what they show: four fifths to train with, the rest to test."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    cut = len(labels) * 4 // 5
    parts = order[:cut], order[cut:]
    return [TensorDataset(images[part], labels[part]) for part in parts]


def network():
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 32, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(32, 64, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(64 * 4 * 4, 128),
        torch.nn.ReLU(),
        torch.nn.Linear(128, 10),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", default="spardl", help="a method of Gleaner, or none for DistributedDataParallel alone")
    parser.add_argument("--density", type=float, default=0.01, help="the share of entries that a sparse method selects in a step")
    parser.add_argument("--epochs", type=int, default=20)
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    train, test = data()
    model = DistributedDataParallel(network())
    sparse = arguments.method != "none" and gleaner.Method(arguments.method).is_sparse
    if arguments.method != "none":
        gleaner.torch.register(model, arguments.method, density=arguments.density if sparse else None)

    sampler = DistributedSampler(train)
    batches = DataLoader(train, batch_size=32, sampler=sampler)
    # Its momentum counts the steps that entries have waited.
    sgd = gleaner.torch.SGD if sparse else torch.optim.SGD
    optimizer = sgd(model.parameters(), lr=0.05, momentum=0.9)
    loss_of = torch.nn.CrossEntropyLoss()
    began = time.monotonic()
    for epoch in range(arguments.epochs):
        sampler.set_epoch(epoch)
        for images, labels in batches:
            optimizer.zero_grad()
            loss_of(model(images), labels).backward()
            optimizer.step()

    if dist.get_rank() == 0:
        images, labels = test.tensors
        with torch.no_grad():
            right = (model.module(images).argmax(1) == labels).float().mean()
        print(f"{100 * right:.1f}% of {len(labels)} test images are right after {time.monotonic() - began:.1f} s")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
