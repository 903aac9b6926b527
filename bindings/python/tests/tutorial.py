"""PyTorch's tutorial "Getting Started with Distributed Data Parallel", on the CPU: its basic use and its saving and loading of checkpoints.

Lines that end in `gleaner` are new. The first argument is the backend, the second the port, the third `hook` for a hook or `plain`.
"""

import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch.optim as optim
from torch.nn.parallel import DistributedDataParallel as DDP

import gleaner.torch  # gleaner


def setup(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = sys.argv[2]

    # initialize the process group
    dist.init_process_group(sys.argv[1], rank=rank, world_size=world_size)


def cleanup():
    dist.destroy_process_group()


class ToyModel(nn.Module):
    def __init__(self):
        super(ToyModel, self).__init__()
        self.net1 = nn.Linear(10, 10)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(10, 5)

    def forward(self, x):
        return self.net2(self.relu(self.net1(x)))


def hooked(model):
    if sys.argv[3] == "hook":
        gleaner.torch.register(model, method="spardl", density=0.1)  # gleaner
    return model


def demo_basic(rank, world_size):
    setup(rank, world_size)

    # create model and wrap it
    ddp_model = hooked(DDP(ToyModel()))

    loss_fn = nn.MSELoss()
    optimizer = optim.SGD(ddp_model.parameters(), lr=0.001)

    optimizer.zero_grad()
    outputs = ddp_model(torch.randn(20, 10))
    labels = torch.randn(20, 5)
    loss_fn(outputs, labels).backward()
    optimizer.step()
    print(f"rank {rank} basic {sum(p.double().sum().item() for p in ddp_model.parameters()):.12f}", flush=True)

    cleanup()


def demo_checkpoint(rank, world_size):
    setup(rank, world_size)

    ddp_model = hooked(DDP(ToyModel()))

    checkpoint_path = os.path.join(tempfile.gettempdir(), "model.checkpoint")
    if rank == 0:
        # All processes should see same parameters as they all start from same
        # random parameters and gradients are synchronized in backward passes.
        # Therefore, saving it in one process is sufficient.
        torch.save(ddp_model.state_dict(), checkpoint_path)

    # Use a barrier() to make sure that process 1 loads the model after process
    # 0 saves it.
    dist.barrier()
    ddp_model.load_state_dict(torch.load(checkpoint_path, map_location="cpu"))

    loss_fn = nn.MSELoss()
    optimizer = optim.SGD(ddp_model.parameters(), lr=0.001)

    optimizer.zero_grad()
    outputs = ddp_model(torch.randn(20, 10))
    labels = torch.randn(20, 5)

    loss_fn(outputs, labels).backward()
    optimizer.step()

    # Not necessary to use a dist.barrier() to guard the file deletion below
    # as the AllReduce ops in the backward pass of DDP already served as
    # a synchronization.
    if rank == 0:
        os.remove(checkpoint_path)
    print(f"rank {rank} checkpoint {sum(p.double().sum().item() for p in ddp_model.parameters()):.12f}", flush=True)

    cleanup()


def run_demo(demo_fn, world_size):
    mp.spawn(demo_fn, args=(world_size,), nprocs=world_size, join=True)


if __name__ == "__main__":
    run_demo(demo_basic, 2)
    run_demo(demo_checkpoint, 2)
