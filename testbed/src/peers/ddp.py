"""An iteration of PyTorch's DistributedDataParallel on Gloo, with layers of given sizes: the peer beside `gleaner train`.

Compute is emulated: the passes keep a core busy for as long as each layer was measured to take one, and the gradients are ones.

Run it under gleaner launch:  gleaner launch --workers 4 -- python3 testbed/src/peers/ddp.py --layers times.json
"""

import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--layers", required=True, help="what gleaner train --layer-times wrote")
parser.add_argument("--steps", type=int, default=5)
parser.add_argument("--warmup", type=int, default=3)
arguments = parser.parse_args()


def busy(seconds):
    """Takes so much of a core: longer where others need it, too."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


class Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, parameter, gradient, seconds):
        ctx.gradient, ctx.seconds = gradient, seconds
        return value.clone()

    @staticmethod
    def backward(ctx, upstream):
        busy(ctx.seconds)
        return upstream, ctx.gradient, None, None


class Model(torch.nn.Module):
    """Layers from the first to the last: backpropagation finishes them as the file has them."""

    def __init__(self, layers, forward):
        super().__init__()
        self.layers, self.seconds = layers[::-1], forward
        entries = [layer["entries"] for layer in self.layers]
        self.parameters_of = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(n)) for n in entries])
        self.gradients = [torch.ones(n) for n in entries]

    def forward(self, value):
        busy(self.seconds)
        for layer, parameter, gradient in zip(self.layers, self.parameters_of, self.gradients):
            value = Layer.apply(value, parameter, gradient, layer["seconds"])
        return value


with open(arguments.layers) as file:
    passes = json.load(file)
# Rank 0 inherits a socket that holds the port. PyTorch binds it itself.
if os.environ.get("GLEANER_LISTENER_FD"):
    os.close(int(os.environ["GLEANER_LISTENER_FD"]))
rank, workers = int(os.environ["GLEANER_RANK"]), int(os.environ["GLEANER_WORLD_SIZE"])
torch.set_num_threads(1)
dist.init_process_group(
    "gloo", init_method="tcp://" + os.environ["GLEANER_RENDEZVOUS"], rank=rank, world_size=workers
)
model = Model(passes["layers"], passes["forward"])
parallel = DistributedDataParallel(model)
seconds = []
for step in range(arguments.warmup + arguments.steps):
    model.zero_grad(set_to_none=True)
    # As in training, where the next step begins when the update is there.
    clock = time.perf_counter()
    parallel(torch.zeros(1)).sum().backward()
    took = torch.tensor([time.perf_counter() - clock])
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    if any(parameter.grad[-1].item() != 1.0 for parameter in model.parameters()):
        raise SystemExit("the mean of ones is not one")
    seconds.append(took.item())
if rank == 0:
    report = {
        "method": "ddp",
        "library": f"PyTorch {torch.__version__} DDP on Gloo, compute emulated",
        "workers": workers,
        "params": sum(layer["entries"] for layer in passes["layers"]),
        "steps": len(seconds),
        "seconds_run": sum(seconds),
        "seconds_iteration": statistics.median(seconds[arguments.warmup :]),
    }
    print(json.dumps(report))
dist.destroy_process_group()
