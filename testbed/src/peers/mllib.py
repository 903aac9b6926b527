"""Logistic regression by Apache Spark's MLlib, on a standalone cluster of emulated hosts: the peer beside `gleaner regress`.

It is started on the first host, where the master of the cluster and the driver run. A worker with one executor of one core is started on every host, by
agent.sh beside this file. GLEANER_TESTBED_HOSTS lists the hosts as NAMESPACE=ADDRESS with spaces between.
"""

import argparse
import contextlib
import json
import os
import shlex
import socket
import subprocess
import tempfile
import time

import numpy
import pyspark

PORT = 7077
# Of each executor, and of the driver.
MEMORY = "2g"
# Seconds in which the cluster has to start.
PATIENCE = 120
AGENT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "agent.sh")

parser = argparse.ArgumentParser()
parser.add_argument("--method", required=True, choices=("mllib-sgd", "mllib-lbfgs"))
parser.add_argument("--data", required=True, help="a LIBSVM file of two classes")
parser.add_argument("--features", type=int)
parser.add_argument("--batch", type=int, default=1000, help="samples of each worker in a step of SGD")
parser.add_argument("--lr", type=float, help="of SGD, which divides it by the root of the step's number")
parser.add_argument("--l2", type=float, default=0.0)
parser.add_argument("--epochs", type=int, required=True, help="of L-BFGS iterations")
arguments = parser.parse_args()
addresses = [host.partition("=")[2] for host in os.environ["GLEANER_TESTBED_HOSTS"].split()]
os.environ["SPARK_LOCAL_IP"] = addresses[0]


def eventually(what, holds):
    deadline = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > deadline:
            raise SystemExit(f"expected {what} within {PATIENCE} s, and it did not come; give the hosts more memory or fewer of them")
        time.sleep(0.2)


def listens():
    with socket.socket() as probe:
        return probe.connect_ex((addresses[0], PORT)) == 0


@contextlib.contextmanager
def cluster(folder):
    """A master on the first host, and a worker on each; the address of the master."""
    program = os.path.join(os.path.dirname(pyspark.__file__), "bin", "spark-class")
    env = {**os.environ, "SPARK_DAEMON_MEMORY": "256m", "SPARK_WORKER_DIR": folder, "SPARK_LOCAL_DIRS": folder}
    url, processes = f"spark://{addresses[0]}:{PORT}", []

    def start(address, what, *words):
        command = [AGENT, address, shlex.join([program, f"org.apache.spark.deploy.{what}", "--host", address, *words])]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        processes.append(subprocess.Popen(command, env={**env, "SPARK_LOCAL_IP": address}, **quiet))

    try:
        start(addresses[0], "master.Master", "--port", str(PORT))
        eventually("Spark's master to listen", listens)
        for address in addresses:
            start(address, "worker.Worker", url, "--cores", "1", "--memory", MEMORY)
        yield url
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


def received():
    """Bytes that the interface of each host has received."""
    read = "cat /sys/class/net/eth0/statistics/rx_bytes"
    return numpy.array([int(subprocess.check_output([AGENT, address, read])) for address in addresses])


def train(jvm, data, features, steps):
    """The seconds that a training takes, the bytes that the host which receives most receives, and the weights."""
    if arguments.method == "mllib-sgd":
        learner = jvm.org.apache.spark.mllib.classification.LogisticRegressionWithSGD(
            arguments.lr, steps * arguments.epochs, arguments.l2, 1.0 / steps
        )
        learner.optimizer().setConvergenceTol(0.0)
    else:
        learner = jvm.org.apache.spark.mllib.classification.LogisticRegressionWithLBFGS()
        learner.setFeatureScaling(False)
        learner.optimizer().setNumIterations(arguments.epochs).setRegParam(arguments.l2).setConvergenceTol(0.0)
    learner.setValidateData(False)
    zeros = jvm.org.apache.spark.mllib.linalg.Vectors.zeros(features)
    before, clock = received(), time.perf_counter()
    model = learner.run(data, zeros)
    seconds = time.perf_counter() - clock
    bytes_received = int((received() - before).max())
    buffer = jvm.java.nio.ByteBuffer.allocate(8 * features)
    buffer.asDoubleBuffer().put(model.weights().toArray())
    return seconds, bytes_received, numpy.frombuffer(buffer.array(), dtype=">f8").astype(float)


def objective(rows, positive, weights):
    """The mean loss of all samples with the penalty, as gleaner regress has it."""
    loss = 0.0
    for label, *entries in rows:
        numbers = numpy.array(" ".join(entries).replace(":", " ").split(), dtype=float)
        margin = numbers[1::2] @ weights[numbers[::2].astype(int) - 1]
        loss += numpy.logaddexp(0.0, -margin if float(label) == positive else margin)
    return loss / len(rows) + arguments.l2 / 2 * (weights @ weights)


with open(arguments.data, encoding="ascii") as lines:
    rows = [row for row in (line.partition("#")[0].split(None, 1) for line in lines) if row]
positive = max(float(label) for label, *_ in rows)
features = arguments.features or max(int(row[-1].split()[-1].partition(":")[0]) for row in rows if len(row) > 1)
steps = max(1, round(len(rows) / (arguments.batch * len(addresses)))) if arguments.method == "mllib-sgd" else 1
with tempfile.TemporaryDirectory() as folder, cluster(folder) as url:
    # MLlib's classes are 0 and 1.
    samples = os.path.join(folder, "samples.svm")
    with open(samples, "w", encoding="ascii") as file:
        file.writelines(f"{int(float(label) == positive)} {' '.join(entries).strip()}\n" for label, *entries in rows)
    options = {"spark.driver.host": addresses[0], "spark.driver.bindAddress": addresses[0], "spark.driver.memory": MEMORY,
               "spark.executor.memory": MEMORY, "spark.executor.cores": "1", "spark.cores.max": str(len(addresses)),
               "spark.ui.enabled": "false", "spark.driver.maxResultSize": "0", "spark.rpc.message.maxSize": "1024",
               "spark.locality.wait": "0", "spark.local.dir": folder}  # fmt: skip
    conf = pyspark.SparkConf().setMaster(url).setAppName("gleaner").setAll(list(options.items()))
    with pyspark.SparkContext(conf=conf) as context:
        context.setLogLevel("ERROR")
        jvm, inner = context._jvm, context._jsc.sc()
        # The driver is one of those that are counted.
        eventually(f"{len(addresses)} executors", lambda: inner.getExecutorMemoryStatus().size() > len(addresses))
        data = jvm.org.apache.spark.mllib.util.MLUtils.loadLibSVMFile(inner, f"file://{samples}", features, len(addresses))
        data = data.repartition(len(addresses), None).cache()
        data.count()
        # The first training is not measured: in it the virtual machines compile what they run.
        train(jvm, data, features, steps)
        seconds, bytes_received, weights = train(jvm, data, features, steps)
report = {
    "method": arguments.method,
    "library": f"Spark {pyspark.__version__} MLlib",
    "workers": len(addresses),
    "samples": len(rows),
    "features": features,
    "steps_per_epoch": steps,
    "learning_rate": arguments.lr,
    # MLlib does not say what single epochs take.
    "epochs": [
        {"epoch": epoch, "seconds": seconds / arguments.epochs, "bytes_received": bytes_received / arguments.epochs}
        for epoch in range(1, arguments.epochs + 1)
    ],
    "seconds_run": seconds,
    "bytes_received": bytes_received,
    "objective": objective(rows, positive, weights),
}
print(json.dumps(report))
