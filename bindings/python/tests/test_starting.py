"""The programs that start jobs: gleaner launch, torchrun, mpirun and srun, with scripts as users write them."""

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import jobs
import slurm

try:
    import torch.distributed.run  # noqa: F401
except ImportError as error:
    NO_TORCH = f"SKIPPED: {error}"
else:
    NO_TORCH = jobs.torchrun_fails() and f"SKIPPED: {jobs.torchrun_fails()}"

try:
    import numpy  # noqa: F401
except ImportError as error:
    NO_NUMPY = f"SKIPPED: {error}"
else:
    NO_NUMPY = ""

GLEANER = jobs.command("gleaner")
MPIRUN = shutil.which("mpirun.openmpi")

SUMS = """
import gleaner, numpy
session = gleaner.session()
total = gleaner.all_reduce(numpy.full(3, 1.0 + session.rank), op="sum")
print(f"rank {session.rank} of {session.world_size}: {total.tolist()}", flush=True)
"""

TRAINS = """
import os, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import gleaner.torch
dist.init_process_group(sys.argv[2])
model = DistributedDataParallel(torch.nn.Linear(50, 10))
hook = gleaner.torch.register(model, density=0.1)
rank, restart = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
print(f"rank {rank} of start {restart}", flush=True)
for step in range(int(sys.argv[1])):
    model.zero_grad()
    model(torch.ones(4, 50)).square().mean().backward()
    if rank == 1 and restart == "0" and "fails" in sys.argv and step == 3:
        os._exit(3)
    if step == 3:
        print(f"process {os.getpid()} is rank {rank} after 4 steps", flush=True)
print(f"rank {rank} made {hook.step} steps", flush=True)
dist.destroy_process_group()
"""


class Starting(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def script(self, text):
        path = os.path.join(self.folder, "script.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def secret(self):
        path = os.path.join(self.folder, "job.secret")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as file:
            file.write(secrets.token_hex(32))
        return path

    def runs(self, command, **env):
        return subprocess.run(command, env={**jobs.clean(), **env}, capture_output=True, text=True, timeout=jobs.TIMEOUT)

    def torchrun(self, script, *arguments, options=(), **env):
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", *options, script, *arguments]
        # Its usual port is the same for all jobs.
        environment = {**jobs.clean(), "OMP_NUM_THREADS": "1", "PET_MASTER_PORT": str(jobs.two_ports()), **env}
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def assert_sums(self, done, workers):
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        total = [float(sum(range(1, workers + 1)))] * 3
        for rank in range(workers):
            self.assertIn(f"rank {rank} of {workers}: {total}", done.stdout)


@unittest.skipIf(GLEANER is None, "SKIPPED: the command gleaner is not beside this Python")
class Launch(Starting):
    def test_the_command_is_that_of_the_package(self):
        import gleaner

        done = self.runs([GLEANER, "--version"])
        self.assertEqual(done.stdout.split(), ["gleaner", gleaner.__version__])

    @unittest.skipIf(NO_NUMPY, NO_NUMPY)
    def test_a_script(self):
        self.assert_sums(self.runs([GLEANER, "launch", "--workers", "3", "--", sys.executable, self.script(SUMS)]), 3)

    @unittest.skipIf(NO_NUMPY, NO_NUMPY)
    def test_the_last_line_names_the_rank_at_fault(self):
        script = self.script("import gleaner, os\ns = gleaner.session()\nif s.rank == 1: os._exit(7)\ns.barrier()\n")
        done = self.runs([GLEANER, "launch", "--workers", "3", "--", sys.executable, script])
        self.assertEqual(done.returncode, 7, done.stderr)
        self.assertIn("rank 1 failed", done.stderr.strip().splitlines()[-1])


def _has_ended(process):
    """Whether a process of another's has ended, waited for or not."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@unittest.skipIf(NO_TORCH, NO_TORCH)
class Torchrun(Starting):
    def test_no_preparation(self):
        process = self.torchrun(self.script(TRAINS), "5", "gloo")
        out, err = process.communicate(timeout=jobs.TIMEOUT)
        self.assertEqual(process.returncode, 0, err)
        self.assertEqual(sorted(re.findall(r"rank \d made 5 steps", out)), ["rank 0 made 5 steps", "rank 1 made 5 steps"])

    def test_numpy_alone(self):
        process = self.torchrun(self.script(SUMS))
        out, err = process.communicate(timeout=jobs.TIMEOUT)
        self.assertEqual(process.returncode, 0, err)
        self.assertIn("rank 1 of 2: [3.0, 3.0, 3.0]", out)

    def test_a_restarted_job_joins_anew(self):
        # Gloo finds workers by addresses in a store. Where torchrun keeps one store for all starts, a worker may read the address that one of
        # the start before has left there, and is refused. With both of these each start has a store of its own; the static rendezvous, which
        # older versions of PyTorch take without --standalone, does not look at the variable.
        own_store = ["--standalone"], {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        for backend, more, env in (("gleaner", [], {}), ("gloo", *own_store)):
            with self.subTest(backend):
                options = ["--max_restarts", "1", *more]
                process = self.torchrun(self.script(TRAINS), "6", backend, "fails", options=options, **env)
                out, err = process.communicate(timeout=jobs.TIMEOUT)
                self.assertEqual(process.returncode, 0, err)
                self.assertEqual(len(re.findall(r"rank \d of start 1", out)), 2, out)
                self.assertEqual(sorted(re.findall(r"rank \d made 6 steps", out)), ["rank 0 made 6 steps", "rank 1 made 6 steps"])

    def test_a_rank_that_is_killed_is_named(self):
        process = self.torchrun(self.script(TRAINS), "100000000", "gloo")
        numbers = {}
        while len(numbers) < 2:
            line = process.stdout.readline()
            self.assertTrue(line, "torchrun ended")
            for number, rank in re.findall(r"process (\d+) is rank (\d)", line):
                numbers[rank] = int(number)
        # It looks after its workers from time to time, and ends all of them when one has died. So it looks away until the other has ended.
        process.send_signal(signal.SIGSTOP)
        os.kill(numbers["1"], signal.SIGKILL)
        began = time.monotonic()
        while not _has_ended(numbers["0"]) and time.monotonic() - began < 60:
            time.sleep(0.05)
        process.send_signal(signal.SIGCONT)
        _, err = process.communicate(timeout=jobs.TIMEOUT)
        self.assertNotEqual(process.returncode, 0)
        self.assertIn("JobFailed: rank 1 failed", err)
        self.assertLess(time.monotonic() - began, 60)


@unittest.skipIf(MPIRUN is None, "SKIPPED: Open MPI's mpirun is not installed")
@unittest.skipIf(NO_NUMPY, NO_NUMPY)
class Mpirun(Starting):
    def test_a_script(self):
        command = [MPIRUN, "-n", "2", "--oversubscribe", "--allow-run-as-root", sys.executable, self.script(SUMS)]
        self.assert_sums(self.runs(command, GLEANER_SECRET_FILE=self.secret()), 2)

    def test_a_job_without_a_secret_hears_what_to_do(self):
        command = [MPIRUN, "-n", "2", "--oversubscribe", "--allow-run-as-root", sys.executable, self.script(SUMS)]
        done = self.runs(command)
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr, "ConfigError: .*GLEANER_SECRET_FILE")


@unittest.skipIf(slurm.MISSING, f"SKIPPED: {slurm.MISSING}")
@unittest.skipIf(NO_NUMPY, NO_NUMPY)
class Srun(Starting):
    def test_a_script(self):
        with slurm.Cluster() as conf:
            command = ["srun", "-n", "2", "--chdir=/", sys.executable, self.script(SUMS)]
            self.assert_sums(self.runs(command, SLURM_CONF=conf, GLEANER_SECRET_FILE=self.secret()), 2)


if __name__ == "__main__":
    unittest.main()
