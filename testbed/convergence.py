#!/usr/bin/env python3
"""What sparse gradients do to training: the same model, data and steps, by each method in turn, over several seeds.

    testbed/convergence.py [--models lstm,mlp] [--runs dense,spardl,…] [--seeds 1,2,3] [--steps STEPS] [--density 0.01]
                           [--momentum M] [--lr RATE] [--train "OPTIONS"] [--results FILE] [--resume] [--curves] [--json]

The models are an LSTM that learns the text inside the program, and a perceptron that learns the images of digits.py. All
runs are trainings by `gleaner train` with four workers on this machine. They take turns: all runs with the first seed,
then all with the second, and so on. The table has the final held-out loss, mean and spread over the seeds (half of the
largest less the smallest), the ratio of the mean to the dense run's, and what an update had in entries and cost in bytes.

A hard threshold has to be known before the training. It is found by bisection: in trainings of a quarter of the steps, with
a seed of their own, until updates have as many entries as TopkA's in such a training, within a tenth.

Every training is kept as a line of JSON in the results file. With --resume, what is there is not measured again. A line
counts only for the program that made it, because the text to be learnt is inside the program. Needs a release build.
"""

import argparse
import hashlib
import json
import pathlib
import shlex
import signal
import statistics
import subprocess
import sys

import digits

here = pathlib.Path(__file__).resolve().parent

# What gleaner train is asked for in each run. TOPKA_THRESHOLD stands for the threshold that is found.
RUNS = {
    "dense": ["--method", "ring"],
    "spardl": ["--method", "spardl"],
    "spardl partial": ["--method", "spardl", "--residual", "partial"],
    "spardl local": ["--method", "spardl", "--residual", "local"],
    "oktopk": ["--method", "oktopk"],
    "gtopk": ["--method", "gtopk"],
    "topka": ["--method", "topka"],
    "threshold": ["--method", "topka", "--selector", "TOPKA_THRESHOLD"],
    "exdyna": ["--method", "exdyna"],
    "clt-k": ["--method", "clt-k"],
}

# Steps, rates and momentum suit dense and sparse exchange alike; docs/src/results/convergence.md tells how they were found.
MODELS = {
    "lstm": dict(data="text", steps=1000, batch=4, momentum=0.9, lr=1.0),
    "mlp": dict(data="digits", steps=2000, batch=16, momentum=0.0, lr=0.1),
    "resnet20": dict(data="synthetic", steps=500, batch=16, momentum=0.9, lr=0.05),
}
DROPS = "0.6,0.85"
SEED_OF_SEARCH = 1000

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--models", default="lstm,mlp", help=f"of {', '.join(MODELS)}")
parser.add_argument("--runs", default=",".join(RUNS), help=f"of {', '.join(RUNS)}; the ratio needs dense")
parser.add_argument("--seeds", default="1,2,3")
parser.add_argument("--steps", type=int, help="the same for all models, like --momentum and --lr [default: by model]")
parser.add_argument("--density", type=float, default=0.01)
parser.add_argument("--momentum", type=float)
parser.add_argument("--lr", type=float, help="the learning rate")
parser.add_argument("--lr-drops", default=DROPS, help=f"when it drops to a tenth, as shares of the run [default: {DROPS}]")
parser.add_argument("--train", default="", metavar="OPTIONS", help="more options of gleaner train, for all runs")
parser.add_argument("--workers", type=int, default=4)
parser.add_argument("--timeout", default="600s", help="how long a silent worker counts as alive")
parser.add_argument("--digits", type=pathlib.Path, default=pathlib.Path("digits"), help="where digits.py keeps its images")
parser.add_argument("--program", type=pathlib.Path, default=here.parent / "target" / "release" / "gleaner")
parser.add_argument("--results", type=pathlib.Path, default=pathlib.Path("convergence.jsonl"))
parser.add_argument("--resume", action="store_true", help="go on with an existing results file")
parser.add_argument("--curves", action="store_true", help="print the held-out loss during the trainings, too")
parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
arguments = parser.parse_args()

models = arguments.models.split(",")
runs = arguments.runs.split(",")
seeds = [int(seed) for seed in arguments.seeds.split(",")]
for asked, known in ((models, MODELS), (runs, RUNS)):
    for name in asked:
        if name not in known:
            parser.error(f"there is no {name}; expected some of {', '.join(known)}")
if not arguments.program.is_file():
    sys.exit(f"there is no {arguments.program}: cargo build --release")
if arguments.results.exists() and not arguments.resume:
    sys.exit(f"{arguments.results} exists: go on with --resume, or name another file with --results")

program = hashlib.sha256(arguments.program.read_bytes()).hexdigest()
measured = {}
if arguments.results.exists():
    for line in arguments.results.read_text().splitlines():
        # The last line may have been cut off.
        if line.endswith("}"):
            entry = json.loads(line)
            measured[entry["program"], *entry["options"]] = entry


def setting(model, name):
    """What was asked for, or the model's own."""
    asked = getattr(arguments, name)
    return MODELS[model][name] if asked is None else asked


def options(model, run, seed, steps, drops):
    """The options of one training."""
    data = MODELS[model]["data"]
    chosen = ["--model", model, "--data", f"mnist:{arguments.digits}" if data == "digits" else data, *RUNS[run]]
    chosen += ["--workers", arguments.workers, "--seed", seed, "--steps", steps, "--batch", MODELS[model]["batch"]]
    chosen += ["--lr", setting(model, "lr"), "--momentum", setting(model, "momentum"), "--density", arguments.density]
    chosen += ["--timeout", arguments.timeout]
    chosen += ["--lr-drops", arguments.lr_drops] if drops and arguments.lr_drops else []
    return [*map(str, chosen), *shlex.split(arguments.train)]


def train(chosen):
    """Trains, unless that has been done, and gives the result."""
    key = (program, *chosen)
    if key not in measured:
        # The launcher ends its workers when it is told to end.
        child = subprocess.Popen(
            [arguments.program, "train", "--json", "--merge", "single", *chosen], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            out, err = child.communicate()
        except BaseException:
            child.terminate()
            child.communicate()
            raise
        entry = {"program": program, "options": chosen}
        if child.returncode == 0:
            entry |= json.loads(out.splitlines()[-1])
        elif "finite number" in err or "the training diverged" in err:
            entry["diverged"] = err.strip().splitlines()[-1]
        else:
            sys.exit(f"gleaner train {shlex.join(chosen)} failed:\n{err}")
        with arguments.results.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        measured[key] = entry
    return measured[key]


def progress(text):
    """A line that the next one replaces on a terminal."""
    ends = ("\r\033[K", "") if sys.stderr.isatty() else ("", "\n")
    print(f"{ends[0]}{text}", end=ends[1], file=sys.stderr, flush=True)


def find_threshold(model):
    """The threshold whose updates have as many entries as TopkA's, by bisection of its logarithm."""
    steps = setting(model, "steps") // 4
    short = ["--evaluate-every", str(steps)]
    aim = train(options(model, "topka", SEED_OF_SEARCH, steps, False) + short).get("entries_per_step")
    if aim is None:
        sys.exit(f"{model}: TopkA's training diverged, so there is no count to find a threshold for: try a lower --lr")

    def entries(threshold):
        chosen = options(model, "threshold", SEED_OF_SEARCH, steps, False) + short
        found = train([f"threshold={threshold:.4g}" if option == "TOPKA_THRESHOLD" else option for option in chosen])
        progress(f"{model}: threshold {threshold:.4g}: {found.get('entries_per_step', 0):,.0f} entries, aiming at {aim:,.0f}")
        # A training that diverged had a threshold that let too little through.
        return found.get("entries_per_step", 0)

    low, high = 1e-5, 1.0
    while True:
        threshold = (low * high) ** 0.5
        found = entries(threshold)
        if abs(found / aim - 1) < 0.1 or high / low < 1.02:
            return float(f"{threshold:.4g}")
        low, high = (threshold, high) if found > aim else (low, threshold)


def all_trainings():
    """Trains all that was asked for; gives the results by model and run, one for each seed, and the thresholds."""
    thresholds = {model: find_threshold(model) for model in models if "threshold" in runs}
    results = {model: {run: [] for run in runs} for model in models}
    total, done = len(seeds) * len(models) * len(runs), 0
    for seed in seeds:
        for model in models:
            for run in runs:
                chosen = options(model, run, seed, setting(model, "steps"), True)
                chosen = [f"threshold={thresholds[model]}" if option == "TOPKA_THRESHOLD" else option for option in chosen]
                result = train(chosen)
                results[model][run].append(result)
                done += 1
                loss = f"{result['held_out_loss']:.4f}" if "held_out_loss" in result else "diverged"
                progress(f"{done} of {total}: {model}, {run}, seed {seed}: {loss} after {result.get('seconds', 0):.1f} s")
    return results, thresholds


def over_seeds(results, field):
    """Mean and spread of a field; None where a training diverged or has no such field."""
    values = [result.get(field) for result in results]
    if None in values:
        return None, None
    return statistics.mean(values), (max(values) - min(values)) / 2


def row_of(run, results, dense):
    loss, loss_spread = over_seeds(results, "held_out_loss")
    accuracy, accuracy_spread = over_seeds(results, "held_out_accuracy")
    entries, _ = over_seeds(results, "entries_per_step")
    dense_loss = over_seeds(dense, "held_out_loss")[0] if dense else None
    row = dict(run=run, loss=loss, loss_spread=loss_spread, accuracy=accuracy, accuracy_spread=accuracy_spread)
    row["ratio"] = loss / dense_loss if loss and dense_loss else None
    row["delivered_share"] = entries / results[0]["parameters"] if entries else None
    row["bytes_per_step"] = over_seeds(results, "bytes_per_step")[0]
    row["diverged"] = sum("diverged" in result for result in results)
    row["seconds"] = over_seeds(results, "seconds")[0]
    curves = [result["loss_curve"] for result in results if "loss_curve" in result]
    row["loss_curve"] = [[points[0][0], statistics.mean(loss for _, loss in points)] for points in zip(*curves)]
    return row


def shown(value, spread, form):
    if value is None:
        return "-"
    return f"{value:{form}} ± {spread:{form}}" if spread is not None else f"{value:{form}}"


def print_table(model, rows, parameters):
    settings = [f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''}", f"density {arguments.density:.3g}"]
    settings += [f"{name} {setting(model, name)}" for name in ("steps", "momentum", "lr")]
    settings += [arguments.train] if arguments.train else []
    print(f"\n{model}, {parameters:,} parameters, {arguments.workers} workers, {', '.join(settings)}")
    print(f"{'run':16}{'held-out loss':>18}{'/ dense':>9}{'accuracy':>16}{'delivered':>11}{'bytes a step':>14}")
    for row in rows:
        loss = f"{row['diverged']} diverged" if row["diverged"] else shown(row["loss"], row["loss_spread"], ".4f")
        accuracy = shown(row["accuracy"], row["accuracy_spread"], ".1%")
        delivered = shown(row["delivered_share"], None, ".2%")
        received = shown(row["bytes_per_step"], None, ",.0f")
        print(f"{row['run']:16}{loss:>18}{shown(row['ratio'], None, '.3f'):>9}{accuracy:>16}{delivered:>11}{received:>14}")


def print_curves(rows):
    points = [step for step, _ in rows[0]["loss_curve"]]
    print(f"\n{'loss after step':16}" + "".join(f"{step:>8}" for step in points))
    for row in rows:
        print(f"{row['run']:16}" + "".join(f"{loss:8.3f}" for _, loss in row["loss_curve"]))


if any(MODELS[model]["data"] == "digits" for model in models) and not (arguments.digits / digits.LAST).exists():
    progress(f"making images in {arguments.digits}")
    digits.make(arguments.digits)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
try:
    results, thresholds = all_trainings()
except KeyboardInterrupt:
    sys.exit(f"\ninterrupted; {len(measured)} trainings are in {arguments.results}: go on with --resume")
if sys.stderr.isatty():
    print(file=sys.stderr)

tables = {model: [row_of(run, results[model][run], results[model].get("dense")) for run in runs] for model in models}
if arguments.json:
    own = {model: {name: setting(model, name) for name in ("steps", "momentum", "lr")} for model in models}
    common = {name: getattr(arguments, name) for name in ("density", "workers", "lr_drops", "train")}
    common |= {"seeds": seeds, "program": program, "thresholds": thresholds}
    print(json.dumps(common | {"settings": own, "models": tables}))
else:
    for model, threshold in thresholds.items():
        print(f"hard threshold of {model}: {threshold:.4g}")
    for model, rows in tables.items():
        parameters = next((r["parameters"] for run in results[model].values() for r in run if "parameters" in r), 0)
        print_table(model, rows, parameters)
        if arguments.curves:
            print_curves(rows)
