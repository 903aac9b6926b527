"""The programs in examples/python run, each as its first lines say, and learn something."""

import os
import re
import subprocess
import sys
import tempfile
import unittest

import jobs

FOLDER = os.path.join(jobs.HERE, "..", "..", "..", "examples", "python")
GLEANER = jobs.command("gleaner")


def _missing(*packages):
    """Why an example is skipped, or nothing."""
    for package in packages:
        done = subprocess.run([sys.executable, "-c", f"import {package}"], capture_output=True, text=True)
        if done.returncode != 0:
            return f"SKIPPED: {package} cannot be imported: {done.stderr.strip().splitlines()[-1]}"
    return ""


class Examples(unittest.TestCase):
    def needs(self, *packages):
        why = _missing(*packages)
        if why:
            self.skipTest(why)

    def runs(self, *command):
        environment = {**jobs.clean(), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        # The usual port of torchrun is the same for all jobs.
        environment["PET_MASTER_PORT"] = str(jobs.two_ports())
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=2 * jobs.TIMEOUT)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def torchrun(self, name, *arguments):
        if jobs.torchrun_fails():
            return self.as_torchrun(name, *arguments)
        starter = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
        return self.runs(*starter, os.path.join(FOLDER, name), *arguments)

    def as_torchrun(self, name, *arguments):
        """With the variables that torchrun sets, where it cannot start anything itself.

        Without taking the group down: there that may wait for itself, when a thread of Gloo's lets a tensor go.
        """
        path = os.path.abspath(os.path.join(FOLDER, name))
        program = (
            "import os, runpy, sys, torch.distributed; torch.distributed.destroy_process_group = lambda: None\n"
            f"sys.argv = {[path, *arguments]!r}; runpy.run_path(sys.argv[0], run_name='__main__')\n"
            "torch.distributed.barrier(); sys.stdout.flush(); os._exit(0)"
        )
        ends = jobs.Job.of_program(program, 2).ends()
        for ended in ends:
            self.assertEqual(ended.code, 0, ended.out + ended.err)
        return ends[0].out

    def number(self, pattern, text):
        found = re.search(pattern, text)
        self.assertIsNotNone(found, text)
        return float(found[1])

    def test_digits(self):
        self.needs("torch", "sklearn")
        # With and without the three lines: the script is the same.
        for method in ("spardl", "none"):
            said = self.torchrun("ddp_digits.py", "--method", method, "--density", "0.05", "--epochs", "6")
            self.assertGreater(self.number(r"([\d.]+)% of 360 test images", said), 80, said)

    def test_gpt(self):
        self.needs("torch")
        said = self.torchrun("gpt.py", "--steps", "60", "--density", "0.05")
        # Bytes that are equally likely have a loss of 5.5.
        self.assertLess(self.number(r"held-out loss ([\d.]+)", said), 3.7)

    def test_hugging_face(self):
        self.needs("torch", "transformers", "accelerate")
        said = self.torchrun("hugging_face.py", "--steps", "30", "--merge", "single")
        self.assertLess(self.number(r"held-out loss ([\d.]+)", said), 4.5)
        self.assertIn("30 steps by Gleaner", said)

    def test_lightning(self):
        self.needs("torch", "lightning", "sklearn")
        said = self.runs(sys.executable, os.path.join(FOLDER, "lightning_digits.py"), "--epochs", "8")
        self.assertGreater(self.number(r"([\d.]+)% of 397 test images", said), 80)
        self.assertGreater(self.number(r"(\d+) steps by Gleaner", said), 100)

    def test_async_numpy(self):
        self.needs("numpy")
        if GLEANER is None:
            self.skipTest("SKIPPED: the command gleaner is not beside this Python")
        said = self.runs(GLEANER, "launch", "--workers", "2", "--", sys.executable, os.path.join(FOLDER, "async_numpy.py"))
        self.assertLess(self.number(r"2 workers: loss ([\d.]+)", said), 1e-3)


if __name__ == "__main__":
    unittest.main()
