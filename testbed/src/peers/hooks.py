"""A training by PyTorch's DistributedDataParallel with a communication hook: the perceptron of `gleaner train`, on the same images, or VGG-16.

Run it under gleaner launch:  gleaner launch --workers 4 -- python3 testbed/src/peers/hooks.py --hook powersgd-1 --data trainer/data/digits
"""

import argparse
import json
import math
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks, powerSGD_hook

parser = argparse.ArgumentParser()
parser.add_argument("--hook", required=True, help="torch-noop, torch, torch-fp16, powersgd-N for PowerSGD of rank N, or torch-spardl")
parser.add_argument("--data", required=True, help="a directory with the four files of MNIST or of a data set like it, or synthetic")
parser.add_argument("--model", choices=("mlp", "vgg16"), default="mlp")
parser.add_argument("--density", type=float, default=0.01, help="of torch-spardl")
parser.add_argument("--steps", type=int, default=500)
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--lr", type=float, default=0.02)
parser.add_argument("--lr-drops", default="")
parser.add_argument("--momentum", type=float, default=0.9)
parser.add_argument("--evaluate-every", type=int, default=0)
parser.add_argument("--seed", type=int, default=1)
arguments = parser.parse_args()

# So many steps are dense, as PowerSGD needs a gradient to begin with.
FIRST_POWERSGD = 10

# Channels of VGG-16's convolutions; 0 is a pooling.
WIDTHS = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)


def read(name, header):
    with open(os.path.join(arguments.data, name), "rb") as file:
        return torch.frombuffer(bytearray(file.read()[header:]), dtype=torch.uint8)


def examples(part):
    """Pixels as gleaner train has them, from −2 to 2, a row for each image."""
    labels = read(f"{part}-labels-idx1-ubyte", 8).long()
    pixels = read(f"{part}-images-idx3-ubyte", 16).float().reshape(len(labels), -1)
    return pixels * (4 / 255) - 2, labels


def synthetic(count):
    """Images of 32 by 32 pixels in three colours: each the pattern of its class, and noise."""
    labels = torch.arange(count) % 10
    patterns = torch.randn(10, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    return patterns[labels] + torch.randn(count, 3, 32, 32), labels


def perceptron(inputs, classes):
    """With the same distribution of starting parameters."""
    layers = []
    for outputs in (256, 128):
        layer = nn.Linear(inputs, outputs)
        nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
        nn.init.zeros_(layer.bias)
        layers += [layer, nn.ReLU()]
        inputs = outputs
    return nn.Sequential(*layers, nn.Linear(inputs, classes))


def vgg16(classes):
    """As `gleaner train --model vgg16`, with batch normalisation: 14,728,266 parameters."""
    layers, inputs = [], 3
    for outputs in WIDTHS:
        if outputs == 0:
            layers.append(nn.MaxPool2d(2))
            continue
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
        inputs = outputs
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(inputs, classes))


def received():
    with open("/sys/class/net/eth0/statistics/rx_bytes") as file:
        return int(file.read())


rank, workers = int(os.environ["GLEANER_RANK"]), int(os.environ["GLEANER_WORLD_SIZE"])
host, _, port = os.environ["GLEANER_RENDEZVOUS"].rpartition(":")
with_gleaner = arguments.hook == "torch-spardl"
# Rank 0 inherits a socket that holds the port. PyTorch binds it itself, or the next one where Gleaner listens there.
if os.environ.get("GLEANER_LISTENER_FD") and not with_gleaner:
    os.close(int(os.environ["GLEANER_LISTENER_FD"]))
torch.set_num_threads(1)
# Numbers near zero would make steps of an untrained network many times slower.
torch.set_flush_denormal(True)
torch.manual_seed(arguments.seed)
dist.init_process_group("gloo", init_method=f"tcp://{host}:{int(port) + with_gleaner}", rank=rank, world_size=workers)
if arguments.model == "vgg16":
    (images, labels), (held_out, answers) = synthetic(2048), synthetic(64)
    model = vgg16(10)
else:
    (images, labels), (held_out, answers) = examples("train"), examples("t10k")
    model = perceptron(images.shape[1], 10)
buckets = {}
if arguments.hook.startswith("powersgd-"):
    # One: PowerSGD's hook reduces a bucket several times, and Gloo needs the order of all reductions to be the same on all ranks.
    dist._DEFAULT_FIRST_BUCKET_BYTES = 1 << 30
    buckets = {"bucket_cap_mb": 1024}
parallel = nn.parallel.DistributedDataParallel(model, broadcast_buffers=False, **buckets)
session = None
if arguments.hook == "torch-noop":
    parallel.register_comm_hook(None, debugging_hooks.noop_hook)
elif with_gleaner:
    import gleaner.torch

    session = gleaner.torch.register(parallel, method="spardl", density=arguments.density).session
elif arguments.hook == "torch-fp16":
    parallel.register_comm_hook(None, default_hooks.fp16_compress_hook)
elif arguments.hook.startswith("powersgd-"):
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=int(arguments.hook.removeprefix("powersgd-")), start_powerSGD_iter=FIRST_POWERSGD
    )
    parallel.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=arguments.momentum)
drops = [math.ceil(float(share) * arguments.steps) for share in arguments.lr_drops.split(",") if share]
scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, drops)
loss_of = nn.CrossEntropyLoss()


def order(epoch):
    return torch.randperm(len(labels), generator=torch.Generator().manual_seed(arguments.seed * 1_000_003 + epoch))


own, epoch, numbers, evaluations, losses, iterations = arguments.batch * workers, 0, order(0), [], [], []
evaluate_every = arguments.evaluate_every or arguments.steps
dist.barrier()
before, begun, evaluating = received(), time.perf_counter(), 0.0
for step in range(1, arguments.steps + 1):
    if len(numbers) < own:
        epoch += 1
        numbers = order(epoch)
    batch, numbers = numbers[:own][rank::workers], numbers[own:]
    if step == arguments.steps // 2 + 1:
        before_second_half = received()
    iteration = time.perf_counter()
    optimizer.zero_grad()
    loss = loss_of(parallel(images[batch]), labels[batch])
    loss.backward()
    optimizer.step()
    scheduler.step()
    losses.append(loss.item())
    iterations.append(time.perf_counter() - iteration)
    if step % evaluate_every == 0 or step == arguments.steps:
        clock = time.perf_counter()
        seconds = clock - begun - evaluating
        training_loss = torch.tensor(sum(losses) / len(losses), dtype=torch.float64)
        until = received()
        bytes_received = torch.tensor(until - before)
        dist.all_reduce(training_loss)
        dist.all_reduce(bytes_received, op=dist.ReduceOp.MAX)
        with torch.no_grad():
            logits = model(held_out)
        evaluations.append(
            {
                "step": step,
                "seconds": seconds,
                "held_out_loss": loss_of(logits, answers).item(),
                "held_out_accuracy": (logits.argmax(1) == answers).float().mean().item(),
                "training_loss": training_loss.item() / workers,
                "bytes_received": bytes_received.item(),
            }
        )
        losses = []
        evaluating += time.perf_counter() - clock
# As of a training by Gleaner, the second half of the steps counts.
second_half = iterations[arguments.steps // 2 :]
iteration = torch.tensor([statistics.median(second_half), (until - before_second_half) / len(second_half)])
dist.all_reduce(iteration, op=dist.ReduceOp.MAX)
if rank == 0:
    last = evaluations[-1]
    params = sum(parameter.numel() for parameter in model.parameters())
    report = {
        "method": arguments.hook,
        "library": f"PyTorch {torch.__version__} DDP on Gloo",
        "workers": workers,
        "params": params,
        "steps": arguments.steps,
        "seconds_run": last["seconds"],
        "seconds_iteration": iteration[0].item(),
        "bytes_per_iteration": iteration[1].item(),
        "training_loss": last["training_loss"],
        "held_out_loss": last["held_out_loss"],
        "held_out_accuracy": last["held_out_accuracy"],
        "lowest_held_out_loss": min(evaluation["held_out_loss"] for evaluation in evaluations),
        "bytes_per_step": last["bytes_received"] / arguments.steps,
        "dense_bytes_per_step": 8 * params * (workers - 1) / workers,
        "evaluations": evaluations,
    }
    print(json.dumps(report))
if session is not None:
    session.leave()
dist.barrier()
# Not by the interpreter's end: PyTorch 1.13 may wait for itself when it takes a group of Gloo's down.
sys.stdout.flush()
os._exit(0)
