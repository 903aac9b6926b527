#!/usr/bin/env python3
"""How long a step takes across emulated hosts with 1 Gbit/s links, beside Gloo where PyTorch is installed.

    testbed/speed.py [--hosts 6] [--rate 1gbit] [--params 14728266] [--density 0.01] [--values exact]
                     [--turns 3] [--json]

SparDL tells its values in each of the codings that `--values` lists, such as exact,bf16,qsgd4. The methods take turns, so
that all of them see the same machine; the table gives medians over the turns. Bytes are those that the hosts' network
interfaces counted, acknowledgements and all headers included, a worker and step (the largest). Needs root (network namespaces) and a release build.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

here = pathlib.Path(__file__).resolve().parent
gleaner = here.parent / "target" / "release" / "gleaner"

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--hosts", type=int, default=6)
parser.add_argument("--rate", default="1gbit")
parser.add_argument("--params", type=int, default=14_728_266)
parser.add_argument("--density", type=float, default=0.01)
parser.add_argument("--values", default="exact", help="codings of SparDL's values, with commas between")
parser.add_argument("--steps", type=int, default=5)
parser.add_argument("--warmup", type=int, default=3)
parser.add_argument("--turns", type=int, default=3)
parser.add_argument("--python", default="/usr/bin/python3", help="a Python that has PyTorch with Gloo")
parser.add_argument("--json", action="store_true")
arguments = parser.parse_args()


def received(host):
    """What a host's interface has received so far, in bytes."""
    text = subprocess.run(
        ["ip", "-n", f"gleaner.host{host}", "-s", "-j", "link", "show", "eth0"], check=True, capture_output=True, text=True
    ).stdout
    return json.loads(text)[0]["stats64"]["rx"]["bytes"]


def measure(hostfile, command):
    before = [received(host) for host in range(arguments.hosts)]
    run = subprocess.run(
        [gleaner, "launch", "--hostfile", hostfile, "--agent", "ip netns exec", "--env", "GLOO_SOCKET_IFNAME=eth0", "--", *command],
        capture_output=True, text=True,
    )
    if run.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{run.stderr}")
    bytes_received = max(received(host) - then for host, then in enumerate(before))
    lines = [line.split("] ", 1)[1] for line in run.stdout.splitlines() if line.startswith("[0] {")]
    return json.loads(lines[-1])["seconds"], bytes_received / (arguments.steps + arguments.warmup)


def bench(method, values="exact"):
    return [
        gleaner, "bench", "--json", "--method", method, "--params", str(arguments.params), "--steps", str(arguments.steps),
        "--warmup", str(arguments.warmup), "--density", str(arguments.density), "--values", values,
    ]


commands = {"spardl" if values == "exact" else f"spardl {values}": bench("spardl", values) for values in arguments.values.split(",")}
commands["ring"] = bench("ring")
has_torch = subprocess.run([arguments.python, "-c", "import torch.distributed"], capture_output=True).returncode == 0
if has_torch:
    commands["gloo (dense)"] = [
        arguments.python, here / "src/peers/gloo.py", "--params", str(arguments.params), "--steps", str(arguments.steps),
        "--warmup", str(arguments.warmup),
    ]
else:
    print("no PyTorch here, so no Gloo to compare with: apt-get install python3-torch", file=sys.stderr)

samples = {name: [] for name in commands}
with tempfile.NamedTemporaryFile("w", suffix=".hosts") as hostfile:
    up = subprocess.run([gleaner, "testbed", "up", "--hosts", str(arguments.hosts), "--rate", arguments.rate], capture_output=True, text=True)
    if up.returncode != 0:
        sys.exit(f"the emulated hosts cannot be set up: {up.stderr.strip()}")
    try:
        hostfile.write(up.stdout)
        hostfile.flush()
        for _ in range(arguments.turns):
            for name, command in commands.items():
                samples[name].append(measure(hostfile.name, command))
    finally:
        subprocess.run([gleaner, "testbed", "down"], check=True)

table = [
    {
        "method": name,
        "seconds": statistics.median(seconds for seconds, _ in taken),
        "seconds_least": min(seconds for seconds, _ in taken),
        "seconds_most": max(seconds for seconds, _ in taken),
        "interface_bytes_received": round(statistics.median(count for _, count in taken)),
    }
    for name, taken in samples.items()
]
if arguments.json:
    print(json.dumps({"hosts": arguments.hosts, "rate": arguments.rate, "params": arguments.params, "methods": table}))
else:
    print(f"{arguments.hosts} hosts at {arguments.rate}, {arguments.params:,} entries, density {arguments.density}, {os.cpu_count()} cores")
    for row in table:
        ratio = row["seconds"] / table[-1]["seconds"]
        print(
            f"{row['method']:14} {row['seconds']:7.3f} s a step ({row['seconds_least']:.3f} to {row['seconds_most']:.3f}),"
            f" {ratio:5.2f} times {table[-1]['method']}, {row['interface_bytes_received']:>12,} bytes received"
        )
