#!/usr/bin/env python3
"""All methods side by side across emulated hosts, and whether `auto` chooses well.

    testbed/methods.py [--hosts 6] [--steps 20] [--rates 1gbit,10gbit] [--params 14728266,269722]
                       [--densities 0.01,0.001] [--skip METHOD,…] [--json FILE]

For each case: a job with the method `auto` runs until it has chosen, and reports what it took. Then all methods, SparDL
also with teams, take turns in one job on the same gradients, and the table gives medians and quartiles over the steps.
The last line of a case is the median of what `auto` took over the best median. Needs root (network namespaces) and a
release build. Emulated hosts are made and removed by gleaner testbed.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

here = pathlib.Path(__file__).resolve().parent
gleaner = here.parent / "target" / "release" / "gleaner"

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--hosts", type=int, default=6)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--rates", default="1gbit,10gbit")
parser.add_argument("--params", default="14728266,269722")
parser.add_argument("--densities", default="0.01,0.001")
parser.add_argument("--skip", default="", help="methods that are left out of the comparison")
parser.add_argument("--json", type=pathlib.Path, help="write all figures there, too")
arguments = parser.parse_args()


def report(command):
    """Runs a command and gives the JSON object that rank 0 prints."""
    command = list(map(str, command))
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{run.stderr}")
    # A launcher puts the rank before each line.
    lines = [line.removeprefix("[0] ") for line in run.stdout.splitlines()]
    return json.loads([line for line in lines if line.startswith("{")][-1])


def bench(hostfile, *options):
    """Runs one job across the emulated hosts."""
    return report([gleaner, "launch", "--hostfile", hostfile, "--agent", "ip netns exec", "--", gleaner, "bench", "--json", *options])


def methods():
    """The names that `all` stands for among so many workers, then SparDL with every number of teams."""
    small = ["--params", 1000, "--warmup", 0, "--steps", 1]
    found = report([gleaner, "bench", "--json", "--workers", arguments.hosts, *small, "--method", "all"])["methods"]
    names = [row["method"] for row in found if row["method"] not in arguments.skip.split(",")]
    return names + [f"spardl/{d}" for d in range(2, arguments.hosts + 1) if arguments.hosts % d == 0]


def choice(hostfile, params, density):
    """What `auto` chooses, with its forecast and what it tried."""
    chosen = bench(
        hostfile, "--method", "auto", "--params", params, "--density", density, "--warmup", 250, "--steps", 1
    )["auto"]
    if not chosen["decided"]:
        sys.exit(f"auto has not chosen after 250 steps: {chosen}")
    return chosen


def label(chosen):
    """As the table names a method."""
    teams = chosen["options"].get("teams", "1")
    return chosen["method"] if teams == "1" else f"{chosen['method']}/{teams}"


def told(chosen):
    """What `auto` chose, in a line."""
    def name(method):
        options = ", ".join(f"{option} = {value}" for option, value in method["options"].items())
        return method["method"] + (f" with {options}" if options else "")

    def time(seconds):
        ms = 1e3 * seconds
        return f"{ms:.{2 if ms < 9.95 else 1 if ms < 99.5 else 0}f} ms"

    others = [f"{name(t)}: {time(t['seconds_measured'])}" for t in chosen["tried"] if name(t) != name(chosen)]
    took = f"{time(chosen['seconds_measured'])} a step measured ({time(chosen['seconds_expected'])} expected)"
    return f"auto chooses {name(chosen)}: {took}; tried {', '.join(others) or 'nothing else'}"


def compare(hostfile, names, params, density, chosen):
    """All methods in turns, SparDL's teams as `auto` brought them together."""
    options = ["--params", params, "--density", density, "--steps", arguments.steps, "--warmup", 3]
    if "sag" in chosen["options"]:
        options += ["--sag", chosen["options"]["sag"]]
    return bench(hostfile, "--method", ",".join(names), *options)


def ms(seconds):
    return f"{1e3 * seconds:9.2f}"


results = []
names = methods()
for rate in arguments.rates.split(","):
    up = subprocess.run([gleaner, "testbed", "up", "--hosts", str(arguments.hosts), "--rate", rate], capture_output=True, text=True)
    if up.returncode != 0:
        sys.exit(f"the emulated hosts cannot be set up: {up.stderr.strip()}")
    hosts = up.stdout
    try:
        with tempfile.NamedTemporaryFile("w", suffix=".hosts") as hostfile:
            hostfile.write(hosts)
            hostfile.flush()
            for params in arguments.params.split(","):
                for density in arguments.densities.split(","):
                    chosen = choice(hostfile.name, params, density)
                    found = compare(hostfile.name, names, params, density, chosen)
                    rows = sorted(found["methods"], key=lambda row: row["seconds"])
                    took = next((row for row in rows if row["method"] == label(chosen)), None)
                    ratio = took["seconds"] / rows[0]["seconds"] if took else float("nan")
                    results.append(dict(rate=rate, params=params, density=density, auto=chosen, ratio=ratio, rows=rows))
                    print(f"\n{rate}, n = {int(params):,}, density {density}, {arguments.hosts} hosts, {arguments.steps} steps")
                    print(f"{'method':24}{'ms':>9}{'25%':>9}{'75%':>9}{'select':>9}{'exchange':>9}{'merge':>9}{'bytes':>13}{'rounds':>7}{'delivered':>12}{'L2':>8}")
                    for row in rows:
                        print(
                            f"{row['method']:24}{ms(row['seconds'])}{ms(row['seconds_p25'])}{ms(row['seconds_p75'])}"
                            f"{ms(row['seconds_select'])}{ms(row['seconds_exchange'])}{ms(row['seconds_merge'])}"
                            f"{row['bytes_received']:13,}{row['rounds']:7}{row['entries_delivered']:12,}{row['l2_share']:8.4f}"
                        )
                    print(told(chosen))
                    print(f"auto's choice over the best median: {ratio:.2f}", flush=True)
    finally:
        subprocess.run([gleaner, "testbed", "down"], check=True)
if arguments.json:
    arguments.json.write_text(json.dumps(results, indent=1) + "\n")
