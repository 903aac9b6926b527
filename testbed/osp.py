#!/usr/bin/env python3
"""The tables of docs/src/results/osp.md, from what the experiments experiments/osp-*.toml have measured.

    RAYON_NUM_THREADS=1 gleaner testbed run experiments/osp-speed.toml
    testbed/osp.py [--runs runs] [speed|paced|figs6-8|fig9|fig3|slow …]

Reads the measurements of each experiment named (all that are there, if none is) below the folder of runs, and prints its table
in Markdown. A job that was not measured leaves its cells empty.
"""

import argparse
import json
import pathlib
import statistics

SYNCHRONIES = {
    "bsp": "BSP",
    "osp/budget=bound": "OSP at its bound",
    "osp": "OSP, S(G^u) by the loss",
    "asp": "ASP",
    "ssp/3": "SSP, 3 steps",
    "r2sp": "R²SP",
    "local/8": "8 local steps",
}


def load(folder):
    """(case, summary) of each job that ended well."""
    records = [json.loads(line) for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()]
    return [(record["case"], record["outcome"]["done"]) for record in records if "done" in record["outcome"]]


def pick(jobs, **wanted):
    """The summaries of the cases that have these options."""
    return [summary for case, summary in jobs if all(case.get(key) == value for key, value in wanted.items())]


def mean(summaries, field):
    values = [summary[field] for summary in summaries if summary.get(field) is not None]
    return statistics.fmean(values) if values else None


def table(head, rows):
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    print()


def milliseconds(seconds):
    return "" if seconds is None else f"{1e3 * seconds:.1f}"


def speed(jobs):
    rows = []
    for workers in (4, 8):
        pairs = {}
        for case, summary in jobs:
            if case["workers"] == workers and case.get("servers") == 1:
                pairs.setdefault(case["seed"], {})[case["synchrony"]] = summary
        pairs = [pair for pair in pairs.values() if {"bsp", "osp/budget=bound"} <= pair.keys()]
        if not pairs:
            continue
        bsp, osp = ([pair[name] for pair in pairs] for name in ("bsp", "osp/budget=bound"))
        computing, exchange = (mean(bsp, f"batch_{what}_seconds") for what in ("computation", "synchronisation"))
        x = exchange / computing
        ceiling = (1 + x) / (1 + x - min(1, 0.8 * x))
        ratio = mean(osp, "throughput_at_bound") / mean(bsp, "throughput")
        numbers = [f"{mean(bsp, 'throughput'):,.0f}", f"{mean(osp, 'throughput_at_bound'):,.0f}", f"{ratio:.2f}", f"{ceiling:.2f}"]
        losses = [f"{mean(of, 'held_out_loss'):.4f}" for of in (bsp, osp)]
        rows.append([str(workers), str(len(pairs)), milliseconds(computing), milliseconds(exchange), f"{x:.2f}", *numbers,
                     f"{ratio / ceiling:.2f}", *losses])
    table(["P", "seeds", "pass, ms", "exchange, ms", "x", "BSP, samples/s", "OSP at the bound", "ratio", "ceiling",
           "of the ceiling", "loss BSP", "loss OSP"], rows)
    rows = []
    for servers, name, label in [(0, "bsp", "BSP, a ring without a server"), *((1, *item) for item in SYNCHRONIES.items())]:
        row = [label]
        for workers in (4, 8):
            found = [summary for case, summary in jobs
                     if (case["seed"], case["workers"], case.get("servers", 0), case["synchrony"]) == (1, workers, servers, name)]
            row += [f"{found[0]['throughput']:,.0f}", f"{found[0]['bytes_per_step'] / 1e6:.2f}",
                    f"{found[0]['held_out_loss']:.4f}"] if found else ["", "", ""]
        rows.append(row)
    table(["synchrony", "samples/s, P = 4", "MB a step", "loss", "samples/s, P = 8", "MB a step", "loss"], rows)


def evaluated(summary):
    """Throughput, synchronisation time, the best evaluation, after how many steps and seconds."""
    step, accuracy = summary["best_step"], summary["best_held_out_accuracy"]
    took = next(e["seconds"] for e in summary["evaluations"] if e["step"] == step)
    best = f"{accuracy:.1%}" if accuracy is not None else f"{summary['best_held_out_loss']:.3f}"
    return [f"{summary['throughput']:,.0f}", f"{1e3 * summary['batch_synchronisation_seconds']:.0f}", best, str(step), f"{took:.1f}"]


def figs6_8(jobs):
    columns = ["samples/s", "BST, ms", "best", "after steps", "s"]
    for data, name in (("synthetic", "images"), ("text", "text")):
        rows = []
        for synchrony, label in SYNCHRONIES.items():
            found = [pick(jobs, data=data, synchrony=synchrony, rate=rate) for rate in ("1gbit", "10gbit")]
            if any(found):
                rows.append([label, *(cell for of in found for cell in (evaluated(of[0]) if of else [""] * 5))])
        table([name, f"1 Gbit/s: {columns[0]}", *columns[1:], f"10 Gbit/s: {columns[0]}", *columns[1:]], rows)


def fig9(jobs):
    rows = []
    for data, name in (("synthetic", "perceptron"), ("text", "LSTM")):
        bsp = pick(jobs, data=data, synchrony="bsp", colocate=False)
        apart, beside = (pick(jobs, data=data, synchrony="osp/budget=bound", colocate=colocate) for colocate in (False, True))
        times = [mean(bsp, "batch_computation_seconds"), mean(apart, "batch_computation_seconds"),
                 mean(beside, "batch_computation_seconds_colocated"), mean(beside, "batch_computation_seconds_apart")]
        rows.append([f"{name}, ms", *map(milliseconds, times)])
    table(["", "BSP", "OSP", "OSP, server beside rank 0: rank 0", "the others"], rows)


def fig3(jobs):
    rows = []
    for model in ("resnet20", "mlp"):
        for rate in ("1gbit", "10gbit"):
            row = [model, rate]
            for workers in (1, 2, 4, 8):
                found = pick(jobs, model=model, rate=rate, workers=workers)
                times = [mean(found, f"batch_{what}_seconds") for what in ("computation", "synchronisation")]
                row.append(f"{1e3 * times[0]:.0f} + {1e3 * times[1]:.0f}, {times[1] / sum(times):.0%}" if found else "")
            rows.append(row)
    table(["model", "rate", "P = 1", "2", "4", "8"], rows)


def slow(jobs):
    rows = []
    for synchrony, label in SYNCHRONIES.items():
        even, third, dealt = (pick(jobs, synchrony=synchrony, slow=slow, balance=balance)
                              for slow, balance in (("7=1", "even"), ("7=3", "even"), ("7=3", "speed")))
        if even and third:
            before, after = even[0]["throughput"], third[0]["throughput"]
            rows.append([label, f"{before:.0f}", f"{after:.0f}", f"{after / before:.2f}",
                         f"{dealt[0]['throughput']:.0f}" if dealt else "",
                         *(f"{of[0]['held_out_loss']:.3f}" for of in (even, third))])
    table(["synchrony", "samples/s", "with one at a third", "of it", "dealt out by speed", "loss", "with one at a third"], rows)


TABLES = {"speed": speed, "paced": speed, "figs6-8": figs6_8, "fig9": fig9, "fig3": fig3, "slow": slow}

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--runs", type=pathlib.Path, default=pathlib.Path("runs"), help="the folder of runs")
parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help=f"of {', '.join(TABLES)}")
arguments = parser.parse_args()
unknown = [name for name in arguments.experiments if name not in TABLES]
if unknown:
    parser.error(f"there is no experiment {unknown[0]}; expected one of {', '.join(TABLES)}")
for name in arguments.experiments or TABLES:
    jobs = load(arguments.runs / f"osp-{name}")
    if jobs:
        print(f"osp-{name}, {len(jobs)} jobs\n")
        TABLES[name](jobs)
    elif arguments.experiments:
        parser.error(f"{arguments.runs / f'osp-{name}'} has no measurements: gleaner testbed run experiments/osp-{name}.toml")
