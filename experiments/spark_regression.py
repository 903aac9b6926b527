"""Logistic regression by Apache Spark's MLlib and by gleaner regress, on the same data and the same emulated hosts.

As root, with a Python that has pyspark, and a Java that it runs on:

    python experiments/spark_regression.py --shape url --samples 64000 --rates 1gbit

Every host has a worker of a standalone Spark cluster with one executor of one core, and the driver runs on the first host. MLlib minimises
the mean logistic loss with an L2 penalty twice: by mini-batch SGD, whose batches are of as many samples as Gleaner's, and by L-BFGS, which is what Spark
recommends. Gleaner takes its turn on the same hosts, once for each method. An epoch of SGD is as many steps as batches make up the data; of L-BFGS it is an
iteration, which passes over the data at least once. Objectives are those of all samples at the end, computed by one program from the weights that
each leaves. Both have the best of the same four step sizes. Gleaner trains for --epochs, and Spark for 1, 2, 4, … until its objective is not above Gleaner's: how
long that training takes is the time to the same loss.
"""

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

NAME = "spark"
PORT = 7077
# Step sizes of SGD that are tried. MLlib's fall with the square root of the steps, and Gleaner's stay.
STEPS = (0.1, 1.0, 10.0, 100.0)


def missing():
    """What has to be installed first, in sentences."""
    said = []
    if os.geteuid() != 0:
        said.append("emulated hosts need root: run it as root")
    for program, what in [("gleaner", "the command gleaner: cargo install --path cli"), ("java", "Java 17 or later: apt-get install default-jre-headless"), ("ip", "iproute2: apt-get install iproute2")]:
        if shutil.which(program) is None:
            said.append(f"{program} is not on the PATH; install {what}")
    for module, package in [("pyspark", "pyspark"), ("numpy", "numpy"), ("sklearn", "scikit-learn")]:
        if importlib.util.find_spec(module) is None:
            said.append(f"this Python has no {module}; install it: pip install {package}")
    return said


def home():
    return os.path.dirname(importlib.util.find_spec("pyspark").origin)


def inside(namespace, *words, **options):
    return subprocess.Popen(["ip", "netns", "exec", namespace, *words], **options)


def received(namespace):
    """Bytes that a host's interface has received."""
    read = ["ip", "netns", "exec", namespace, "cat", "/proc/net/dev"]
    said = subprocess.run(read, check=True, stdout=subprocess.PIPE, text=True).stdout
    lines = dict(line.split(":", 1) for line in said.splitlines() if ":" in line)
    return sum(int(line.split()[0]) for name, line in lines.items() if name.strip() != "lo")


class Cluster:
    """A standalone cluster with a worker on each host."""

    def __init__(self, hosts, memory, folder):
        self.hosts = hosts
        first, address = hosts[0]
        start = os.path.join(home(), "bin", "spark-class")
        env = {**os.environ, "SPARK_DAEMON_MEMORY": "256m", "SPARK_NO_DAEMONIZE": "1", "SPARK_WORKER_DIR": folder, "SPARK_LOCAL_DIRS": folder}
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        master = ["org.apache.spark.deploy.master.Master", "--host", address, "--port", str(PORT), "--webui-port", "8080"]
        self.processes = [inside(first, start, *master, env={**env, "SPARK_LOCAL_IP": address}, **quiet)]
        time.sleep(5)
        for namespace, address_ in hosts:
            worker = ["org.apache.spark.deploy.worker.Worker", f"spark://{address}:{PORT}", "--host", address_, "--cores", "1", "--memory", memory]
            self.processes.append(inside(namespace, start, *worker, env={**env, "SPARK_LOCAL_IP": address_}, **quiet))
        self.url = f"spark://{address}:{PORT}"

    def end(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait()


def drive(arguments):
    """Spark's driver: trains by both algorithms, and prints what it measured."""
    from pyspark.sql import SparkSession

    address = arguments.address
    options = {"spark.driver.host": address, "spark.driver.bindAddress": address, "spark.driver.memory": arguments.memory,
               "spark.executor.memory": arguments.memory, "spark.executor.cores": "1", "spark.cores.max": str(arguments.hosts),
               "spark.ui.enabled": "false", "spark.driver.maxResultSize": "0", "spark.rpc.message.maxSize": "1024",
               "spark.locality.wait": "0", "spark.local.dir": arguments.folder}  # fmt: skip
    builder = SparkSession.builder.master(arguments.master).appName("gleaner-beside")
    for name, value in options.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    jvm = spark.sparkContext._jvm
    deadline = time.monotonic() + 60
    while spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() <= arguments.hosts:
        if time.monotonic() > deadline:
            raise SystemExit(f"{arguments.hosts} executors were expected within 60 s; see the logs in {arguments.folder}")
        time.sleep(0.5)
    data = jvm.org.apache.spark.mllib.util.MLUtils.loadLibSVMFile(spark.sparkContext._jsc.sc(), "file://" + arguments.data, arguments.features, arguments.hosts)
    data = data.repartition(arguments.hosts, None).cache()
    steps = max(1, round(data.count() / (arguments.batch * arguments.hosts)))
    found = {}
    for algorithm in ("sgd", "lbfgs"):
        step = 1.0
        if algorithm == "sgd":
            # These trials also let the virtual machines compile what they run.
            step = best(lambda step: train(arguments, jvm, data, algorithm, step, steps, 1))
        epochs = 1
        while True:
            result = train(arguments, jvm, data, algorithm, step, steps, epochs)
            if result["objective"] <= arguments.target or 2 * epochs > arguments.most:
                break
            epochs *= 2
        result["reached"] = result["seconds"] if result["objective"] <= arguments.target else None
        found[algorithm] = {**result, "step": step if algorithm == "sgd" else None}
    print("RESULT " + json.dumps(found), flush=True)
    spark.stop()


def train(arguments, jvm, data, algorithm, step, steps, epochs):
    """A training by Spark: epochs of that many steps by SGD, or as many iterations of L-BFGS."""
    import numpy

    zeros = jvm.org.apache.spark.mllib.linalg.Vectors.zeros(arguments.features)
    before, began = traffic(arguments), time.perf_counter()
    if algorithm == "sgd":
        fraction = min(1.0, 1.0 / steps)
        learner = jvm.org.apache.spark.mllib.classification.LogisticRegressionWithSGD(step, steps * epochs, arguments.l2, fraction)
        learner.optimizer().setConvergenceTol(0.0)
    else:
        learner = jvm.org.apache.spark.mllib.classification.LogisticRegressionWithLBFGS()
        learner.setFeatureScaling(False)
        learner.optimizer().setNumIterations(epochs).setRegParam(arguments.l2).setConvergenceTol(0.0)
    learner.setValidateData(False)
    model = learner.run(data, zeros)
    seconds, total = time.perf_counter() - began, traffic(arguments) - before
    buffer = jvm.java.nio.ByteBuffer.allocate(8 * arguments.features)
    buffer.asDoubleBuffer().put(model.weights().toArray())
    weights = numpy.frombuffer(buffer.array(), dtype=">f8").astype(float)
    return {"seconds": seconds, "bytes": total / epochs, "epochs": epochs, "objective": objective(arguments, weights)}


def best(trained):
    """The step size with the least objective after an epoch."""
    objectives = {step: trained(step)["objective"] for step in STEPS}
    return min(objectives, key=objectives.get)


def traffic(arguments):
    """Bytes that all hosts have received."""
    return sum(received(namespace) for namespace in arguments.namespaces.split(",")) if arguments.namespaces else 0


def turn(arguments, hosts, hostfile, folder, method, step, epochs):
    """What one job of gleaner regress measured."""
    import numpy

    weights = os.path.join(folder, method + ".weights")
    launch = ["gleaner", "launch", "--plain", "--hostfile", hostfile, "--agent", "ip netns exec", "--"]
    job = ["gleaner", "regress", "--data", arguments.data, "--features", str(arguments.features), "--l2", str(arguments.l2), "--batch", str(arguments.batch)]
    job += ["--lr", str(step), "--epochs", str(epochs), "--method", method, "--liblinear", weights, "--json"]
    before = sum(received(namespace) for namespace, _ in hosts)
    said = subprocess.run([*launch, *job], check=True, stdout=subprocess.PIPE, text=True).stdout
    total = sum(received(namespace) for namespace, _ in hosts) - before
    printed = json.loads(said[said.index("{"):])
    with open(weights, encoding="ascii") as file:
        head, _, values = file.read().partition("\nw\n")
    # LIBLINEAR's weights are for the label that is named first.
    sign = 1.0 if float(re.search(r"^label (\S+)", head, re.M).group(1)) > 0 else -1.0
    seconds = sum(epoch["seconds"] for epoch in printed["epochs"])
    reached = objective(arguments, sign * numpy.array(values.split(), dtype=float))
    return {"seconds": seconds, "reached": seconds, "bytes": total / epochs, "epochs": epochs, "objective": reached, "step": step}


def spark(arguments, hosts, folder, target):
    """What Spark measured, by both algorithms."""
    cluster = Cluster(hosts, arguments.memory, folder)
    try:
        namespace, address = hosts[0]
        script = [sys.executable, os.path.abspath(__file__), "--be-driver", "--master", cluster.url, "--address", address, "--folder", folder]
        script += ["--namespaces", ",".join(namespace for namespace, _ in hosts), "--data", arguments.data, "--hosts", str(len(hosts)), "--target", repr(target)]
        for name in ("features", "batch", "l2", "memory", "most"):
            script += ["--" + name, str(getattr(arguments, name))]
        driver = inside(namespace, *script, stdout=subprocess.PIPE, text=True, env={**os.environ, "SPARK_LOCAL_IP": address})
        said, _ = driver.communicate(timeout=arguments.limit)
    finally:
        cluster.end()
    lines = [line.partition("RESULT ")[2] for line in said.splitlines() if line.startswith("RESULT ")]
    if not lines:
        raise SystemExit(f"Spark's driver ended with {driver.returncode} and without a result: {said[-2000:]}")
    return {"spark " + algorithm: result for algorithm, result in json.loads(lines[-1]).items()}


def objective(arguments, weights):
    """F(w) over all samples."""
    import numpy
    from sklearn.datasets import load_svmlight_file

    if not hasattr(objective, "data"):
        objective.data = load_svmlight_file(arguments.data, n_features=arguments.features)
    samples, labels = objective.data
    margins = (samples @ weights) * numpy.where(labels > 0, 1.0, -1.0)
    return float(numpy.logaddexp(0.0, -margins).mean() + arguments.l2 / 2 * (weights @ weights))


def measure(arguments):
    """Takes turns on emulated hosts of each rate, and prints a table for it."""
    with tempfile.TemporaryDirectory() as folder:
        if arguments.data is None:
            arguments.data, made = os.path.join(folder, "data.svm"), os.path.join(folder, "made.svm")
            make = ["gleaner", "regress", "--data", arguments.shape, "--samples", str(arguments.samples), "--generate", made]
            subprocess.run([*make, "--features", str(arguments.features)], check=True, stdout=subprocess.DEVNULL)
            # MLlib's classes are 0 and 1.
            with open(made, encoding="ascii") as lines, open(arguments.data, "w", encoding="ascii") as file:
                file.writelines("0" + line[2:] if line.startswith("-1") else line for line in lines)
            os.remove(made)
        for rate in arguments.rates.split(","):
            hostfile = os.path.join(folder, "hosts")
            up = ["gleaner", "testbed", "up", "--hosts", str(arguments.hosts), "--bandwidth", rate, "--name", NAME, "--replace"]
            said = subprocess.run(up, check=True, stdout=subprocess.PIPE, text=True).stdout
            with open(hostfile, "w", encoding="ascii") as file:
                file.write(said)
            hosts = [(line.split()[0], re.search(r"\d+\.\d+\.\d+\.\d+", line).group(0)) for line in said.splitlines() if line and line[0] != "#"]
            try:
                methods = arguments.methods.split(",")
                step = best(lambda step: turn(arguments, hosts, hostfile, folder, methods[0], step, 1))
                found = {method: turn(arguments, hosts, hostfile, folder, method, step, arguments.epochs) for method in methods}
                # Methods add in different orders, so that objectives differ in their last digits.
                target = max(result["objective"] for result in found.values()) * (1 + 1e-6)
                found.update(spark(arguments, hosts, folder, target))
            finally:
                subprocess.run(["gleaner", "testbed", "down", "--name", NAME], check=True)
            print(table(arguments, rate, found), flush=True)


def table(arguments, rate, found):
    epoch = {name: result["seconds"] / result["epochs"] for name, result in found.items()}
    ours = [name for name in found if not name.startswith("spark")]
    fastest, soonest = min(epoch[name] for name in ours), min(found[name]["reached"] for name in ours)
    lines = [
        f"{arguments.hosts} hosts at {rate}, {os.path.getsize(arguments.data) / 1e6:.0f} MB of samples with {arguments.features:_} features, "
        f"batches of {arguments.batch} samples for each worker",
        "",
        f"{'':32}{'epoch':>11}{'of the fastest':>16}{'received by all':>18}{'epochs':>8}{'objective':>11}{'same loss after':>17}{'ratio':>8}",
    ]
    for name, row in found.items():
        label = name + (f", step {row['step']:g}" if row["step"] else "")
        reached, ratio = ("not", "") if row["reached"] is None else (f"{row['reached']:.2f} s", f"{row['reached'] / soonest:.1f}")
        line = f"{label:32}{epoch[name]:>9.3f} s{epoch[name] / fastest:>16.1f}{row['bytes'] / 1e6:>15.1f} MB{row['epochs']:>8}{row['objective']:>11.4f}"
        lines.append(f"{line}{reached:>17}{ratio:>8}")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="url", choices=("url", "webspam"), help="of synthetic data")
    parser.add_argument("--samples", type=int, default=64000, help="of synthetic data")
    parser.add_argument("--data", help="a LIBSVM file instead, with labels 0 and 1")
    parser.add_argument("--features", type=int, help="by default those of the synthetic data")
    parser.add_argument("--rates", default="1gbit", help="of the hosts' links")
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--batch", type=int, default=1000, help="samples of each worker in a step of SGD")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--l2", type=float, default=1e-6)
    parser.add_argument("--most", type=int, default=16, help="epochs in which Spark may reach the objective that gleaner regress reaches")
    parser.add_argument("--methods", default="ssar-split-all-gather,ring")
    parser.add_argument("--memory", default="2g", help="of each executor, and of the driver")
    parser.add_argument("--limit", type=float, default=1800, help="seconds that Spark may take")
    parser.add_argument("--be-driver", action="store_true", help="be Spark's driver: what the experiment starts")
    for name in ("master", "address", "folder", "namespaces"):
        parser.add_argument("--" + name, help=argparse.SUPPRESS)
    parser.add_argument("--target", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.be_driver:
        return drive(arguments)
    if arguments.features is None:
        arguments.features = {"url": 3_231_961, "webspam": 16_609_143}[arguments.shape]
    if arguments.data is not None:
        arguments.data = os.path.abspath(arguments.data)
    said = missing()
    if said:
        raise SystemExit("\n".join(said))
    return measure(arguments)


if __name__ == "__main__":
    main()
