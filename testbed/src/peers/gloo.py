"""A dense all-reduce by Gloo, through PyTorch, measured as `gleaner bench` measures: the peer beside our `ring`.

Run it under gleaner launch:  gleaner launch --workers 4 -- python3 testbed/src/peers/gloo.py --params 1000000
"""

import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--params", type=int, required=True)
parser.add_argument("--steps", type=int, default=5)
parser.add_argument("--warmup", type=int, default=2)
parser.add_argument("--seed", type=int, default=1)
arguments = parser.parse_args()

# Rank 0 inherits a socket that holds the port. PyTorch binds it itself.
if os.environ.get("GLEANER_LISTENER_FD"):
    os.close(int(os.environ["GLEANER_LISTENER_FD"]))
rank, workers = int(os.environ["GLEANER_RANK"]), int(os.environ["GLEANER_WORLD_SIZE"])
torch.set_num_threads(1)
dist.init_process_group(
    "gloo", init_method="tcp://" + os.environ["GLEANER_RENDEZVOUS"], rank=rank, world_size=workers
)
seconds = []
for step in range(arguments.warmup + arguments.steps):
    number = (arguments.seed << 40) + step * workers + rank
    gradient = torch.randn(arguments.params, generator=torch.Generator().manual_seed(number)) ** 3
    dist.barrier()
    clock = time.perf_counter()
    dist.all_reduce(gradient)
    took = torch.tensor([time.perf_counter() - clock])
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    if step >= arguments.warmup:
        seconds.append(took.item())
if rank == 0:
    report = {
        "method": "gloo",
        "library": f"PyTorch {torch.__version__}",
        "workers": workers,
        "params": arguments.params,
        "steps": arguments.steps,
        "seconds_steps": seconds,
        "seconds": statistics.median(seconds),
    }
    print(json.dumps(report))
dist.destroy_process_group()
