"""The Synchronizer among two workers."""

import contextlib
import os
import unittest
import warnings

import jobs

from models import SIZES, WHY, Lacking, Numbers, before, in_memory, inputs_of, linear, lists, start, torch

if torch is not None:
    import gleaner.torch

import gleaner


# What workers do.


def _synchronizes(launch_group):
    if launch_group:
        start()
    else:
        torch.manual_seed(0)
    rank = int(os.environ["RANK"])
    model = linear(SIZES)
    with torch.no_grad():
        model.a.fill_(float(rank))
    sync = gleaner.torch.Synchronizer(model.named_parameters(), density=0.05)
    started = float(model.a[0, 0])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    given = {name: torch.zeros(size) for name, size in SIZES.items()}
    for step in range(300):
        optimizer.zero_grad()
        names = ["a", "b", "d"] if rank == 1 else None
        for paused in (True, False):
            inputs = inputs_of(rank, 2 * step + paused, 8)
            with sync.no_sync() if paused else contextlib.nullcontext():
                model(inputs, names).backward()
            for name in names or SIZES:
                given[name] += inputs[name]
        assert sync.step(optimizer)
    return [lists(given), lists({n: -p.detach() for n, p in model.named_parameters()}), started, sync.groups is not None]


def _synchronizer_scales():
    """A scaler, and a step that is not finite on rank 1 alone; then a state that goes on."""
    rank = start()
    model = linear({"a": (40,)})
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    sync = gleaner.torch.Synchronizer(model.named_parameters(), density=0.1, scaler=scaler)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    given, skipped, scales = torch.zeros(40), [], []
    for step in range(80):
        gradient = torch.randn(40, generator=torch.Generator().manual_seed(100 * rank + step)) * (step < 6)
        if step == 3 and rank == 1:
            gradient = gradient + float("inf")
        optimizer.zero_grad()
        scaler.scale(model({"a": gradient})).backward()
        if not sync.step(optimizer):
            skipped.append([step, sync.skipped])
        scaler.update()
        if step != 3:
            given += gradient
        scales.append(scaler.get_scale())
    return [given.tolist(), model.a.tolist(), skipped, scales]


def _synchronizer_goes_on():
    """A state that another Synchronizer of the same parameters goes on from."""
    rank = start()

    def steps(numbers, state=None):
        model = linear(SIZES)
        sync = gleaner.torch.Synchronizer(model.named_parameters(), density=0.02, merge="single")
        if state is not None:
            sync.load_state_dict(state)
        found = []
        for number in numbers:
            model.zero_grad()
            model(inputs_of(rank, number, 100)).backward()
            sync.wait()
            found.append(lists({name: p.grad for name, p in model.named_parameters()}))
        state = sync.state_dict()
        sync.close()
        return found, state

    first, state = steps(range(5))
    again, _ = steps(range(5, 8), state)
    straight, _ = steps(range(8))
    return again == straight[5:] and first == straight[:5]


class _Scaler:
    scale = 2.0

    def get_scale(self):
        return self.scale


def _synchronizer_lacks_memory(on_device):
    """Whether each step delivered the means, and what was raised, on a rank that lacks memory for a gradient and on both for a selection. As from a
    device, a gradient is handed over twice each time."""
    rank, scaler, seen = start(), _Scaler(), []
    model = linear(SIZES)
    sync = gleaner.torch.Synchronizer(model.named_parameters(), method="ring", scaler=scaler)
    sync.gradients = lacking = Lacking(sync.gradients)
    sync._device = device = in_memory() if on_device else None
    for step, times in enumerate([1, 2, 0, 0, 0]):
        lacking.times, lacking.is_undone = {"b": times * rank * (1 + on_device)}, step == 2
        model.zero_grad()
        (model(inputs_of(rank, step, 5)) * scaler.scale).backward()
        try:
            sync.wait()
        except gleaner.OutOfMemory as error:
            seen.append(str(error))
            if step == 2:
                # The step is over, and its gradients wait.
                assert not any(bool(p.grad.any()) for p in model.parameters())
                scaler.scale = 8.0
                continue
            sync.wait()
        means = [sum(inputs_of(r, step, 5)[name] for r in range(2)) / 2 * scaler.scale for name in SIZES]
        seen.append(all(torch.allclose(p.grad, mean, atol=1e-5) for p, mean in zip(model.parameters(), means)))
    return seen, device and device.freed


def _synchronizer_refuses():
    model, other = linear({"a": (4,)}), torch.nn.Parameter(torch.zeros(3))
    sync = gleaner.torch.Synchronizer(model.parameters(), method="ring")
    found = []
    model({"a": torch.ones(4)}, ["a"]).backward()
    optimizer = torch.optim.SGD([model.a, other], lr=0.1)
    for call in (lambda: model({"a": torch.ones(4)}, ["a"]).backward(), lambda: sync.step(optimizer)):
        try:
            call()
        except gleaner.LayoutError as error:
            found.append(str(error))
    return found


def _synchronizer_warns():
    """What two steps warn of, with each of these methods and optimisers."""
    sgd, adam = torch.optim.SGD, torch.optim.AdamW
    found = []
    for options, make, settings in [
        ({}, sgd, {"momentum": 0.9}),
        ({}, adam, {}),
        ({}, torch.optim.RMSprop, {"momentum": 0.5}),
        ({}, sgd, {}),
        ({}, adam, {"betas": (0.0, 0.999)}),
        ({}, gleaner.torch.SGD, {"momentum": 0.9}),
        ({"method": "ring"}, sgd, {"momentum": 0.9}),
        ({"method": "ring"}, adam, {}),
        ({"momentum_correction": 0.9}, sgd, {"momentum": 0.9}),
    ]:
        parameter = torch.nn.Parameter(torch.ones(4))
        sync = gleaner.torch.Synchronizer([parameter], **options)
        optimizer = make([parameter], lr=0.1, **settings)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                optimizer.zero_grad()
                parameter.square().sum().backward()
                sync.step(optimizer)
        found.append([str(warning.message) for warning in caught if "residuals" in str(warning.message)])
        sync.close()
    return found


@unittest.skipIf(torch is None, WHY)
class Synchronizers(Numbers):
    def test_nothing_is_lost(self):
        for with_group in (True, False):
            with self.subTest(with_group):
                ranks = jobs.run("test_synchronizer:_synchronizes", 2, with_group)
                for name in SIZES:
                    given = sum(torch.tensor(rank[0][name]) for rank in ranks) / 2
                    for rank in ranks:
                        self.assertEqual(rank[1][name], ranks[0][1][name])
                    torch.testing.assert_close(torch.tensor(ranks[0][1][name]), given, atol=1e-4, rtol=1e-4)
                self.assertEqual([rank[2] for rank in ranks], [0.0, 0.0])
                self.assertTrue(ranks[0][3])

    @unittest.skipIf(before(2, 3), before(2, 3))
    def test_a_scaled_step_that_is_not_finite_is_left_out_on_all_ranks(self):
        ranks = jobs.run("test_synchronizer:_synchronizer_scales")
        mean = sum(torch.tensor(given) for given, *_ in ranks) / 2
        for _, values, skipped, scales in ranks:
            torch.testing.assert_close(-torch.tensor(values), mean, atol=1e-4, rtol=1e-4)
            self.assertEqual(skipped, [[3, 1]])
            self.assertLess(scales[3], scales[2])
            self.assertEqual(scales, ranks[0][3])

    def test_a_state_goes_on_bit_by_bit(self):
        self.assertEqual(jobs.run("test_synchronizer:_synchronizer_goes_on"), [True, True])

    def test_memory_that_was_missing_ends_no_job(self):
        undone = ["the step is undone on all ranks", True, True]
        for on_device, freed in [(False, (None, None)), (True, (1, 4))]:
            first, second = jobs.run("test_synchronizer:_synchronizer_lacks_memory", 2, on_device)
            self.assertEqual(first, [[True, True, *undone], freed[0]])
            self.assertEqual(second, [[True, "not enough memory for the gradient of b", True, *undone], freed[1]])

    def test_momentum_that_does_not_count_waiting_is_warned_of_once(self):
        (found,) = jobs.run("test_synchronizer:_synchronizer_warns", 1)
        self.assertEqual([len(said) for said in found], [1, 1, 1] + [0] * 6, found)
        self.assertRegex(found[0][0], r"^SGD has momentum=0\.9, .*22% behind dense exchange; use gleaner\.torch\.SGD, whose momentum counts")
        self.assertRegex(found[1][0], r"^AdamW has betas=\(0\.9, 0\.999\), .*14% behind dense exchange; use betas=\(0\.0, 0\.999\)$")
        self.assertRegex(found[2][0], r"^RMSprop has momentum=0\.5, .* a second time; use momentum=0\.0$")

    def test_what_is_not_exchanged_is_found(self):
        (found,) = jobs.run("test_synchronizer:_synchronizer_refuses", 1)
        self.assertIn("finished twice", found[0])
        self.assertIn("shape (3,) that is not exchanged", found[1])


if __name__ == "__main__":
    unittest.main()
