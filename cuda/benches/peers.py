#!/usr/bin/env python3
"""The same step with PyTorch, and with CuPy where that is installed: prints lines of JSON for `device --peers FILE`.

    python3 cuda/benches/peers.py > peers.jsonl

A step adds a gradient to the residual, selects the k largest magnitudes, gathers their values and makes the residual zero there. The
device is busy with a copy while a step is put into its stream, as in the benchmark that this is compared with. Medians, by events.
"""

import argparse
import json
import sys


def gradients(torch, n, device):
    """Cubes of normal numbers: two gradients by turns, of which steps take parts from different places on."""
    made = []
    for _ in range(4 if n < 50_000_000 else 2):
        gradient = torch.empty(n + (1 << 20), dtype=torch.float32, device=device)
        for part in gradient.split(1 << 26):
            part.normal_()
            part.pow_(3)
        made.append(gradient)
    return made


def median(times):
    return sorted(times)[len(times) // 2]


def timed(torch, busy, step, steps, warm_up):
    """Medians until the entries are selected and until the residual is zero there, in microseconds."""
    selecting, whole = [], []
    for number in range(warm_up + steps):
        busy[0].copy_(busy[1])
        start, selected, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        start.record()
        commit = step(number)
        selected.record()
        commit()
        end.record()
        end.synchronize()
        selecting.append(1e3 * start.elapsed_time(selected))
        whole.append(1e3 * start.elapsed_time(end))
    return median(selecting[warm_up:]), median(whole[warm_up:])


def measure(torch, n, steps, warm_up):
    device = torch.device("cuda")
    k = -(-n // 100)
    given = gradients(torch, n, device)
    residual = torch.zeros(n, dtype=torch.float32, device=device)
    busy = [torch.empty(1 << 26, dtype=torch.float32, device=device) for _ in range(2)]

    def say(peer, step, commits=True):
        us, whole = timed(torch, busy, step, steps, warm_up)
        line = {"peer": peer, "n": n, "us": round(us, 2)}
        print(json.dumps(line | ({"whole_us": round(whole, 2)} if commits else {})), flush=True)

    def gradient(number):
        start = (number * 0x9E3779B1) % 1024 * 1024
        return given[number % len(given)][start : start + n]

    def chosen(indices):
        residual.gather(0, indices)
        return lambda: residual.index_fill_(0, indices, 0.0)

    def add(number):
        residual.add_(gradient(number))
        return lambda: None

    def topk(is_sorted):
        def step(number):
            residual.add_(gradient(number))
            return chosen(torch.topk(residual.abs(), k, sorted=is_sorted).indices)

        return step

    version = f"torch {torch.__version__}"
    say(f"{version}: add_", add, commits=False)
    residual.zero_()
    say(f"{version}: add_, topk(sorted=False), gather", topk(False))
    say(f"{version}: add_, topk, gather", topk(True))

    try:
        import cupy
    except ImportError:
        print("SKIPPED: CuPy is not installed", file=sys.stderr)
        return

    def partition(number):
        residual.add_(gradient(number))
        # It sorts: CuPy has no selection by radix.
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            indices = cupy.argpartition(cupy.asarray(residual.abs()), n - k)[n - k :]
        return chosen(torch.as_tensor(indices, device=device))

    try:
        say(f"CuPy {cupy.__version__}: add_, argpartition, gather", partition)
    except Exception as error:  # Without it, the others stand.
        print(f"SKIPPED: CuPy: {error}", file=sys.stderr)


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--n", default="14728266,100000000,1000000000", help="entries, separated by commas")
    options.add_argument("--steps", type=int, default=20)
    options.add_argument("--warm-up", type=int, default=8)
    options = options.parse_args()
    try:
        import torch
    except ImportError:
        sys.exit("SKIPPED: PyTorch is not installed")
    if not torch.cuda.is_available():
        sys.exit("SKIPPED: PyTorch finds no CUDA device")
    for n in map(int, options.n.split(",")):
        try:
            measure(torch, n, options.steps, options.warm_up)
        except torch.cuda.OutOfMemoryError as error:
            print(f"SKIPPED: {n} entries: {error}", file=sys.stderr)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
