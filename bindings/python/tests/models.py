"""What the tests of PyTorch share: whether there is PyTorch, models whose gradients are known, and groups."""

import unittest

import jobs  # noqa: F401  before PyTorch, for the variables that it reads

import gleaner

try:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import gleaner.torch  # noqa: F401
    from gleaner.torch import _device
    from gleaner.torch._tensors import memory
except ImportError as error:
    torch, WHY = None, f"SKIPPED: {error}"
else:
    WHY = ""
    torch.set_num_threads(1)
    if hasattr(torch, "compile"):
        # DistributedDataParallel imports it, which takes seconds: here once, and not in every worker.
        import torch._dynamo  # noqa: F401


def before(*version):
    """Why a test is skipped on versions of PyTorch before this one, or nothing."""
    wanted = ".".join(map(str, version))
    if torch is None:
        return WHY
    found = tuple(int(part) for part in torch.__version__.split(".")[:2])
    return "" if found >= version else f"SKIPPED: it needs PyTorch {wanted}, and this is {torch.__version__}"


# Models whose gradients are known: each parameter's is a constant of the rank.


def linear(sizes):
    """A model of parameters of these sizes, whose loss is their product with what it is given."""

    class Linear(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for name, size in sizes.items():
                self.register_parameter(name, torch.nn.Parameter(torch.zeros(size)))

        def forward(self, inputs, names=None):
            return sum((getattr(self, name) * inputs[name]).sum() for name in names or sizes)

    return Linear()


SIZES = {"a": (30, 4), "b": (100,), "c": (7, 3), "d": (2000,)}


def inputs_of(rank, step, until):
    random = torch.Generator().manual_seed(1000 * rank + step)
    zero = 0.0 if step >= until else 1.0
    return {name: zero * torch.randn(size, generator=random) for name, size in SIZES.items()}


def start():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    return dist.get_rank()


def wrapped(model, **options):
    # Small buckets, so that there are several, which are put together again after the first step.
    dist._DEFAULT_FIRST_BUCKET_BYTES = 1000
    return DistributedDataParallel(model, bucket_cap_mb=0.002, **options)


class Lacking:
    """Gradients of a GPU that lacks memory: so many times for the gradients of a parameter, and when a step is to be selected from."""

    def __init__(self, gradients):
        self.gradients, self.times, self.is_undone = gradients, {}, False

    def __getattr__(self, name):
        return getattr(self.gradients, name)

    def ready(self, name, *values):
        self._lack(name)
        self.gradients.ready(name, *values)

    def _lack(self, name):
        if self.times.get(name, 0) > 0:
            self.times[name] -= 1
            raise gleaner.OutOfMemory(f"not enough memory for the gradient of {name}")

    def wait(self):
        update = self.gradients.wait()
        if self.is_undone:
            raise gleaner.OutOfMemory("the step is undone on all ranks")
        return update


def in_memory():
    """What hands gradients over as from a GPU, whose memory is the host's, and counts how often PyTorch was to free what it holds."""

    class InMemory(_device.OnDevice):
        freed = 0

        def _ready(self, gradients, name, values):
            gradients.ready(name, *memory(values, 0, values.numel()))

        def _copy(self, update, name, into):
            update.copy_to(name, *memory(into, 0, into.numel()))

        def free_cached(self):
            super().free_cached()
            self.freed += 1

    return InMemory(torch.device("cpu"), None)


def lists(tensors):
    return {name: tensor.flatten().tolist() for name, tensor in tensors.items()}


class Numbers(unittest.TestCase):
    """Comparisons of what ranks return."""

    def assert_delivered(self, ranks, at=lambda rank: rank):
        """What all ranks gave is what was delivered, on each of them."""
        for name in SIZES:
            given = sum(torch.tensor(at(rank)[0][name]) for rank in ranks) / len(ranks)
            for rank in ranks:
                self.assertEqual(at(rank)[1][name], at(ranks[0])[1][name])
            torch.testing.assert_close(torch.tensor(at(ranks[0])[1][name]), given, atol=1e-4, rtol=1e-4)
