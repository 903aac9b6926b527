"""Gleaner for PyTorch.

A hook of DistributedDataParallel, in three lines:

    import gleaner.torch
    model = DistributedDataParallel(model)
    gleaner.torch.register(model, method="spardl", density=0.01)

Without DistributedDataParallel, a `Synchronizer` of a model's parameters. And `torch.distributed.init_process_group("gleaner")`
once this module is imported.
"""

from __future__ import annotations

import torch
import torch.distributed

if not torch.distributed.is_available():
    raise ImportError(f"gleaner.torch needs torch.distributed, and this PyTorch {torch.__version__} was built without it")
if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (1, 13):
    raise ImportError(f"gleaner.torch needs PyTorch 1.13 or later, and this is {torch.__version__}")

from gleaner.torch._hook import Hook, register  # noqa: E402
from gleaner.torch._process_group import ProcessGroup, register_backend  # noqa: E402
from gleaner.torch._sgd import SGD  # noqa: E402
from gleaner.torch._synchronizer import Synchronizer  # noqa: E402

__all__ = ["Hook", "ProcessGroup", "SGD", "Synchronizer", "register"]

register_backend()
