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

if not hasattr(torch.Tensor, "register_post_accumulate_grad_hook"):
    raise ImportError(f"gleaner.torch needs PyTorch 2.1 or later, and this is {torch.__version__}")

from gleaner.torch._hook import Hook, register  # noqa: E402
from gleaner.torch._process_group import ProcessGroup, create  # noqa: E402
from gleaner.torch._synchronizer import Synchronizer  # noqa: E402

__all__ = ["Hook", "ProcessGroup", "Synchronizer", "register"]

if torch.distributed.is_available() and "gleaner" not in torch.distributed.Backend.backend_list:
    torch.distributed.Backend.register_backend("gleaner", create, devices=["cpu"])
