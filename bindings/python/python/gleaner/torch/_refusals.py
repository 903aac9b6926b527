"""What cannot work, refused by name before the first step."""

from __future__ import annotations

from typing import Any, Dict

import torch

from gleaner.errors import UnsupportedError
from gleaner.torch._tensors import EXCHANGED

# Wrappers of other libraries and of PyTorch's, by the names of their classes, and what each does that a hook cannot replace.
_WRAPPERS = {
    "FullyShardedDataParallel": "shards parameters and reduces gradients by reduce-scatter, so no rank has a whole gradient",
    "FSDPModule": "shards parameters and reduces gradients by reduce-scatter, so no rank has a whole gradient",
    "DeepSpeedEngine": "exchanges gradients itself",
    "DataParallel": "is one process, which has no other rank to exchange gradients with; wrap the model in DistributedDataParallel",
    "PipelineParallel": "splits the model between ranks, so their gradients are of different parameters",
}

ANOTHER_HOOK = "the model has another communication hook; register one hook, before the first step"


def refuse_wrapper(model: torch.nn.Module) -> None:
    """Refuses what is no DistributedDataParallel.

    Raises:
        UnsupportedError: with what it is.
    """
    for kind in type(model).__mro__:
        if kind.__name__ in _WRAPPERS:
            raise UnsupportedError(f"{kind.__name__} {_WRAPPERS[kind.__name__]}; expected DistributedDataParallel")
    if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
        raise UnsupportedError(
            f"register() was given a {type(model).__name__}; expected DistributedDataParallel, which calls the hook. Wrap the model in it, "
            "or use gleaner.torch.Synchronizer without it"
        )


def refuse_options(model: torch.nn.parallel.DistributedDataParallel) -> None:
    """Refuses what a DistributedDataParallel was given that leaves no place for the hook.

    Raises:
        UnsupportedError: with the option.
    """
    if getattr(model, "mixed_precision", None) is not None:
        raise UnsupportedError(
            "DistributedDataParallel was given mixed_precision, which is a communication hook itself; use torch.autocast instead"
        )
    if getattr(model, "_delay_all_reduce_params", None):
        raise UnsupportedError(
            "DistributedDataParallel was given delay_all_reduce_named_params, which it reduces without the hook; leave it out"
        )
    if getattr(model, "_comm_hooks", None):
        raise UnsupportedError(ANOTHER_HOOK)
    if _compiled_by_python_reducer():
        raise UnsupportedError(
            "torch._dynamo.config.optimize_ddp is 'python_reducer', which traces the hook into the graph; set it to True, which "
            "splits the graph where gradients are exchanged"
        )


def _compiled_by_python_reducer() -> bool:
    dynamo: Any = getattr(torch, "_dynamo", None)
    config = getattr(dynamo, "config", None)
    return str(getattr(config, "optimize_ddp", "")).startswith("python_reducer")


def refuse_modules(model: torch.nn.Module) -> None:
    """Refuses modules whose gradients are sparse tensors.

    Raises:
        UnsupportedError: with the module's name.
    """
    for name, module in model.named_modules():
        if getattr(module, "sparse", False) and isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)):
            raise UnsupportedError(
                f"'{name}' has sparse=True, so its gradient is a sparse tensor; expected dense gradients, of which Gleaner sends what "
                "matters: leave sparse=True out"
            )


def refuse_parameters(parameters: Dict[str, torch.Tensor]) -> None:
    """Refuses parameters whose gradients cannot be exchanged.

    Raises:
        UnsupportedError: with the first parameter's name.
    """
    for name, parameter in parameters.items():
        if type(parameter).__name__ == "DTensor" or type(parameter.data).__name__ == "DTensor":
            raise UnsupportedError(
                f"parameter '{name}' is a DTensor, of which this rank has a part only; expected whole parameters on every rank"
            )
        if type(parameter).__name__ == "FlatParameter" or getattr(parameter, "_is_flat_param", False):
            raise UnsupportedError(
                f"parameter '{name}' is a FlatParameter of FullyShardedDataParallel, of which this rank has a part only; expected whole "
                "parameters on every rank"
            )
        if torch.nn.parameter.is_lazy(parameter):
            raise UnsupportedError(f"parameter '{name}' has no shape yet; run a forward pass of the lazy module before")
        if parameter.dtype not in EXCHANGED:
            raise UnsupportedError(
                f"parameter '{name}' is {_dtype(parameter)}; expected float32, bfloat16 or float16, as which gradients are exchanged"
            )
        if parameter.device.type not in ("cpu", "cuda"):
            raise UnsupportedError(f"parameter '{name}' is on the device {parameter.device}; expected cpu or cuda")


def refuse_gradient(name: str, gradient: torch.Tensor) -> None:
    """Refuses a gradient that is not what its parameter promised.

    Raises:
        UnsupportedError: with the parameter's name.
    """
    if gradient.layout != torch.strided:
        raise UnsupportedError(f"the gradient of '{name}' is a tensor of layout {gradient.layout}; expected a dense one")
    if gradient.dtype not in EXCHANGED:
        raise UnsupportedError(f"the gradient of '{name}' is {_dtype(gradient)}; expected float32, bfloat16 or float16")


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).replace("torch.", "")
