"""What of DistributedDataParallel's surroundings works with the hook: types, parameter groups, sharded optimisers, loaders of data."""

import os
import tempfile
import unittest

import jobs
from models import SIZES, WHY, before, inputs_of, linear, lists, start, torch, wrapped

if torch is not None:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import gleaner.torch


def _network():
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.ReLU(), torch.nn.Linear(50, 30), torch.nn.ReLU(), torch.nn.Linear(30, 3))


def _batch(rank, step):
    random = torch.Generator().manual_seed(100 * rank + step)
    return torch.randn(5, 20, generator=random), torch.randint(3, (5,), generator=random)


def _trained(registers, optimizer_of, prepare=lambda net: net, steps=8, **options):
    """The parameters after some steps, with the ring as hook or without a hook."""
    rank = dist.get_rank()
    model = wrapped(prepare(_network()), **options)
    if registers:
        gleaner.torch.register(model, method="ring")
    optimizer = optimizer_of(model)
    for step in range(steps):
        inputs, labels = _batch(rank, step)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def _difference(optimizer_of, **options):
    start()
    with_hook, without = (_trained(registers, optimizer_of, **options) for registers in (True, False))
    return float((with_hook - without).abs().max())


def _groups():
    """Layers with learning rates of their own, and one that is frozen."""

    def freeze(net):
        net[0].requires_grad_(False)
        return net

    def optimizer_of(model):
        fast, slow = model.module[2].parameters(), model.module[4].parameters()
        return torch.optim.AdamW([{"params": fast, "lr": 0.01}, {"params": slow, "lr": 0.001, "weight_decay": 0.1}])

    return _difference(optimizer_of, prepare=freeze)


def _sharded_optimizer():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return _difference(lambda model: ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01))


def _static_graph():
    return _difference(lambda model: torch.optim.SGD(model.parameters(), lr=0.1), static_graph=True, gradient_as_bucket_view=True)


def _halves():
    """Gradients of 16 bits."""
    rank = start()
    model = wrapped(linear({"a": (50,)}).half())
    hook = gleaner.torch.register(model, density=0.5)
    seen = []
    for step in range(4):
        model.zero_grad()
        value = 0.25 if rank == 0 else 1.0
        model({"a": torch.full((50,), value if step == 0 else 0.0, dtype=torch.float16)}).backward()
        seen.append(model.module.a.grad.float())
    return [str(model.module.a.grad.dtype), sum(seen).tolist(), hook.step]


def _autocast():
    """Mixed precision without a scaler: gradients stay float32, and every rank has the same parameters."""
    rank = start()
    model = wrapped(_network())
    gleaner.torch.register(model, density=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        inputs, labels = _batch(rank, step)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist()


def _loaders():
    """Processes that load data are forked from one that has joined."""
    rank = start()
    model = wrapped(_network())
    hook = gleaner.torch.register(model, density=0.1)
    data = torch.utils.data.TensorDataset(*(torch.cat(parts) for parts in zip(*(_batch(rank, step) for step in range(8)))))
    seen = 0
    for _ in range(2):
        for inputs, labels in torch.utils.data.DataLoader(data, batch_size=5, num_workers=2):
            model.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            seen += len(inputs)
    return [seen, hook.step]


def _unused_in_place():
    """Gradients that are zeroed and not taken away, of a parameter that no rank uses after the first steps."""
    rank = start()
    model = wrapped(linear(SIZES), find_unused_parameters=True)
    gleaner.torch.register(model, density=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    given = {name: torch.zeros(size) for name, size in SIZES.items()}
    for step in range(200):
        inputs = inputs_of(rank, step, 3)
        names = ["a", "b"] if step < 3 else ["a"]
        optimizer.zero_grad(set_to_none=False)
        model(inputs, names).backward()
        optimizer.step()
        for name in names:
            given[name] += inputs[name]
    return [lists(given), lists({name: -p.detach() for name, p in model.module.named_parameters()})]


def _batch_norm():
    """What the hook sees of SyncBatchNorm; PyTorch runs it on devices only."""
    start()
    net = torch.nn.SyncBatchNorm.convert_sync_batchnorm(torch.nn.Sequential(torch.nn.Linear(20, 5), torch.nn.BatchNorm1d(5)))
    try:
        model = DistributedDataParallel(net)
        hook = gleaner.torch.register(model, method="ring")
        model(torch.randn(4, 20)).square().mean().backward()
    except (ValueError, RuntimeError) as error:
        return str(error)
    return f"{hook.step} step"


def _saves(folder, workers, step_count):
    """This many steps, after which each rank saves its state."""
    rank = start()
    assert dist.get_world_size() == workers
    model = wrapped(linear(SIZES))
    hook = gleaner.torch.register(model, density=0.02, merge="single")
    total = {name: torch.zeros(size) for name, size in SIZES.items()}
    for number in range(step_count):
        model.zero_grad()
        model(inputs_of(rank, number, 100)).backward()
        for name, parameter in model.module.named_parameters():
            total[name] += parameter.grad
    torch.save(hook.state_dict(), os.path.join(folder, f"{rank}.pt"))
    given = {name: sum(inputs_of(rank, number, 100)[name] for number in range(step_count)) for name in SIZES}
    return [lists(given), lists(total)]


def _loads(folder, saved):
    """Goes on with what another number of ranks saved, and delivers all that waits."""
    start()
    model = wrapped(linear(SIZES))
    hook = gleaner.torch.register(model, density=0.02, merge="single")
    state = {}
    for number in range(saved):
        state.update(torch.load(os.path.join(folder, f"{number}.pt")))
    hook.load_state_dict(state)
    total = {name: torch.zeros(size) for name, size in SIZES.items()}
    for _ in range(400):
        model.zero_grad()
        model({name: torch.zeros(size) for name, size in SIZES.items()}).backward()
        for name, parameter in model.module.named_parameters():
            total[name] += parameter.grad
    return lists(total)


def _loads_of_another(folder):
    """A state of another model, on rank 1 alone."""
    rank = start()
    model = wrapped(linear({"a": (30, 4)} if rank == 5 else SIZES))
    hook = gleaner.torch.register(model, density=0.02, merge="single")
    state = hook.state_dict()
    if rank == 1:
        state = {key: value[:-3] if isinstance(value, bytes) else value for key, value in state.items()}
    try:
        hook.load_state_dict(state)
    except gleaner.CheckpointError as error:
        return str(error)
    return None


@unittest.skipIf(torch is None, WHY)
class Surroundings(unittest.TestCase):
    def test_parameter_groups_and_frozen_layers(self):
        for difference in jobs.run("test_ddp:_groups"):
            self.assertLess(difference, 1e-5)

    def test_a_sharded_optimizer(self):
        for difference in jobs.run("test_ddp:_sharded_optimizer"):
            self.assertLess(difference, 1e-5)

    def test_a_static_graph(self):
        for difference in jobs.run("test_ddp:_static_graph"):
            self.assertLess(difference, 1e-6)

    def test_float16(self):
        for found in jobs.run("test_ddp:_halves"):
            self.assertEqual(found, ["torch.float16", [0.625] * 50, 4])

    @unittest.skipIf(before(2, 1), before(2, 1))
    def test_autocast(self):
        first, second = jobs.run("test_ddp:_autocast")
        self.assertEqual(first, second)

    def test_processes_that_load_data(self):
        self.assertEqual(jobs.run("test_ddp:_loaders"), [[80, 16]] * 2)

    def test_gradients_that_are_zeroed_in_place(self):
        ranks = jobs.run("test_ddp:_unused_in_place")
        for name in SIZES:
            mean = sum(torch.tensor(given[name]) for given, _ in ranks) / 2
            for _, delivered in ranks:
                torch.testing.assert_close(torch.tensor(delivered[name]), mean, atol=1e-4, rtol=1e-4)

    def test_synchronised_batch_norm(self):
        for found in jobs.run("test_ddp:_batch_norm"):
            # PyTorch itself says that it runs on devices alone.
            self.assertRegex(found, "1 step|SyncBatchNorm expected input tensor to be on|SyncBatchNorm layers only work with GPU")

    def test_a_state_goes_on_among_more_and_fewer_ranks(self):
        with tempfile.TemporaryDirectory() as folder:
            saved = jobs.run("test_ddp:_saves", 2, folder, 2, 5)
            for workers in (1, 3):
                loaded = jobs.run("test_ddp:_loads", workers, folder, 2)
                for name in SIZES:
                    # Of the mean over two ranks; what waits is then delivered in means over others.
                    given = sum(torch.tensor(rank[0][name]) for rank in saved)
                    before = torch.tensor(saved[0][1][name]) * 2
                    after = torch.tensor(loaded[0][name]) * workers
                    torch.testing.assert_close(before + after, given, atol=1e-4, rtol=1e-4)

    def test_a_state_that_is_damaged_is_refused_on_all_ranks(self):
        for sentence in jobs.run("test_ddp:_loads_of_another", 2, ""):
            self.assertIsNotNone(sentence)


if __name__ == "__main__":
    unittest.main()
