"""The optimiser for entries that come late."""

import copy
import unittest

import gleaner

from models import WHY, torch


def run(make, gradients, steps=None, **options):
    """The parameter and the optimiser after steps along these gradients."""
    parameter = torch.nn.Parameter(torch.tensor([1.0, -2.0, 0.5]))
    optimizer = make([parameter], lr=0.1, **options)
    for gradient in gradients[:steps]:
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter, optimizer


@unittest.skipIf(WHY, WHY)
class Sgd(unittest.TestCase):
    def test_entries_of_every_step_are_stepped_as_pytorch_does(self):
        gradients = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
        for options in [{}, {"nesterov": True}, {"weight_decay": 0.01}]:
            ours, _ = run(gleaner.torch.SGD, gradients, momentum=0.9, **options)
            theirs, _ = run(torch.optim.SGD, gradients, momentum=0.9, **options)
            self.assertTrue(torch.equal(ours, theirs), options)

    def test_a_late_entry_comes_to_the_same_in_the_end_and_sooner(self):
        every, gradients = 20, torch.zeros(420, 3)
        gradients[every - 1 : 10 * every : every] = float(every)
        far = [1.0, -2.0, 0.5]
        for nesterov in (False, True):
            ours, _ = run(gleaner.torch.SGD, gradients, momentum=0.9, nesterov=nesterov)
            for now, before in zip(ours.tolist(), far):
                # 200 gradients of 1, a rate of 0.1, and 1/(1 - 0.9).
                self.assertAlmostEqual(now, before - 200.0, places=1)
        prompt, _ = run(torch.optim.SGD, torch.ones(200, 3), momentum=0.9)
        ours, _ = run(gleaner.torch.SGD, gradients, 200, momentum=0.9)
        theirs, _ = run(torch.optim.SGD, gradients, 200, momentum=0.9)
        self.assertLess(float((ours - prompt).abs().max()), 0.1)
        self.assertGreater(float((theirs - prompt).abs().min()), 8.0)

    def test_a_state_goes_on_with_the_same_bits(self):
        generator = torch.Generator().manual_seed(2)
        gradients = torch.randn(60, 3, generator=generator) * (torch.rand(60, 3, generator=generator) < 0.1)
        whole, _ = run(gleaner.torch.SGD, gradients, momentum=0.9)
        half, optimizer = run(gleaner.torch.SGD, gradients, 30, momentum=0.9)
        state = copy.deepcopy(optimizer.state_dict())
        resumed = gleaner.torch.SGD([half], lr=0.1, momentum=0.9)
        resumed.load_state_dict(state)
        for gradient in gradients[30:]:
            half.grad = gradient.clone()
            resumed.step()
        self.assertTrue(torch.equal(half, whole))

    def test_steps_waited_are_not_rounded_to_the_type_of_a_parameter(self):
        parameter = torch.nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
        optimizer = gleaner.torch.SGD([parameter], lr=0.1, momentum=0.9)
        for _ in range(300):
            parameter.grad = torch.tensor([0.0, 1.0], dtype=torch.bfloat16)
            optimizer.step()
        resumed = gleaner.torch.SGD([parameter], lr=0.1, momentum=0.9)
        resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        parameter.grad = torch.zeros(2, dtype=torch.bfloat16)
        resumed.step()
        self.assertEqual(resumed.state[parameter]["waited"].tolist(), [301.0, 1.0])

    def test_a_state_of_pytorchs_goes_on(self):
        gradients = torch.randn(6, 3, generator=torch.Generator().manual_seed(3))
        whole, _ = run(torch.optim.SGD, gradients, momentum=0.9)
        for first in (3, 0):
            half, theirs = run(torch.optim.SGD, gradients, first, momentum=0.9)
            ours = gleaner.torch.SGD([half], lr=0.1, momentum=0.9)
            ours.load_state_dict(copy.deepcopy(theirs.state_dict()))
            for gradient in gradients[first:]:
                half.grad = gradient.clone()
                ours.step()
            self.assertTrue(torch.equal(half, whole), first)

    def test_options_out_of_range_are_refused(self):
        for option, value in [("lr", -1.0), ("momentum", 1.0), ("weight_decay", -0.1)]:
            options = {"lr": 0.1, option: value}
            with self.assertRaisesRegex(gleaner.MethodError, f"{option}: expected .*, found {value}"):
                gleaner.torch.SGD([torch.nn.Parameter(torch.zeros(1))], **options)


if __name__ == "__main__":
    unittest.main()
