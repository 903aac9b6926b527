#!/usr/bin/env python3
"""What sealing links costs: SparDL and a dense ring on this machine, over the loopback, with links that are encrypted and plain.

    testbed/sealing.py [--workers 4] [--params 269722,14728266] [--steps 300,12] [--turns 7] [--json]

In a turn each size is measured once sealed and once plain, one right after the other; which of the two goes first changes from
turn to turn. The table gives medians over the turns, of the median step of each run, and the median of the turns' ratios, with
the least and the greatest: a ratio is of two runs of one turn, so that what slows the machine for minutes slows both. Needs a
release build.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

here = pathlib.Path(__file__).resolve().parent
gleaner = here.parent / "target" / "release" / "gleaner"

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--workers", type=int, default=4)
parser.add_argument("--params", default="269722,14728266", help="sizes, with commas between")
parser.add_argument("--steps", default="300,12", help="steps of each size")
parser.add_argument("--turns", type=int, default=7)
parser.add_argument("--json", action="store_true")
arguments = parser.parse_args()
sizes = list(zip(map(int, arguments.params.split(",")), map(int, arguments.steps.split(",")), strict=True))


def measure(params, steps, is_plain):
    """The median step of each method, in seconds."""
    run = subprocess.run(
        [
            gleaner, "bench", "--json", "--workers", str(arguments.workers), "--params", str(params), "--method", "spardl,ring",
            "--density", "0.01", "--steps", str(steps),
        ],
        capture_output=True, text=True, env=os.environ | {"GLEANER_PLAIN": str(int(is_plain))},
    )
    if run.returncode != 0:
        sys.exit(f"gleaner bench failed:\n{run.stderr}")
    return {one["method"]: one["seconds"] for one in json.loads(run.stdout)["methods"]}


turns = []
for turn in range(arguments.turns):
    for params, steps in sizes:
        order = [False, True] if turn % 2 == 0 else [True, False]
        found = {is_plain: measure(params, steps, is_plain) for is_plain in order}
        turns += [(params, method, found[False][method], found[True][method]) for method in found[True]]

table = []
for params, steps in sizes:
    for method in ["spardl", "ring"]:
        taken = [(sealed, plain) for size, name, sealed, plain in turns if (size, name) == (params, method)]
        ratios = [sealed / plain for sealed, plain in taken]
        table.append({
            "params": params,
            "method": method,
            "steps": steps,
            "seconds_sealed": statistics.median(sealed for sealed, _ in taken),
            "seconds_plain": statistics.median(plain for _, plain in taken),
            "ratio": statistics.median(ratios),
            "ratio_least": min(ratios),
            "ratio_most": max(ratios),
        })
if arguments.json:
    print(json.dumps({"workers": arguments.workers, "turns": arguments.turns, "methods": table}))
else:
    print(f"{arguments.workers} workers, {arguments.turns} turns, {os.cpu_count()} cores")
    for row in table:
        print(
            f"{row['params']:>12,} entries, {row['steps']:>3} steps  {row['method']:6}  sealed {row['seconds_sealed'] * 1e3:7.2f} ms,"
            f" plain {row['seconds_plain'] * 1e3:7.2f} ms, sealed / plain {row['ratio']:.3f}"
            f" ({row['ratio_least']:.3f} to {row['ratio_most']:.3f})"
        )
