"""What goes wrong in programs of PyTorch: an exception with a sentence on every rank, and never a hang."""

import os
import unittest

import jobs
from models import SIZES, WHY, before, inputs_of, linear, start, torch, wrapped

if torch is not None:
    import torch.distributed as dist

    import gleaner.torch

import gleaner


def _said(call):
    """The class and the sentence of what a call raises."""
    try:
        call()
    except gleaner.Error as error:
        return [type(error).__name__, str(error)]
    return None


def _models_differ(where):
    rank = int(os.environ["RANK"])
    model = linear({"a": (50,), "b": (20 + (rank == 1),)} if where == "sizes" else {"a": (50,), "bc"[rank]: (20,)})
    # In a session of the environment: DistributedDataParallel itself refuses models that differ.
    return _said(lambda: gleaner.torch.Synchronizer(model.named_parameters(), broadcast=False))


def _density_out_of_range(density):
    start()
    model = wrapped(linear(SIZES))
    return _said(lambda: gleaner.torch.register(model, density=density))


def _parameter_added(wraps, on_all):
    """Rank 1, or every rank, adds a layer after the hook was registered."""
    rank = start()
    net = torch.nn.Sequential(torch.nn.Linear(20, 5), torch.nn.Linear(5, 2))
    if wraps:
        model = wrapped(net)
        gleaner.torch.register(model, density=0.1)
    else:
        model = net
        sync = gleaner.torch.Synchronizer(net.parameters(), density=0.1)
    if rank == 1 or on_all:
        net.add_module("late", torch.nn.Linear(2, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def steps():
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(3, 20)).square().mean().backward()
            optimizer.step() if wraps else sync.step(optimizer)

    return _said(steps)


def _gradient_missing():
    """Rank 1 does not use a parameter, and DistributedDataParallel was not set to allow such: it raises there."""
    rank = start()
    model = wrapped(linear(SIZES))
    gleaner.torch.register(model, density=0.1)
    for step in range(3):
        model.zero_grad()
        model(inputs_of(rank, step, 9), ["a", "b"] if rank == 1 else None).backward()


def _gradient_missing_without_ddp():
    """The same with a Synchronizer, where it counts as zeros."""
    rank = start()
    model = linear(SIZES)
    sync = gleaner.torch.Synchronizer(model.named_parameters(), method="ring")
    model(inputs_of(rank, 0, 9), ["a"] if rank == 1 else ["a", "b"]).backward()
    sync.wait()
    expected = inputs_of(0, 0, 9)["b"] / 2
    return [float((model.b.grad - expected).abs().max()), model.c.grad is None]


def _unsupported():
    start()
    found = {}
    for what, parameter in [
        ("meta", torch.nn.Parameter(torch.zeros(3, device="meta"))),
        ("complex", torch.nn.Parameter(torch.zeros(3, dtype=torch.complex64))),
        ("double", torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))),
    ]:
        found[what] = _said(lambda: gleaner.torch.Synchronizer([("w", parameter)]))
    found["lazy"] = _said(lambda: gleaner.torch.Synchronizer(torch.nn.LazyLinear(3).named_parameters()))
    found["nothing"] = _said(lambda: gleaner.torch.Synchronizer([]))
    sparse = torch.nn.Embedding(10, 3, sparse=True)
    sync = gleaner.torch.Synchronizer(sparse.parameters(), method="ring")
    found["sparse gradient"] = _said(lambda: (sparse(torch.tensor([1])).sum().backward(), sync.wait()))
    return found


def _sharded():
    """PyTorch's own fully sharded modules."""
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    start()
    found = {}
    old = FullyShardedDataParallel(torch.nn.Linear(8, 8), device_id=torch.device("cpu"), use_orig_params=False)
    found["FSDP"] = _said(lambda: gleaner.torch.register(old))
    found["its parameters"] = _said(lambda: gleaner.torch.Synchronizer(old.parameters()))
    new = fully_shard(torch.nn.Linear(8, 8), mesh=torch.distributed.init_device_mesh("cpu", (dist.get_world_size(),)))
    found["fully_shard"] = _said(lambda: gleaner.torch.register(new))
    found["DTensor"] = _said(lambda: gleaner.torch.Synchronizer(new.parameters()))
    return found


def _not_finite():
    """A gradient that is NaN on rank 1, without a scaler."""
    rank = start()
    model = wrapped(linear(SIZES))
    gleaner.torch.register(model, density=0.1)
    inputs = inputs_of(rank, 0, 9)
    if rank == 1:
        inputs["b"][7] = float("nan")
    return _said(lambda: model(inputs).backward())


def _ends_without_leaving():
    """Rank 1 ends after three steps, without a word and without destroying its group."""
    rank = start()
    model = wrapped(linear(SIZES))
    gleaner.torch.register(model, density=0.1)
    for step in range(3 if rank == 1 else 1000):
        model.zero_grad()
        model(inputs_of(rank, step, 9)).backward()


def _on_two_hosts():
    """Rank 1 runs under another kernel than rank 0, as far as it knows, and there is no secret file."""
    from gleaner import _starting

    rank = start()
    if rank == 1:
        _starting._boot_id = lambda: "another"
    model = wrapped(linear(SIZES))
    return _said(lambda: gleaner.torch.register(model))


def _raises():
    rank = start()
    model = wrapped(linear(SIZES))
    gleaner.torch.register(model, density=0.1)
    for step in range(1000):
        model.zero_grad()
        model(inputs_of(rank, step, 9)).backward()
        if rank == 1 and step == 2:
            raise ValueError("the data is gone")


@unittest.skipIf(torch is None, WHY)
class BadInput(unittest.TestCase):
    def test_models_that_differ(self):
        for where, words in (("sizes", "71 entries"), ("names", "'c'")):
            for kind, sentence in jobs.run("test_bad_input:_models_differ", 2, where):
                self.assertEqual(kind, "JobFailed")
                self.assertIn("rank 1 failed", sentence)
                self.assertIn(words, sentence)

    def test_a_density_out_of_range(self):
        for density in (0.0, -1.0, 1.5, float("nan")):
            for kind, sentence in jobs.run("test_bad_input:_density_out_of_range", 2, density):
                self.assertEqual(kind, "MethodError")
                self.assertIn("expected a number above 0 and at most 1", sentence)

    def test_a_parameter_that_is_added_later(self):
        for wraps in (True, False):
            with self.subTest(wraps):
                for kind, sentence in jobs.run("test_bad_input:_parameter_added", 2, wraps, True):
                    self.assertIn(kind, ("LayoutError", "JobFailed"))
                    self.assertRegex(sentence, "added later|not exchanged")
                first, second = jobs.run("test_bad_input:_parameter_added", 2, wraps, False)
                self.assertEqual((first[0], second[0]), ("JobFailed", "LayoutError"))
                self.assertRegex(first[1], "rank 1 failed.*(added later|not exchanged)")

    def test_a_gradient_that_is_missing_on_one_rank(self):
        first, second = jobs.Job("test_bad_input:_gradient_missing").ends()
        self.assertIn("RuntimeError: Expected to have finished reduction", second.err)
        self.assertRegex(first.err, "JobFailed: rank 1 failed.*Expected to have finished reduction")
        for difference, is_none in jobs.run("test_bad_input:_gradient_missing_without_ddp"):
            self.assertLess(difference, 1e-6)
            self.assertTrue(is_none)

    def test_devices_and_types(self):
        for found in jobs.run("test_bad_input:_unsupported"):
            self.assertIn("'w' is on the device meta", found["meta"][1])
            self.assertIn("'w' is complex64", found["complex"][1])
            self.assertIn("'w' is float64", found["double"][1])
            self.assertIn("has no shape yet", found["lazy"][1])
            self.assertIn("no parameter needs a gradient", found["nothing"][1])
            self.assertIn("layout torch.sparse_coo", found["sparse gradient"][1])

    @unittest.skipIf(before(2, 6), before(2, 6))
    def test_sharded_modules(self):
        for found in jobs.run("test_bad_input:_sharded"):
            self.assertIn("FullyShardedDataParallel shards parameters", found["FSDP"][1])
            self.assertIn("FlatParameter", found["its parameters"][1])
            self.assertIn("FSDPModule shards parameters", found["fully_shard"][1])
            self.assertIn("is a DTensor", found["DTensor"][1])

    def test_values_that_are_not_finite(self):
        for kind, sentence in jobs.run("test_bad_input:_not_finite"):
            self.assertEqual(kind, "JobFailed")
            self.assertRegex(sentence, "rank 1 failed.*'b'.*NaN at entry 7|rank 1 failed.*NaN at entry 7.*'b'")

    def test_an_interpreter_that_ends_without_leaving(self):
        for job in (
            jobs.Job("test_bad_input:_ends_without_leaving"),
            jobs.Job.of_program(jobs.program_of("test_bad_input:_ends_without_leaving"), 2),
        ):
            first, second = job.ends()
            self.assertEqual(second.code, 0, second.err)
            self.assertRegex(first.err, "JobFailed: rank 1 failed.*left the job")

    def test_several_hosts_without_a_secret(self):
        first, second = jobs.run("test_bad_input:_on_two_hosts", 2, env={"GLEANER_TIMEOUT": "1s"})
        self.assertEqual(second[0], "ConfigError")
        self.assertIn("set GLEANER_SECRET_FILE", second[1])
        self.assertEqual(first[0], "JoinError")

    def test_an_exception(self):
        first, second = jobs.Job("test_bad_input:_raises").ends()
        self.assertIn("ValueError: the data is gone", second.err)
        self.assertRegex(first.err, "JobFailed: rank 1 failed.*ValueError: the data is gone")


if __name__ == "__main__":
    unittest.main()
