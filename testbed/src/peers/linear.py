"""A pass over a file of sparse samples by LIBLINEAR or by Vowpal Wabbit, with one thread: the peers beside one worker of `gleaner regress`.

Both minimise the logistic loss: LIBLINEAR by coordinate descent in the dual (-s 7), whose iteration is a pass, and Vowpal Wabbit by SGD. The time of a
pass follows from two runs that differ in their passes alone; what is left of the shorter one is loading.
"""

import argparse
import json
import os
import re
import subprocess
import tempfile
import time

parser = argparse.ArgumentParser()
parser.add_argument("--method", required=True, choices=("liblinear", "vowpal-wabbit"))
parser.add_argument("--data", required=True, help="a LIBSVM file with the labels -1 and 1")
parser.add_argument("--epochs", type=int, required=True, help="passes of Vowpal Wabbit's longer run")
arguments = parser.parse_args()


class Liblinear:
    """It makes the fewer passes the larger its tolerance is, and says how many."""

    library = "LIBLINEAR -s 7"

    def __init__(self, folder):
        self.model = os.path.join(folder, "model")

    def run(self, passes):
        tolerance = "1e9" if passes == 1 else "0.01"
        words = ["liblinear-train", "-s", "7", "-c", "1", "-e", tolerance, arguments.data, self.model]
        clock = time.perf_counter()
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as program:
            for line in program.stdout:
                if found := re.search(r"#iter = (\d+)", line):
                    seconds = time.perf_counter() - clock
                    # Nobody reads the model that it would write now.
                    program.kill()
                    return seconds, int(found[1])
        raise SystemExit(f"{' '.join(words)} ended with {program.returncode} and named no #iter; run it by hand to see")


class VowpalWabbit:
    """It reads a format of its own, and makes later passes over its cache."""

    def __init__(self, folder):
        import vowpalwabbit

        self.program, self.library = vowpalwabbit.Workspace, f"Vowpal Wabbit {vowpalwabbit.__version__}"
        samples, highest = os.path.join(folder, "samples.vw"), 1
        with open(arguments.data, encoding="ascii") as lines, open(samples, "w", encoding="ascii") as file:
            for line in lines:
                file.write(line.replace(" ", " | ", 1))
                highest = max(highest, int(line.split()[-1].partition(":")[0]))
            file.flush()
            os.fsync(file.fileno())
        # With so many bits each feature has a weight of its own.
        self.words = f"--data {samples} --cache_file {samples}.cache -k --loss_function logistic --sgd -b {highest.bit_length()} --holdout_off --quiet"

    def run(self, passes):
        clock = time.perf_counter()
        self.program(f"{self.words} --passes {passes}").finish()
        return time.perf_counter() - clock, passes


with tempfile.TemporaryDirectory() as folder:
    program = (Liblinear if arguments.method == "liblinear" else VowpalWabbit)(folder)
    # This also brings the file into the memory of the system.
    with open(arguments.data, "rb") as lines:
        samples = sum(1 for _ in lines)
    (shorter, few), (longer, many) = program.run(1), program.run(arguments.epochs)
if many <= few:
    raise SystemExit(f"two runs made {few} and {many} passes; expected the second to make more: take other data")
each = (longer - shorter) / (many - few)
report = {
    "method": arguments.method,
    "library": program.library,
    "workers": 1,
    "samples": samples,
    "seconds_loading": shorter - few * each,
    "epochs": [{"epoch": epoch, "seconds": each} for epoch in range(1, many + 1)],
    "seconds_run": many * each,
}
print(json.dumps(report))
