#!/usr/bin/env python3
"""All methods side by side across emulated hosts, and whether `auto` chooses well.

    testbed/methods.py [--hosts 6] [--steps 20] [--rates 1gbit,10gbit] [--params 14728266,269722]
                       [--densities 0.01,0.001] [--skip METHOD,…] [--json FILE]

For each case: a job with the method `auto` runs until it has settled, and says what it took. Then all methods, SparDL
also with teams, take turns in one job on the same gradients, and the table gives medians and quartiles over the steps.
The last line of a case is the median of what `auto` took over the best median. Needs root (network namespaces) and a
release build. Emulated hosts are made and removed by testbed/namespaces.sh.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

here = pathlib.Path(__file__).resolve().parent
gleaner = here.parent / "target" / "release" / "gleaner"
namespaces = here / "namespaces.sh"

METHODS = (
    "spardl ssar-recursive-double ssar-split-all-gather dsar-split-all-gather topka topkdsa gtopk oktopk "
    "ring rabenseifner recursive-doubling"
).split()

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--hosts", type=int, default=6)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--rates", default="1gbit,10gbit")
parser.add_argument("--params", default="14728266,269722")
parser.add_argument("--densities", default="0.01,0.001")
parser.add_argument("--skip", default="", help="methods that are left out of the comparison")
parser.add_argument("--json", type=pathlib.Path, help="write all figures there, too")
arguments = parser.parse_args()


def bench(hostfile, *options):
    """Runs one job; gives its JSON object and what it said on standard error."""
    command = [gleaner, "launch", "--hostfile", hostfile, "--agent", "ip netns exec", "--", gleaner, "bench", "--json", *options]
    run = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{run.stderr}")
    lines = [line.split("] ", 1)[1] for line in run.stdout.splitlines() if line.startswith("[0] {")]
    return json.loads(lines[-1]), run.stderr


def choice(hostfile, params, density):
    """What `auto` settles on, and its lines."""
    _, said = bench(
        hostfile, "--method", "auto", "--params", params, "--density", density, "--warmup", 250, "--steps", 1
    )
    lines = [line.split("gleaner: ", 1)[1] for line in said.splitlines() if "gleaner: auto " in line]
    if not lines:
        sys.exit(f"auto did not say what it takes:\n{said}")
    name = re.search(r"auto (?:takes|stays with|settles for) (\S+?)(?: with (\d+) teams)?(?: by (R|B)-SAG)?:", lines[-1])
    if not name:
        sys.exit(f"cannot read what auto took from: {lines[-1]}")
    return name.group(1), int(name.group(2) or 1), name.group(3), lines


def compare(hostfile, params, density, chosen):
    """All methods in turns, and SparDL with every number of teams."""
    options = ["--params", params, "--density", density, "--steps", arguments.steps, "--warmup", 3]
    names = [name for name in METHODS if name not in arguments.skip.split(",")]
    names += [f"spardl/{d}" for d in range(2, arguments.hosts + 1) if arguments.hosts % d == 0]
    if chosen[2]:
        options += ["--sag", {"R": "recursive", "B": "bruck"}[chosen[2]]]
    return bench(hostfile, "--method", ",".join(names), *options)[0]


def ms(seconds):
    return f"{1e3 * seconds:9.2f}"


results = []
for rate in arguments.rates.split(","):
    up = subprocess.run([namespaces, "up", str(arguments.hosts), rate], capture_output=True, text=True)
    if up.returncode != 0:
        sys.exit(f"the emulated hosts cannot be set up: {up.stderr.strip()}")
    hosts = up.stdout
    try:
        with tempfile.NamedTemporaryFile("w", suffix=".hosts") as hostfile:
            hostfile.write(hosts)
            hostfile.flush()
            for params in arguments.params.split(","):
                for density in arguments.densities.split(","):
                    method, teams, sag, said = choice(hostfile.name, params, density)
                    found = compare(hostfile.name, params, density, (method, teams, sag))
                    rows = sorted(found["methods"], key=lambda row: row["seconds"])
                    label = f"{method}/{teams}" if teams > 1 else method
                    took = next((row for row in rows if row["method"] == label), None)
                    ratio = took["seconds"] / rows[0]["seconds"] if took else float("nan")
                    results.append(
                        dict(rate=rate, params=params, density=density, said=said, method=method, teams=teams, ratio=ratio, rows=rows)
                    )
                    print(f"\n{rate}, n = {int(params):,}, density {density}, {arguments.hosts} hosts, {arguments.steps} steps")
                    print(f"{'method':24}{'ms':>9}{'25%':>9}{'75%':>9}{'select':>9}{'exchange':>9}{'merge':>9}{'bytes':>13}{'rounds':>7}{'delivered':>12}{'L2':>8}")
                    for row in rows:
                        print(
                            f"{row['method']:24}{ms(row['seconds'])}{ms(row['seconds_p25'])}{ms(row['seconds_p75'])}"
                            f"{ms(row['seconds_select'])}{ms(row['seconds_exchange'])}{ms(row['seconds_merge'])}"
                            f"{row['bytes_received']:13,}{row['rounds']:7}{row['entries_delivered']:12,}{row['l2_share']:8.4f}"
                        )
                    print(f"auto: {said[-1]}")
                    print(f"auto's choice over the best median: {ratio:.2f}", flush=True)
    finally:
        subprocess.run([namespaces, "down"], check=True)
if arguments.json:
    arguments.json.write_text(json.dumps(results, indent=1) + "\n")
