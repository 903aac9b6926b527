"""A training by PyTorch's DistributedDataParallel on Gloo with one of its communication hooks: the perceptron of `gleaner train`, on the same images.

Run it under gleaner launch:  gleaner launch --workers 4 -- python3 testbed/src/peers/hooks.py --hook powersgd-1 --data trainer/data/digits
"""

import argparse
import json
import math
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

parser = argparse.ArgumentParser()
parser.add_argument("--hook", required=True, help="torch, torch-fp16, or powersgd-N for PowerSGD of rank N")
parser.add_argument("--data", required=True, help="a directory with the four files of MNIST or of a data set like it")
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


def read(name, header):
    with open(os.path.join(arguments.data, name), "rb") as file:
        return torch.frombuffer(bytearray(file.read()[header:]), dtype=torch.uint8)


def examples(part):
    """Pixels as gleaner train has them, from −2 to 2, a row for each image."""
    labels = read(f"{part}-labels-idx1-ubyte", 8).long()
    pixels = read(f"{part}-images-idx3-ubyte", 16).float().reshape(len(labels), -1)
    return pixels * (4 / 255) - 2, labels


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


def received():
    with open("/sys/class/net/eth0/statistics/rx_bytes") as file:
        return int(file.read())


# Rank 0 inherits a socket that holds the port. PyTorch binds it itself.
if os.environ.get("GLEANER_LISTENER_FD"):
    os.close(int(os.environ["GLEANER_LISTENER_FD"]))
rank, workers = int(os.environ["GLEANER_RANK"]), int(os.environ["GLEANER_WORLD_SIZE"])
torch.set_num_threads(1)
torch.manual_seed(arguments.seed)
dist.init_process_group("gloo", init_method="tcp://" + os.environ["GLEANER_RENDEZVOUS"], rank=rank, world_size=workers)
images, labels = examples("train")
held_out, answers = examples("t10k")
model = perceptron(images.shape[1], 10)
# One bucket: PowerSGD's hook reduces a bucket several times, and Gloo needs the order of all reductions to be the same on all ranks.
dist._DEFAULT_FIRST_BUCKET_BYTES = 1 << 30
parallel = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1024)
if arguments.hook == "torch-fp16":
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


own, epoch, numbers, evaluations, losses = arguments.batch * workers, 0, order(0), [], []
evaluate_every = arguments.evaluate_every or arguments.steps
dist.barrier()
before, begun, evaluating = received(), time.perf_counter(), 0.0
for step in range(1, arguments.steps + 1):
    if len(numbers) < own:
        epoch += 1
        numbers = order(epoch)
    batch, numbers = numbers[:own][rank::workers], numbers[own:]
    optimizer.zero_grad()
    loss = loss_of(parallel(images[batch]), labels[batch])
    loss.backward()
    optimizer.step()
    scheduler.step()
    losses.append(loss.item())
    if step % evaluate_every == 0 or step == arguments.steps:
        clock = time.perf_counter()
        seconds = clock - begun - evaluating
        training_loss = torch.tensor(sum(losses) / len(losses), dtype=torch.float64)
        bytes_received = torch.tensor(received() - before)
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
if rank == 0:
    last = evaluations[-1]
    params = sum(parameter.numel() for parameter in model.parameters())
    report = {
        "method": arguments.hook,
        "library": f"PyTorch {torch.__version__} DDP on Gloo",
        "workers": workers,
        "params": params,
        "steps": arguments.steps,
        "seconds": last["seconds"],
        "training_loss": last["training_loss"],
        "held_out_loss": last["held_out_loss"],
        "held_out_accuracy": last["held_out_accuracy"],
        "lowest_held_out_loss": min(evaluation["held_out_loss"] for evaluation in evaluations),
        "bytes_per_step": last["bytes_received"] / arguments.steps,
        "dense_bytes_per_step": 8 * params * (workers - 1) / workers,
        "evaluations": evaluations,
    }
    print(json.dumps(report))
dist.barrier()
# Not by the interpreter's end: PyTorch 1.13 may wait for itself when it takes a group of Gloo's down.
sys.stdout.flush()
os._exit(0)
