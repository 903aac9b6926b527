"""A pass over a file of sparse samples by one worker of gleaner regress, by LIBLINEAR and by Vowpal Wabbit, in turns.

With a Python that has vowpalwabbit (pip), and liblinear-train on the PATH (apt-get install liblinear-tools):

    python experiments/one_worker.py --shape webspam --samples 8000

Each program minimises the logistic loss of the same samples with one thread: LIBLINEAR by its coordinate descent in the dual (-s 7), whose
iteration is a pass, Vowpal Wabbit by its SGD. The time of a pass comes from two runs of a program that differ in their passes alone; what is left
of the shorter one is its reading. Vowpal Wabbit reads its own format, into which the samples are written once, and makes later passes over its cache.
"""

import argparse
import importlib.util
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time


def missing():
    """What has to be installed first, in sentences."""
    said = []
    for program, what in [("gleaner", "the command gleaner: cargo install --path cli"), ("liblinear-train", "LIBLINEAR: apt-get install liblinear-tools")]:
        if shutil.which(program) is None:
            said.append(f"{program} is not on the PATH; install {what}")
    if importlib.util.find_spec("vowpalwabbit") is None:
        said.append("this Python has no vowpalwabbit; install it: pip install vowpalwabbit")
    return said


def timed(*words):
    """How long a program takes, and what it prints."""
    began = time.perf_counter()
    ended = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if ended.returncode != 0:
        raise SystemExit(f"{words[0]} ended with {ended.returncode}: {ended.stdout[-2000:]}")
    return time.perf_counter() - began, ended.stdout


def by_gleaner(files, passes):
    words = ["gleaner", "regress", "--data", files["svm"], "--workers", "1", "--threads", "1", "--epochs", str(passes), "--json"]
    seconds, said = timed(*words)
    return seconds, len(json.loads(said[said.index("{"):])["epochs"])


def by_liblinear(files, passes):
    # The looser its tolerance, the fewer iterations it makes; it prints how many.
    tolerance = {"1": "1e9"}.get(str(passes), "0.1")
    seconds, said = timed("liblinear-train", "-s", "7", "-c", "1", "-e", tolerance, files["svm"], files["model"])
    return seconds, int(re.search(r"#iter = (\d+)", said).group(1))


def by_vowpal_wabbit(files, passes):
    if os.path.exists(files["cache"]):
        os.remove(files["cache"])
    words = [sys.executable, "-m", "vowpalwabbit", "--data", files["vw"], "--loss_function", "logistic", "-b", files["bits"], "--sgd"]
    words += ["--passes", str(passes), "--holdout_off", "--cache_file", files["cache"], "--quiet"]
    seconds, _ = timed(*words)
    return seconds, passes


PROGRAMS = {"gleaner regress": by_gleaner, "LIBLINEAR": by_liblinear, "Vowpal Wabbit": by_vowpal_wabbit}


def measure(arguments, folder):
    """Seconds of a pass and of reading, by program, a value for each turn."""
    files = {name: os.path.join(folder, "samples." + name) for name in ("svm", "vw", "model", "cache")}
    files["bits"] = str({"url": 22, "webspam": 24}[arguments.shape])
    subprocess.run(["gleaner", "regress", "--data", arguments.shape, "--samples", str(arguments.samples), "--generate", files["svm"]], check=True, stdout=subprocess.DEVNULL)
    with open(files["svm"], encoding="ascii") as samples, open(files["vw"], "w", encoding="ascii") as file:
        file.writelines(line.replace(" ", " | ", 1) for line in samples)
    found = {name: [] for name in PROGRAMS}
    for _ in range(arguments.turns):
        for name, program in PROGRAMS.items():
            (short, few), (long, many) = program(files, 1), program(files, arguments.passes)
            each = (long - short) / (many - few)
            found[name].append((each, short - few * each))
    return os.path.getsize(files["svm"]), found


def table(arguments, size, found):
    ours = found["gleaner regress"]
    lines = [
        f"{arguments.samples:_} samples in the shape of {arguments.shape}, {size / 1e6:.0f} MB; medians of {arguments.turns} turns",
        "",
        f"{'':18}{'a pass':>12}{'of ours':>10}{'reading':>12}{'both':>12}{'of ours':>10}",
    ]
    for name, turns in found.items():
        each, reading = (statistics.median(turn[column] for turn in turns) for column in (0, 1))
        both = statistics.median(sum(turn) for turn in turns)
        ratios = [statistics.median(of(turn) / of(mine) for turn, mine in zip(turns, ours)) for of in (lambda turn: turn[0], sum)]
        lines.append(f"{name:18}{each:>10.3f} s{ratios[0]:>10.2f}{reading:>10.3f} s{both:>10.3f} s{ratios[1]:>10.2f}")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="webspam", choices=("url", "webspam"), help="of the synthetic samples")
    parser.add_argument("--samples", type=int, default=8000)
    parser.add_argument("--passes", type=int, default=9, help="of the longer run of gleaner regress and of Vowpal Wabbit")
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    if said := missing():
        raise SystemExit("\n".join(said))
    if arguments.passes < 2:
        raise SystemExit(f"--passes {arguments.passes}: two runs must differ in their passes; give 2 or more")
    with tempfile.TemporaryDirectory() as folder:
        print(table(arguments, *measure(arguments, folder)))


if __name__ == "__main__":
    main()
