"""A small GPT on the text of this repository, trained by DistributedDataParallel; three lines make Gleaner exchange its gradients.

    torchrun --nproc-per-node 2 examples/python/gpt.py

It learns the text byte by byte, and prints the loss on a part of it that it was not trained on.
"""

import argparse
import math
import pathlib
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gleaner.torch

CONTEXT = 64


def text():
    """The bytes of the text: nine tenths to train with, the rest to test."""
    path = pathlib.Path(__file__).resolve().parents[2] / "trainer/data/documentation.txt"
    values = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8).long()
    cut = len(values) * 9 // 10
    return values[:cut], values[cut:]


def batch(values, size, random):
    starts = torch.randint(len(values) - CONTEXT - 1, (size,), generator=random)
    inputs = torch.stack([values[start : start + CONTEXT] for start in starts])
    targets = torch.stack([values[start + 1 : start + CONTEXT + 1] for start in starts])
    return inputs, targets


class Block(torch.nn.Module):
    """Attention to what came before, and a perceptron."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.query_key_value = torch.nn.Linear(width, 3 * width)
        self.project = torch.nn.Linear(width, width)
        self.perceptron = torch.nn.Sequential(torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width))

    def forward(self, values, mask):
        batch, length, width = values.shape
        parts = self.query_key_value(self.first(values)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-2, -1) / math.sqrt(width // self.heads)
        attended = scores.masked_fill(mask, -math.inf).softmax(-1) @ value
        values = values + self.project(attended.transpose(1, 2).reshape(batch, length, width))
        return values + self.perceptron(self.second(values))


class Gpt(torch.nn.Module):
    def __init__(self, width=64, heads=4, blocks=2):
        super().__init__()
        self.token, self.place = torch.nn.Embedding(256, width), torch.nn.Embedding(CONTEXT, width)
        self.blocks = torch.nn.ModuleList([Block(width, heads) for _ in range(blocks)])
        self.last, self.head = torch.nn.LayerNorm(width), torch.nn.Linear(width, 256)

    def forward(self, tokens):
        # What comes later is not to be seen.
        mask = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).triu(1)
        values = self.token(tokens) + self.place(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            values = block(values, mask)
        return self.head(self.last(values))


def loss_of(model, inputs, targets):
    return torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", default="spardl", help="a method of Gleaner, or none for DistributedDataParallel alone")
    parser.add_argument("--density", type=float, help="the share of entries that a sparse method selects in a step [default: 0.05, with values of 4 bits]")
    parser.add_argument("--beta1", type=float, help="Adam's momentum [default: 0 with a sparse method, otherwise 0.9]")
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    train, test = text()
    model = DistributedDataParallel(Gpt())
    sparse = arguments.method != "none" and gleaner.Method(arguments.method).is_sparse
    if arguments.method != "none":
        gleaner.torch.register(model, arguments.method, density=arguments.density if sparse else None)

    # Entries that wait before they are delivered act as a momentum, so Adam needs none of its own.
    beta1 = arguments.beta1 if arguments.beta1 is not None else 0.0 if sparse else 0.9
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(beta1, 0.999))
    random = torch.Generator().manual_seed(dist.get_rank())
    held_out = batch(test, 64, torch.Generator().manual_seed(0))
    began = time.monotonic()
    for _ in range(arguments.steps):
        optimizer.zero_grad()
        loss_of(model, *batch(train, 8, random)).backward()
        optimizer.step()

    if dist.get_rank() == 0:
        with torch.no_grad():
            loss = loss_of(model.module, *held_out)
        print(f"held-out loss {loss:.3f} after {arguments.steps} steps and {time.monotonic() - began:.1f} s")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
