"""One script of DistributedDataParallel with several communication hooks, on emulated hosts: what a step takes, and what is learnt.

As root, with a Python that has PyTorch, scikit-learn and gleaner:

    python experiments/ddp_hooks.py --rates 1gbit,100mbit --steps 60

The model is VGG-16 with 14,728,266 parameters, the data are scikit-learn's digits. The hooks take turns on the same hosts: one that does
nothing, Gloo's dense all-reduce as without a hook, the one that sends 16 bits, PowerSGD's, and Gleaner's SparDL. The exposed communication
is the time of a step less that of the step whose hook does nothing.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

HOOKS = ("none", "gloo", "fp16", "powersgd", "spardl")
WIDTHS = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)


def network(torch):
    layers, inputs = [], 3
    for width in WIDTHS:
        if width == 0:
            layers.append(torch.nn.MaxPool2d(2))
            continue
        layers += [torch.nn.Conv2d(inputs, width, 3, padding=1), torch.nn.BatchNorm2d(width), torch.nn.ReLU()]
        inputs = width
    return torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(inputs, 10))


def data(torch):
    """Digits of 32 by 32 pixels: the last 200 to test."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    images = torch.nn.functional.interpolate(images, size=32, mode="bilinear", align_corners=False).repeat(1, 3, 1, 1)
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return images[order[:-200]], labels[order[:-200]], images[order[-200:]], labels[order[-200:]]


def hook_on(model, name):
    """Registers a hook with the model, and gives Gleaner's."""
    from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks, powerSGD_hook

    if name == "none":
        model.register_comm_hook(None, debugging_hooks.noop_hook)
    elif name == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif name == "powersgd":
        state = powerSGD_hook.PowerSGDState(process_group=None, matrix_approximation_rank=1, start_powerSGD_iter=3)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif name == "spardl":
        import gleaner.torch

        return gleaner.torch.register(model, method="spardl", density=0.01)
    return None


def received():
    """Bytes that the host's interface has received."""
    with open("/proc/net/dev", encoding="ascii") as file:
        lines = dict(line.split(":", 1) for line in file if ":" in line)
    return sum(int(line.split()[0]) for name, line in lines.items() if name.strip() != "lo")


def work(arguments):
    """A worker: trains, and on rank 0 prints what it measured."""
    import torch
    import torch.distributed as dist

    rank, workers = int(os.environ["GLEANER_RANK"]), int(os.environ["GLEANER_WORLD_SIZE"])
    host, _, port = os.environ["GLEANER_RENDEZVOUS"].rpartition(":")
    torch.set_num_threads(1)
    # Numbers near zero would make steps of an untrained network many times slower.
    torch.set_flush_denormal(True)
    # Gleaner's rank 0 listens at the rendezvous.
    dist.init_process_group("gloo", init_method=f"tcp://{host}:{int(port) + 1}", rank=rank, world_size=workers)
    torch.manual_seed(0)
    images, labels, test_images, test_labels = data(torch)
    net = network(torch)
    options = {}
    if arguments.hook == "powersgd":
        # It reduces a bucket several times, in callbacks, and Gloo needs the order of all reductions to be the same on all ranks.
        dist._DEFAULT_FIRST_BUCKET_BYTES = 1 << 30
        options["bucket_cap_mb"] = 1024
    model = torch.nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True, broadcast_buffers=False, **options)
    hook = hook_on(model, arguments.hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss_of = torch.nn.CrossEntropyLoss()
    random = torch.Generator().manual_seed(1 + rank)
    warmup, seconds, before = arguments.steps // 3, [], 0
    for step in range(arguments.steps):
        if step == warmup:
            dist.barrier()
            before = received()
        chosen = torch.randint(len(labels), (arguments.batch,), generator=random)
        began = time.perf_counter()
        optimizer.zero_grad()
        loss_of(model(images[chosen]), labels[chosen]).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - began)
    bytes_received = (received() - before) / (arguments.steps - warmup)
    with torch.no_grad():
        # With the statistics of these images: those of so few steps would say little.
        loss = loss_of(net(test_images), test_labels).item() if rank == 0 else 0.0
    found = [None] * workers
    dist.all_gather_object(found, [statistics.median(seconds[warmup:]), bytes_received])
    if rank == 0:
        parameters = sum(parameter.numel() for parameter in net.parameters())
        result = {"seconds": max(f[0] for f in found), "bytes": max(f[1] for f in found), "loss": loss, "parameters": parameters,
                  "pytorch": torch.__version__}  # fmt: skip
        print("RESULT " + json.dumps(result), flush=True)
    if hook is not None:
        hook.session.leave()
    dist.barrier()
    # Not by the interpreter's end: PyTorch 1.13 may wait for itself when it takes a group of Gloo's down.
    os._exit(0)


def turn(arguments, hook, hostfile):
    """What one job measured; nothing of one that failed or did not end."""
    launch = ["gleaner", "launch", "--plain", "--hostfile", hostfile, "--agent", "ip netns exec", "--"]
    script = [sys.executable, "-W", "ignore", os.path.abspath(__file__), "--hook", hook, "--steps", str(arguments.steps)]
    # In a namespace the host's name resolves to another address.
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "eth0"}
    process = subprocess.Popen([*launch, *script, "--batch", str(arguments.batch)], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        said, _ = process.communicate(timeout=arguments.limit)
    except subprocess.TimeoutExpired:
        # The launcher ends its workers.
        process.terminate()
        process.communicate()
        print(f"{hook} did not end within {arguments.limit} s", file=sys.stderr, flush=True)
        return None
    lines = [line.partition("RESULT ")[2] for line in said.splitlines() if "RESULT " in line]
    if process.returncode != 0 or not lines:
        print(f"{hook} failed: {said[-4000:]}", file=sys.stderr, flush=True)
        return None
    return json.loads(lines[-1])


def drive(arguments):
    """Takes turns on emulated hosts of each rate, and prints a table for it."""
    for rate in arguments.rates.split(","):
        with tempfile.NamedTemporaryFile("w", suffix=".hosts") as hostfile:
            up = ["gleaner", "testbed", "up", "--hosts", str(arguments.hosts), "--bandwidth", rate, "--name", "hooks", "--replace"]
            hostfile.write(subprocess.run(up, check=True, stdout=subprocess.PIPE, text=True).stdout)
            hostfile.flush()
            found = {hook: [] for hook in arguments.hooks.split(",")}
            try:
                for number in range(arguments.turns):
                    for hook, results in found.items():
                        result = turn(arguments, hook, hostfile.name)
                        if result is not None:
                            results.append(result)
                            print(f"{rate}, turn {number + 1}, {hook}: {result['seconds']:.3f} s", file=sys.stderr, flush=True)
            finally:
                subprocess.run(["gleaner", "testbed", "down", "--name", "hooks"], check=True)
        found = {hook: results for hook, results in found.items() if results}
        if not found:
            raise SystemExit("no hook was measured; standard error says why")
        print(table(arguments, rate, found), flush=True)


def table(arguments, rate, found):
    median = {hook: {key: statistics.median(r[key] for r in results) for key in ("seconds", "bytes", "loss")} for hook, results in found.items()}
    first = next(iter(found.values()))[0]
    idle = median.get("none", {}).get("seconds")
    exposed = {hook: row["seconds"] - idle for hook, row in median.items()} if idle is not None else {}
    lines = [
        f"{arguments.hosts} hosts at {rate}, {first['parameters']:_} parameters, {arguments.batch} images on each, {arguments.steps} steps, "
        f"PyTorch {first['pytorch']}; medians of {arguments.turns} turns",
        "",
        f"{'hook':10}{'step':>12}{'exposed':>12}{'gloo / it':>12}{'step, gloo / it':>18}{'received':>14}{'held-out loss':>16}",
    ]
    for hook, row in median.items():
        is_compared = hook in exposed and "gloo" in exposed and hook != "none" and exposed[hook] > 0
        ratio = f"{exposed['gloo'] / exposed[hook]:.1f}" if is_compared else ""
        whole = f"{median['gloo']['seconds'] / row['seconds']:.2f}" if "gloo" in median else ""
        away = f"{1e3 * exposed[hook]:.1f} ms" if hook in exposed else ""
        loss = "" if hook == "none" else f"{row['loss']:.3f}"
        lines.append(
            f"{hook:10}{1e3 * row['seconds']:>9.1f} ms{away:>12}{ratio:>12}{whole:>18}{row['bytes'] / 1e6:>11.2f} MB{loss:>16}"
        )
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="1gbit,100mbit", help="of the hosts' links")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--steps", type=int, default=60, help="of a turn; the first third is not measured")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--batch", type=int, default=8, help="images for each worker and step")
    parser.add_argument("--limit", type=float, default=1800, help="seconds that a job may take; one that takes longer is ended")
    parser.add_argument("--hooks", default=",".join(HOOKS))
    parser.add_argument("--hook", choices=HOOKS, help="be a worker with this hook: what the experiment starts")
    arguments = parser.parse_args()
    if arguments.hook is None:
        drive(arguments)
    else:
        work(arguments)


if __name__ == "__main__":
    main()
