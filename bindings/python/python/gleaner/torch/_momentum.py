"""Momentum that takes entries for new ones that have waited in residuals: what optimisers have of it, and what to use in its place."""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Optional

import torch

from gleaner import _native
from gleaner.torch._sgd import SGD


class Momentum(NamedTuple):
    """A momentum that does not count how long entries have waited."""

    #: The share of its velocity that the optimiser keeps.
    share: float
    #: What was found, why a training is worse with it, and what to use.
    sentence: str


def of(optimizer: torch.optim.Optimizer, method: _native.Method) -> Optional[Momentum]:
    """The momentum of an optimiser, by the options of its groups; β₁ is that of Adam and its relatives. None where there is none, where it counts how
    long entries have waited, and with a dense method or one that corrects momentum itself."""
    # ZeroRedundancyOptimizer, and what Hugging Face's Accelerate makes of an optimiser, have it inside.
    for name in ("optim", "optimizer"):
        inner = getattr(optimizer, name, None)
        if isinstance(inner, torch.optim.Optimizer):
            optimizer = inner
    if not method.is_sparse or method.has_momentum or isinstance(optimizer, SGD):
        return None
    group = max(optimizer.param_groups, key=_share)
    if _share(group) <= 0.0:
        return None
    if "betas" in group:
        betas = tuple(group["betas"])
        found, instead = f"betas={betas}", f"betas={(0.0, *betas[1:])}"
        measured = ": a transformer was 14% behind dense exchange"
    elif isinstance(optimizer, torch.optim.SGD):
        found, instead = f"momentum={group['momentum']}", "gleaner.torch.SGD, whose momentum counts how long entries have waited"
        measured = ": one of four trainings was 22% behind dense exchange"
    else:
        found, instead, measured = f"momentum={group['momentum']}", "momentum=0.0", ""
    return Momentum(
        _share(group),
        f"{type(optimizer).__name__} has {found}, and takes entries that have waited in residuals for new ones, which delays them a second "
        f"time{measured}; use {instead}",
    )


def _share(group: Dict[str, Any]) -> float:
    """The momentum of a group of parameters."""
    if "betas" in group:
        return float(group["betas"][0])
    return float(group.get("momentum") or 0.0)
