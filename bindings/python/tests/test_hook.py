"""The hook of DistributedDataParallel among two and three workers."""

import os
import signal
import subprocess
import sys
import tempfile
import unittest

import jobs

from models import SIZES, WHY, Lacking, Numbers, before, in_memory, inputs_of, linear, lists, start, torch, wrapped

if torch is not None:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import gleaner.torch

import gleaner


# What workers do.


def _hook_delivers_all(options, method):
    """The sum of all means, and of all gradients of this rank, once nothing waits any more."""
    rank = start()
    model = wrapped(linear(SIZES), **options)
    hook = gleaner.torch.register(model, **method)
    delivered = {name: torch.zeros(size) for name, size in SIZES.items()}
    given = {name: torch.zeros(size) for name, size in SIZES.items()}
    for step in range(300):
        inputs = inputs_of(rank, step, 4)
        model.zero_grad()
        model(inputs).backward()
        for name, parameter in model.module.named_parameters():
            delivered[name] += parameter.grad
            given[name] += inputs[name]
    assert hook.step == 300
    return [lists(given), lists(delivered), hook.groups is not None]


def _hook_is_exact():
    """The ring's means beside those of DistributedDataParallel itself, for a model with a nonlinearity and accumulation."""
    rank = start()

    def trained(registers):
        torch.manual_seed(7)
        net = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.ReLU(), torch.nn.Linear(50, 3))
        model = wrapped(net, gradient_as_bucket_view=True)
        if registers:
            gleaner.torch.register(model, method="ring")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for step in range(8):
            random = torch.Generator().manual_seed(100 * rank + step)
            optimizer.zero_grad()
            with model.no_sync():
                model(torch.randn(5, 20, generator=random)).square().mean().backward()
            model(torch.randn(5, 20, generator=random)).square().mean().backward()
            optimizer.step()
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    return float((trained(True) - trained(False)).abs().max())


def _hook_unused():
    """Rank 0 uses a and b, rank 1 a and c, and no rank d; then all of them wait for what was left."""
    rank = start()
    model = wrapped(linear(SIZES), find_unused_parameters=True)
    gleaner.torch.register(model, density=0.1)
    delivered = {name: torch.zeros(size) for name, size in SIZES.items()}
    given = {name: torch.zeros(size) for name, size in SIZES.items()}
    for step in range(200):
        inputs = inputs_of(rank, step, 3)
        # From the fourth step on no rank uses b and c, but what waits of them is delivered nevertheless.
        names = ["a", "d"] if step >= 3 else ["a", "b"] if rank == 0 else ["a", "c"]
        model.zero_grad()
        model(inputs, names).backward()
        for name, parameter in model.module.named_parameters():
            if parameter.grad is not None:
                delivered[name] += parameter.grad
            if name in names:
                given[name] += inputs[name]
    return [lists(given), lists(delivered)]


def _hook_undone(on_device):
    """What is raised by a step that is undone, what its gradients are, and whether those after it deliver the means."""
    rank = start()
    model = wrapped(linear(SIZES))
    hook = gleaner.torch.register(model, method="ring")
    hook.gradients = lacking = Lacking(hook.gradients)
    hook._device = device = in_memory() if on_device else None
    seen = []
    for step in range(5):
        lacking.is_undone = step in (0, 3)
        # Once, and as from a device a gradient is handed over again.
        lacking.times = {"b": int(on_device and rank == 1 and step == 2)}
        model.zero_grad()
        try:
            model(inputs_of(rank, step, 5)).backward()
        except gleaner.OutOfMemory as error:
            seen.append(f"{error}: {max(float(p.grad.abs().max()) for p in model.parameters())}")
            continue
        means = [sum(inputs_of(r, step, 5)[name] for r in range(2)) / 2 for name in SIZES]
        seen.append(all(torch.allclose(p.grad, mean, atol=1e-5) for p, mean in zip(model.parameters(), means)))
    return seen, device and device.freed


def _hook_bf16():
    rank = start()
    model = linear({"a": (50,)}).to(torch.bfloat16)
    model = wrapped(model)
    gleaner.torch.register(model, method="ring")
    model({"a": torch.full((50,), 1.0 + 2 * rank, dtype=torch.bfloat16)}).backward()
    gradient = model.module.a.grad
    return [str(gradient.dtype), gradient.float().tolist()]


def _hook_scales():
    """A scale that changes, and a step that is not finite on rank 1 alone."""
    rank = start()
    model = wrapped(linear({"a": (40,)}))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    hook = gleaner.torch.register(model, density=0.1, scaler=scaler)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    given, log = torch.zeros(40), []
    for step in range(80):
        gradient = torch.randn(40, generator=torch.Generator().manual_seed(100 * rank + step)) * (step < 6)
        if step == 3 and rank == 1:
            gradient = gradient + float("inf")
        optimizer.zero_grad()
        scaler.scale(model({"a": gradient})).backward()
        scaler.step(optimizer)
        scaler.update()
        if step != 3:
            given += gradient
        log.append([hook.skipped, scaler.get_scale()])
    return [given.tolist(), model.module.a.tolist(), log]


def _hook_goes_on():
    """The last steps of a run, and of one that goes on from its state."""
    rank = start()

    def steps(numbers, state=None):
        model = wrapped(linear(SIZES))
        hook = gleaner.torch.register(model, density=0.02, merge="single")
        if state is not None:
            hook.load_state_dict(state)
        found = []
        for number in numbers:
            model.zero_grad()
            model(inputs_of(rank, number, 100)).backward()
            found.append(lists({name: p.grad for name, p in model.module.named_parameters()}))
        return found, hook.state_dict()

    first, state = steps(range(5))
    again, _ = steps(range(5, 8), state)
    straight, _ = steps(range(8))
    assert first == straight[:5]
    return again == straight[5:]


def _hook_is_checkpointed(folder):
    """By torch.distributed.checkpoint: what it loads goes on as what was saved."""
    import torch.distributed.checkpoint as checkpoint

    rank = start()
    model = wrapped(linear(SIZES))
    hook = gleaner.torch.register(model, density=0.02, merge="single")

    def step(number):
        model.zero_grad()
        model(inputs_of(rank, number, 100)).backward()
        return lists({name: parameter.grad for name, parameter in model.module.named_parameters()})

    for number in range(4):
        step(number)
    checkpoint.save({"gleaner": hook.state_dict()}, checkpoint_id=folder)
    straight = step(4)
    state = {"gleaner": hook.state_dict()}
    checkpoint.load(state, checkpoint_id=folder)
    hook.load_state_dict(state["gleaner"])
    assert hook.step == 4
    return step(4) == straight


def _hook_is_compiled():
    """A model that is compiled, beside one that is not."""
    rank = start()

    def trained(compiles):
        torch.manual_seed(3)
        net = torch.nn.Sequential(torch.nn.Linear(20, 200), torch.nn.ReLU(), torch.nn.Linear(200, 3))
        model = wrapped(net)
        run = torch.compile(model, backend="eager") if compiles else model
        gleaner.torch.register(run, method="ring")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            optimizer.zero_grad()
            run(torch.randn(5, 20, generator=torch.Generator().manual_seed(100 * rank + step))).square().mean().backward()
            optimizer.step()
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    return float((trained(True) - trained(False)).abs().max())


def _spawns(folder, port):
    """As PyTorch's tutorial starts workers."""
    import torch.multiprocessing

    torch.multiprocessing.spawn(_spawned, args=(2, folder, port), nprocs=2, join=True)


def _spawned(rank, workers, folder, port):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("gloo", rank=rank, world_size=workers)
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(10, 5))
    gleaner.torch.register(model, method="spardl", density=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(20, 10)).square().mean().backward()
        optimizer.step()
    with open(os.path.join(folder, str(rank)), "w", encoding="ascii") as file:
        file.write(repr([parameter.tolist() for parameter in model.parameters()]))


def _hook_fares():
    """The findings with each optimiser where one entry of a thousand is delivered in a step, by their names."""
    start()
    model = wrapped(linear({"a": (1000,)}))
    hook = gleaner.torch.register(model, k=1, merge="single")
    random = torch.Generator().manual_seed(1)
    for _ in range(120):
        model({"a": torch.randn(1000, generator=random)}).backward()
    found = [dict(hook.health(0.9).findings)]
    for make, settings in [
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.Adam, {}),
        (torch.optim.Adam, {"betas": (0.0, 0.999)}),
        (gleaner.torch.SGD, {"momentum": 0.9}),
    ]:
        optimizer = make(model.parameters(), lr=0.1, **settings)
        found.append(dict(hook.health(optimizer=optimizer).findings))
    try:
        hook.health(0.9, optimizer=optimizer)
    except gleaner.MethodError as error:
        return [*found, str(error)]
    return found


def _hook_joins():
    """Rank 0 has three batches more."""
    rank = start()
    model = wrapped(linear({"a": (50,)}))
    gleaner.torch.register(model, method="ring")
    found = []
    with model.join():
        for step in range(3 if rank == 1 else 6):
            model.zero_grad()
            model({"a": torch.ones(50)}).backward()
            found.append(float(model.module.a.grad[0]))
    return found


def _hook_differs():
    rank = start()
    model = wrapped(linear({"a": (50,)}))
    try:
        gleaner.torch.register(model, density=0.1 if rank == 0 else 0.2)
    except gleaner.JobFailed as error:
        return [str(error), error.rank]
    return None


def _hook_dies():
    rank = start()
    model = wrapped(linear(SIZES))
    gleaner.torch.register(model)
    for step in range(100_000):
        model.zero_grad()
        model(inputs_of(rank, step, 100)).backward()
        if step == 3:
            # DistributedDataParallel has rebuilt its buckets, for which it uses Gloo, and Gloo does not name the rank.
            print("trains", flush=True)


def _refuses():
    start()
    found = {}

    def refuses(what, make):
        try:
            make()
        except gleaner.UnsupportedError as error:
            found[what] = str(error)

    net = torch.nn.Linear(3, 3)
    refuses("a module", lambda: gleaner.torch.register(net))
    refuses("DataParallel", lambda: gleaner.torch.register(torch.nn.DataParallel(net)))
    sharded = type("FullyShardedDataParallel", (torch.nn.Module,), {})
    refuses("FSDP", lambda: gleaner.torch.register(sharded()))
    refuses("float64", lambda: gleaner.torch.register(wrapped(torch.nn.Linear(3, 3).double())))
    sparse = torch.nn.Embedding(10, 3, sparse=True)
    refuses("sparse", lambda: gleaner.torch.register(wrapped(sparse)))
    model = wrapped(torch.nn.Linear(3, 3))
    gleaner.torch.register(model)
    refuses("twice", lambda: gleaner.torch.register(model))
    return found


@unittest.skipIf(torch is None, WHY)
class Hooks(Numbers):
    def test_nothing_is_lost_though_buckets_are_rebuilt(self):
        for options in ({}, {"gradient_as_bucket_view": True}, {"static_graph": True}):
            with self.subTest(options):
                ranks = jobs.run("test_hook:_hook_delivers_all", 2, options, {"method": "spardl", "density": 0.05})
                self.assert_delivered(ranks)
                self.assertTrue(ranks[0][2])

    def test_every_merging_strategy_delivers_all(self):
        for merge in ("single", "layer-wise"):
            with self.subTest(merge):
                arguments = {"method": "oktopk", "density": 0.05, "merge": merge}
                self.assert_delivered(jobs.run("test_hook:_hook_delivers_all", 3, {}, arguments))

    def test_a_dense_method_is_what_ddp_does(self):
        for difference in jobs.run("test_hook:_hook_is_exact", 3):
            self.assertLess(difference, 1e-5)

    def test_unused_parameters_get_what_waits_for_them(self):
        self.assert_delivered(jobs.run("test_hook:_hook_unused"))

    def test_a_step_that_is_undone_ends_no_job(self):
        undone = "the step is undone on all ranks: 0.0"
        for on_device, freed in [(False, (None, None)), (True, (2, 3))]:
            for seen, times in zip(jobs.run("test_hook:_hook_undone", 2, on_device), freed):
                self.assertEqual(seen, [[undone, True, True, undone, True], times])

    @unittest.skipIf(before(2, 1), before(2, 1))
    def test_bfloat16(self):
        for found in jobs.run("test_hook:_hook_bf16"):
            self.assertEqual(found, ["torch.bfloat16", [2.0] * 50])

    @unittest.skipIf(before(2, 3), before(2, 3))
    def test_a_scaled_step_that_is_not_finite_is_left_out_on_all_ranks(self):
        ranks = jobs.run("test_hook:_hook_scales")
        mean = sum(torch.tensor(given) for given, _, _ in ranks) / 2
        for _, values, log in ranks:
            torch.testing.assert_close(-torch.tensor(values), mean, atol=1e-4, rtol=1e-4)
            self.assertEqual([step for step, (skipped, _) in enumerate(log) if skipped is not None], [3])
            self.assertEqual(log[3][0], 1)
            self.assertLess(log[3][1], log[2][1])
            self.assertEqual(log, ranks[0][2])

    def test_a_state_goes_on_bit_by_bit(self):
        self.assertEqual(jobs.run("test_hook:_hook_goes_on"), [True, True])

    @unittest.skipIf(before(2, 2), before(2, 2))
    def test_a_state_goes_through_distributed_checkpoints(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(jobs.run("test_hook:_hook_is_checkpointed", 2, folder), [True, True])

    @unittest.skipIf(before(2, 0), before(2, 0))
    def test_a_model_that_is_compiled(self):
        for difference in jobs.run("test_hook:_hook_is_compiled"):
            self.assertLess(difference, 1e-6)

    def test_workers_that_are_spawned(self):
        with tempfile.TemporaryDirectory() as folder:
            # A process of its own, which no torchrun has started.
            program = f"import sys; sys.path.insert(0, {jobs.HERE!r}); import test_hook; test_hook._spawns({folder!r}, {jobs.two_ports()})"
            done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=jobs.TIMEOUT)
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(os.path.join(folder, "0"), encoding="ascii") as first, open(os.path.join(folder, "1"), encoding="ascii") as second:
                self.assertEqual(first.read(), second.read())

    def test_uneven_inputs(self):
        long, short = jobs.run("test_hook:_hook_joins")
        self.assertEqual((long, short), ([1.0] * 3 + [0.5] * 3, [1.0] * 3))

    def test_the_momentum_of_an_optimiser_is_read_from_it(self):
        ((number, sgd, adam, without, ours, both),) = jobs.run("test_hook:_hook_fares", 1)
        for found in (number, sgd, adam):
            self.assertEqual(list(found), ["stale", "momentum"])
        for found in (without, ours):
            self.assertEqual(list(found), ["stale"])
        self.assertIn("momentum 0.9 goes on with it", number["momentum"])
        self.assertIn("use gleaner.torch.SGD", sgd["momentum"])
        self.assertIn("use betas=(0.0, 0.999)", adam["momentum"])
        self.assertIn("expected one of the two", both)

    def test_what_cannot_work_is_refused_by_name(self):
        for found in jobs.run("test_hook:_refuses"):
            self.assertEqual(list(found), ["a module", "DataParallel", "FSDP", "float64", "sparse", "twice"])
            self.assertIn("FullyShardedDataParallel shards parameters", found["FSDP"])
            self.assertIn("Linear", found["a module"])
            self.assertIn("'weight' is float64", found["float64"].replace("module.", ""))

    def test_ranks_that_differ_hear_the_difference(self):
        for sentence, rank in jobs.run("test_hook:_hook_differs"):
            self.assertEqual(rank, 1)
            self.assertIn("method", sentence)

    def test_a_rank_that_is_killed_is_named(self):
        job = jobs.Job("test_hook:_hook_dies", 3)
        for rank in range(3):
            job.wait_for(rank, "trains")
        job.send(2, signal.SIGKILL)
        for ended in job.ends()[:2]:
            self.assertNotEqual(ended.code, 0)
            self.assertIn("rank 2 failed", ended.err)


if __name__ == "__main__":
    unittest.main()
