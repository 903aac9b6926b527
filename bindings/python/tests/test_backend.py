"""The backend of torch.distributed among two and three workers."""

import os
import re
import subprocess
import sys
import tempfile
import unittest

import jobs

from models import WHY, before, torch

if torch is not None:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import gleaner.torch

import gleaner


# What workers do.


def _backend():
    dist.init_process_group("gleaner")
    rank, workers = dist.get_rank(), dist.get_world_size()
    found = {}
    tensor = torch.arange(5.0) + rank
    dist.all_reduce(tensor)
    found["sum"] = tensor.tolist()
    tensor = torch.tensor([rank, 5, -rank])
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    found["max"] = tensor.tolist()
    tensor = torch.zeros(3, 100_000)
    tensor[rank] = float(rank + 1)
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    found["mean"] = tensor[:, 0].tolist()
    sparse = torch.sparse_coo_tensor([[rank, 5]], [1.0, 2.0], (8,))
    dist.all_reduce(sparse)
    found["sparse"] = [sparse.is_sparse, sparse.to_dense().tolist()]
    # An embedding's gradient, of a length that no dense tensor could have here.
    rows = torch.tensor([[7 + rank, 40_000_000, 7 + rank]])
    sparse = torch.sparse_coo_tensor(rows, torch.ones(3, 64) * (rank + 1), (50_000_000, 64))
    dist.all_reduce(sparse, op=dist.ReduceOp.AVG)
    sparse = sparse.coalesce()
    found["embedding"] = [sparse.indices()[0].tolist(), sparse.values()[:, 63].tolist(), list(sparse.shape)]
    sparse = torch.sparse_coo_tensor([[2], [rank]], [1.0], (3, 4), dtype=torch.float64)
    dist.all_reduce(sparse)
    found["matrix"] = sparse.to_dense().tolist()
    for size in (3, 40_000):
        tensor = torch.arange(size, dtype=torch.int64) * (rank + 1) - 7
        dist.broadcast(tensor, src=1)
        assert tensor.equal(torch.arange(size, dtype=torch.int64) * 2 - 7), tensor
        parts = [torch.empty(size, dtype=torch.uint8) for _ in range(workers)]
        dist.all_gather(parts, torch.full((size,), 200 + rank, dtype=torch.uint8))
        assert all(part.eq(200 + number).all() for number, part in enumerate(parts)), parts
    objects = [{"rank": rank}]
    dist.broadcast_object_list(objects, src=0)
    found["object"] = objects
    objects = [None] * workers
    dist.all_gather_object(objects, rank)
    found["objects"] = objects
    dist.barrier()
    group = dist.new_group([0, 1], backend="gleaner")
    if rank < 2:
        tensor = torch.ones(2)
        dist.all_reduce(tensor, group=group)
        found["group"] = tensor.tolist()
    for name, call in [
        ("send", lambda: dist.send(torch.ones(1), dst=(rank + 1) % workers)),
        ("reduce_scatter", lambda: dist.reduce_scatter(torch.ones(1), [torch.ones(1)] * workers)),
    ]:
        try:
            call()
        except gleaner.UnsupportedError as error:
            found[name] = str(error)
    # Rank 0 has the store, which the others need until here.
    dist.barrier()
    dist.destroy_process_group()
    return found


def _backend_trains(with_hook):
    """The toy model of PyTorch's own tutorial."""
    dist.init_process_group("gleaner")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    net = torch.nn.Sequential(torch.nn.Linear(10, 10), torch.nn.ReLU(), torch.nn.Linear(10, 5))
    model = DistributedDataParallel(net)
    if with_hook:
        gleaner.torch.register(model, density=0.2)
    loss_fn = torch.nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(5)
    inputs, labels = torch.randn(20, 10), torch.randn(20, 5)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    values = torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist()
    dist.destroy_process_group()
    return [losses, values]


@unittest.skipIf(torch is None, WHY)
class Backend(unittest.TestCase):
    def test_collectives(self):
        for workers in (2, 3):
            for rank, found in enumerate(jobs.run("test_backend:_backend", workers)):
                total = sum(range(workers))
                self.assertEqual(found["sum"], [workers * value + total for value in range(5)])
                self.assertEqual(found["max"], [workers - 1, 5, 0])
                means = [(number + 1) / workers if number < workers else 0.0 for number in range(3)]
                torch.testing.assert_close(found["mean"], means)
                sparse = [0.0] * 8
                for number in range(workers):
                    sparse[number] += 1.0
                    sparse[5] += 2.0
                self.assertEqual(found["sparse"], [True, sparse])
                means = [2 * (number + 1) / workers for number in range(workers)]
                means.append(sum(range(1, workers + 1)) / workers)
                rows = [7 + number for number in range(workers)] + [40_000_000]
                self.assertEqual(found["embedding"][0], rows)
                torch.testing.assert_close(found["embedding"][1], means)
                self.assertEqual(found["embedding"][2], [50_000_000, 64])
                row = [1.0 if number < workers else 0.0 for number in range(4)]
                self.assertEqual(found["matrix"], [[0.0] * 4, [0.0] * 4, row])
                self.assertEqual(found["object"], [{"rank": 0}])
                self.assertEqual(found["objects"], list(range(workers)))
                self.assertIn("no send", found["send"])
                self.assertIn("no reduce_scatter", found["reduce_scatter"])
                if rank < 2:
                    self.assertEqual(found["group"], [2.0, 2.0])

    def test_the_model_of_the_tutorial_trains(self):
        for with_hook in (False, True):
            with self.subTest(with_hook):
                ranks = jobs.run("test_backend:_backend_trains", 2, with_hook)
                self.assertEqual(ranks[0], ranks[1])
                losses = ranks[0][0]
                self.assertLess(losses[-1], 0.97 * losses[0])


@unittest.skipIf(torch is None, WHY)
class Tutorial(unittest.TestCase):
    def test_it_runs_as_it_is_and_with_the_hook(self):
        for backend, hook in (("gleaner", "plain"), ("gleaner", "hook"), ("gloo", "hook")):
            if backend == "gloo" and before(2, 0):
                # There taking down a group of Gloo's may wait for itself, when a thread of its own lets a tensor go.
                continue
            with self.subTest(backend=backend, hook=hook), tempfile.TemporaryDirectory() as folder:
                # Its workers find a model saved in the folder for temporary files.
                environment = {**jobs.clean(), "TMPDIR": folder}
                command = [sys.executable, os.path.join(jobs.HERE, "tutorial.py"), backend, str(jobs.two_ports()), hook]
                done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=jobs.TIMEOUT)
                self.assertEqual(done.returncode, 0, done.stderr)
                for part in ("basic", "checkpoint"):
                    values = re.findall(rf"rank \d {part} ([-\d.]+)", done.stdout)
                    self.assertEqual(len(values), 2, done.stdout)
                    self.assertEqual(values[0], values[1])


if __name__ == "__main__":
    unittest.main()
